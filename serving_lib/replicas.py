"""Several replicas behind one dispatcher: a workload is dealt out by a rule, each replica is a run of the engine."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import pint

from serving_lib.engine import Result, simulate
from serving_lib.engine.result import merge_runs
from serving_lib.units import NONNEGATIVE, TIME, check_count, check_quantity
from serving_lib.workload import Workload

RULES = ("round_robin", "least_loaded")


def dispatch(workload, replicas, rule="round_robin", prompt_token_time=0.0):
    """Choose a replica for each request, in order of arrival.

    Parameters
    ----------
    workload : Workload
        Who arrives when.
    replicas : int
        How many replicas there are, at least 1.
    rule : {"round_robin", "least_loaded"}
        In turn, or to the replica that will be done with its prompts first, by what a dispatcher knows: the prompts
        that it has sent, and how long a token of them takes. Among equals, to the one that was sent the fewest
        requests, then to the first.
    prompt_token_time : float or Quantity
        Nonnegative time that a replica takes for one prompt token, in the unit of the arrivals (seconds, for a
        Quantity). Only "least_loaded" asks for it.

    Returns
    -------
    ndarray of int, shape (requests,)
        The number of each request's replica, from 0.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain.

    Notes
    -----
    A dispatcher does not know how long an answer will be: "least_loaded" counts prompts alone. Nothing comes back to it
    from the replicas, so that each of them can be simulated by itself.

    Examples
    --------
    >>> workload = Workload(["a", "b", "c", "d"], [0, 1, 2, 3], [100, 10, 10, 10], [1, 1, 1, 1])
    >>> dispatch(workload, replicas=2).tolist()
    [0, 1, 0, 1]
    >>> dispatch(workload, replicas=2, rule="least_loaded", prompt_token_time=0.1).tolist()
    [0, 1, 1, 1]
    """
    replicas = check_count("replicas", replicas, minimum=1)
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}, got {rule!r}")
    token_time = check_quantity("prompt_token_time", prompt_token_time, TIME, NONNEGATIVE, bare=True)
    token_time = token_time.m_as("second") if isinstance(token_time, pint.Quantity) else token_time
    if rule == "round_robin" or replicas == 1:
        return np.arange(len(workload)) % replicas
    done, sent, chosen = [0.0] * replicas, [0] * replicas, []
    for arrival, work in zip(workload.arrival.tolist(), (workload.prompt_tokens * token_time).tolist(), strict=True):
        replica = min(range(replicas), key=lambda one: (max(done[one] - arrival, 0.0), sent[one]))
        done[replica] = max(done[replica], arrival) + work
        sent[replica] += 1
        chosen.append(replica)
    return np.array(chosen, dtype=np.int64)


def simulate_replicas(workload, server, replicas, policy=None, rule="round_robin"):
    """Simulate several equal servers, each with the requests that a dispatcher sends it.

    Parameters
    ----------
    workload : Workload
        Who arrives when.
    server : Server
        What each replica is.
    replicas : int
        How many there are, at least 1.
    policy : Policy, optional
        The rules of each replica's scheduler, as for `simulate`.
    rule : {"round_robin", "least_loaded"}
        The rule of `dispatch`, which takes the time of a prompt token from the server's step.

    Returns
    -------
    Fleet
        The runs, put together: every function of `serving_lib.metrics` works on it.

    Raises
    ------
    TypeError, ValueError
        As for `simulate` and `dispatch`.

    Examples
    --------
    >>> from serving_lib import Server, metrics
    >>> workload = Workload(["a", "b", "c"], [0, 0, 0], prompt_tokens=[4, 4, 4], new_tokens=[5, 5, 5])
    >>> fleet = simulate_replicas(workload, Server(page_size=4, total_pages=8, slots=1), replicas=2)
    >>> fleet.replica.tolist(), metrics.e2e(fleet).tolist()
    ([0, 1, 0], [5.0, 5.0, 10.0])
    """
    *_, token_time = server.step_time.in_clock_units()
    replica = dispatch(workload, replicas, rule, token_time)
    runs = tuple(simulate(_part(workload, replica == one), server, policy) for one in range(replicas))
    return Fleet(workload, replica, runs)


@dataclass(frozen=True, eq=False)
class Fleet:
    """The runs of several replicas as one result; arrays are in the order of the whole workload.

    Parameters
    ----------
    workload : Workload
        All requests.
    replica : ndarray of int, shape (n,)
        The replica of each request.
    runs : tuple of Result
        What each replica did.
    """

    workload: Workload
    replica: np.ndarray
    runs: tuple[Result, ...]

    def _together(self, name):
        columns = [getattr(run, name) for run in self.runs]
        whole = np.empty(len(self.workload), dtype=columns[0].dtype)
        for one, column in enumerate(columns):
            whole[self.replica == one] = column
        return whole

    @cached_property
    def admitted(self):
        """When each request was first admitted; NaN where it never was."""
        return self._together("admitted")

    @cached_property
    def first_token(self):
        """When each request had its first token; NaN where it never had."""
        return self._together("first_token")

    @cached_property
    def finished(self):
        """When each request had its last token; NaN where it never had."""
        return self._together("finished")

    @cached_property
    def preemptions(self):
        """How often each request was evicted."""
        return self._together("preemptions")

    @cached_property
    def recomputed_tokens(self):
        """How many tokens of each request are prefilled again."""
        return self._together("recomputed_tokens")

    @property
    def duration(self):
        """When the last replica is done."""
        return max(run.duration for run in self.runs)

    @property
    def deadlock(self):
        """The deadlock of the first replica that has one, or None."""
        return next((run.deadlock for run in self.runs if run.deadlock is not None), None)

    def itl_runs(self):
        """Return the gaps between tokens, pooled over all replicas, as `Result.itl_runs` does for one."""
        return self._gaps

    @cached_property
    def _gaps(self):
        return merge_runs([run.itl_parts() for run in self.runs])


def _part(workload, mask):
    """Return the requests of a workload for which a mask is true."""
    return Workload(*(getattr(workload, column.name)[mask] for column in fields(Workload)))

"""The workload: who arrives when, with how many tokens."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pint

from serving_lib.units import POSITIVE, RATE, TIME, check_count, check_quantity

MAX_TOKENS = 10**9
"""No context is this long, and a sum over any trace stays far inside 64 bits."""


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in the order of their arrival.

    Parameters
    ----------
    id : array_like of str, shape (n,)
        Unique names.
    arrival : array_like of float, or Quantity, shape (n,)
        Arrival times in seconds (or in ticks, when the server's clock is ticks): finite, nonnegative, ascending.
    prompt_tokens, new_tokens : array_like of int, shape (n,)
        Positive token counts: what the prompt holds, and what the model generates.

    Raises
    ------
    TypeError
        If an id is not a string or a token count is not an integer.
    ValueError
        If the lengths differ, a value is outside its domain, arrivals descend, or an id repeats.

    Notes
    -----
    The arrays are read-only copies, so a workload can be shared between runs. Two workloads are equal when all four
    arrays are.

    Examples
    --------
    >>> workload = Workload(["a", "b"], [0, 1.5], prompt_tokens=[100, 20], new_tokens=[10, 200])
    >>> len(workload), workload.arrival.tolist()
    (2, [0.0, 1.5])
    """

    id: np.ndarray
    arrival: np.ndarray
    prompt_tokens: np.ndarray
    new_tokens: np.ndarray

    def __post_init__(self):
        ids = np.array(self.id, dtype=object)
        arrival = self.arrival.m_as("second") if isinstance(self.arrival, pint.Quantity) else self.arrival
        arrival = np.array(arrival, dtype=np.float64)
        columns = {"id": ids, "arrival": arrival}
        for name in ("prompt_tokens", "new_tokens"):
            columns[name] = _as_token_counts(name, getattr(self, name))
        for name, column in columns.items():
            if column.shape != (len(ids),):
                raise ValueError(f"{name} must hold one value for each of the {len(ids)} ids, got shape {column.shape}")
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        for bad_id in (name for name in ids if not isinstance(name, str)):
            raise TypeError(f"id must hold strings, got {bad_id!r}")
        if len(set(ids)) < len(ids):
            raise ValueError(f"id must be unique, got {len(ids)} ids of which {len(set(ids))} differ")
        bad = np.flatnonzero(~(np.isfinite(arrival) & (arrival >= 0)))
        if bad.size:
            raise ValueError(f"arrival must be finite and nonnegative, got {arrival[bad[0]]} at index {bad[0]}")
        back = np.flatnonzero(np.diff(arrival) < 0)
        if back.size:
            raise ValueError(f"arrival must ascend, got a step back at index {back[0] + 1}; from_requests sorts")

    def __len__(self):
        return len(self.id)

    def __eq__(self, other):
        if not isinstance(other, Workload):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)

    def __hash__(self):
        return hash((self.arrival.tobytes(), self.prompt_tokens.tobytes(), self.new_tokens.tobytes()))

    @property
    def rate(self):
        """Mean arrival rate, in requests per second: one over the mean gap.

        Examples
        --------
        >>> Workload(["a", "b", "c"], [0, 1, 4], [8, 8, 8], [2, 2, 2]).rate
        0.5
        """
        span = self.arrival[-1] - self.arrival[0] if len(self) > 1 else 0.0
        if span == 0:
            raise ValueError("a rate needs at least two requests that arrive at different times")
        return float((len(self) - 1) / span)

    def at_rate(self, rate):
        """Return the same requests with time stretched or squeezed to a mean arrival rate.

        Parameters
        ----------
        rate : float or Quantity
            Positive arrival rate; a plain number is in requests per second.

        Returns
        -------
        Workload
            The pattern of arrivals, bursts included, is kept; only its speed changes.

        Examples
        --------
        >>> Workload(["a", "b", "c"], [0, 1, 4], [8, 8, 8], [2, 2, 2]).at_rate(5).arrival.tolist()
        [0.0, 0.1, 0.4]
        """
        return replace(self, arrival=self.arrival * (self.rate / per_second(rate)))

    def shuffled_gaps(self, seed):
        """Return the same requests with the gaps between arrivals in random order.

        Every statistic of a single gap (mean, CV, quantiles) stays; the correlation between gaps goes, and with it
        the bursts that last longer than a gap. Compare the two to see what a formula that knows only the CV misses.

        Parameters
        ----------
        seed : int
            Seed of the shuffle.

        Returns
        -------
        Workload
            The first request arrives when it did; ids and tokens keep their place in the order of arrival.

        Examples
        --------
        >>> workload = Workload(["a", "b", "c"], [0, 1, 4], [8, 8, 8], [2, 2, 2])
        >>> sorted(np.diff(workload.shuffled_gaps(seed=0).arrival).tolist())
        [1.0, 3.0]
        """
        if not len(self):
            return self
        gaps = generator(seed).permutation(np.diff(self.arrival))
        return replace(self, arrival=np.cumsum(np.concatenate([self.arrival[:1], gaps])))

    @classmethod
    def from_requests(cls, requests):
        """Build a workload from the dicts that `paged_continuous_batching` takes.

        Parameters
        ----------
        requests : iterable of dict
            Each with the keys id, arrival, prompt_tokens and new_tokens, in any order of arrival.

        Returns
        -------
        Workload
            Sorted by arrival; requests that arrive together keep their order.

        Raises
        ------
        ValueError
            If a request lacks a key; and as for `Workload`.

        Examples
        --------
        >>> late = {"id": "late", "arrival": 3, "prompt_tokens": 4, "new_tokens": 2}
        >>> early = {"id": "early", "arrival": 1, "prompt_tokens": 6, "new_tokens": 1}
        >>> Workload.from_requests([late, early]).id.tolist()
        ['early', 'late']
        """
        requests = list(requests)
        names = tuple(cls.__dataclass_fields__)
        for missing in ((request, name) for request in requests for name in names if name not in request):
            raise ValueError("request {!r} has no {!r}".format(*missing))
        ordered = sorted(requests, key=lambda request: request["arrival"])
        return cls(*([request[name] for request in ordered] for name in names))

    def requests(self):
        """Return the dicts that `paged_continuous_batching` takes, in order of arrival.

        Returns
        -------
        list of dict
            Arrival times that are whole come back as int, because the simulator counts in ticks.

        Examples
        --------
        >>> Workload(["a"], [3], prompt_tokens=[4], new_tokens=[2]).requests()
        [{'id': 'a', 'arrival': 3, 'prompt_tokens': 4, 'new_tokens': 2}]
        """
        names = tuple(self.__dataclass_fields__)
        columns = [getattr(self, name).tolist() for name in names]
        columns[1] = [int(time) if time.is_integer() else time for time in columns[1]]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def index_of_dispersion(arrival, window):
    """Return the variance of the number of arrivals in a window, over its mean.

    It is 1 for Poisson arrivals at every window. Arrivals with the CV of Poisson but with correlated gaps show here
    and nowhere else: the index grows with the window.

    Parameters
    ----------
    arrival : array_like of float, shape (n,)
        Ascending arrival times.
    window : float or Quantity
        Positive length of a window, in the unit of `arrival` (seconds, for a Quantity).

    Returns
    -------
    float
        Dimensionless. Windows start at the first arrival; the last, incomplete one is left out.

    Raises
    ------
    ValueError
        If fewer than two complete windows fit.

    References
    ----------
    Cox and Lewis, The Statistical Analysis of Series of Events (1966), section 4.6.

    Examples
    --------
    >>> index_of_dispersion([0, 1, 2, 3, 4, 5, 6, 7, 8], window=2)
    0.0
    """
    window = in_seconds("window", window)
    arrival = np.asarray(arrival, dtype=np.float64)
    windows = math.floor((arrival[-1] - arrival[0]) / window) if len(arrival) else 0
    if windows < 2:
        raise ValueError(f"window must fit at least twice into the span of the arrivals, got {window}")
    # Only windows with arrivals are stored, so a short window over a long trace costs no memory.
    number, counts = np.unique(np.floor((arrival - arrival[0]) / window), return_counts=True)
    counts = counts[number < windows]
    mean = counts.sum() / windows
    return float((np.square(counts, dtype=np.float64).sum() / windows - mean**2) / mean)


def generator(seed):
    """Return the random generator of a seed, a whole number of at least 0."""
    return np.random.default_rng(check_count("seed", seed, minimum=0))


def per_second(rate):
    """Return a positive rate as a plain number of requests per second."""
    rate = check_quantity("rate", rate, RATE, POSITIVE, bare=True)
    return rate.m_as("1/second") if isinstance(rate, pint.Quantity) else rate


def in_seconds(name, time):
    """Return a positive time as a plain number of seconds."""
    time = check_quantity(name, time, TIME, POSITIVE, bare=True)
    return time.m_as("second") if isinstance(time, pint.Quantity) else time


def row_names(count):
    """Return the ids of requests that have no name of their own: their numbers."""
    return [str(number) for number in range(count)]


def _as_token_counts(name, values):
    counts = np.array(values) if len(values) else np.array([], dtype=np.int64)
    if counts.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers below 2**63, got {counts.dtype}")
    bad = np.flatnonzero((counts < 1) | (counts > MAX_TOKENS))
    if bad.size:
        raise ValueError(f"{name} must be between 1 and {MAX_TOKENS:,}, got {counts.flat[bad[0]]} at index {bad[0]}")
    return counts.astype(np.int64)

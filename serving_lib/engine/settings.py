"""What an engine simulates: a server, the time of its steps, and the rules of its scheduler."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pint

from ..units import FRACTION, NONNEGATIVE, TIME, check_count, check_number, check_quantity


@dataclass(frozen=True)
class StepTime:
    """How long a step takes: an affine function of the work in it.

    Parameters
    ----------
    base : float or Quantity
        Nonnegative time of any step, an idle one included.
    per_request : float or Quantity
        Nonnegative time for each request that takes part: that emits a token or prefills at least one.
    per_kv_token : float or Quantity
        Nonnegative time for each token in the cache, at the start of the step, of the requests that take part.
    per_prefill_token : float or Quantity
        Nonnegative time for each token prefilled in the step.

    Raises
    ------
    TypeError
        If some times have units and others, that are not zero, have none.
    ValueError
        If a time is negative, or `base` and `per_request` are both zero (a step would take no time).
    pint.DimensionalityError
        If a unit is not one of time.

    Notes
    -----
    With units the clock of a run is in seconds. Without, it is in the unit of `base`, and so are the arrivals: the
    default is a clock that ticks once a step.

    Examples
    --------
    >>> from serving_lib.units import ureg
    >>> StepTime(base=25 * ureg.ms, per_request=0.5 * ureg.ms).in_clock_units()
    (0.025, 0.0005, 0.0, 0.0)
    """

    base: float | pint.Quantity = 1
    per_request: float | pint.Quantity = 0
    per_kv_token: float | pint.Quantity = 0
    per_prefill_token: float | pint.Quantity = 0

    def __post_init__(self):
        for name in self.__dataclass_fields__:
            time = check_quantity(name, getattr(self, name), TIME, NONNEGATIVE, bare=True)
            if self.has_units and time != 0 and not isinstance(time, pint.Quantity):
                raise TypeError(f"{name} needs a time unit, as the other times have one; got the plain number {time}")
        if self.in_clock_units()[:2] == (0, 0):
            raise ValueError("base or per_request must be positive, or a step would take no time; got 0 for both")

    @property
    def has_units(self):
        """Whether the times are physical, and the clock of a run is in seconds."""
        return any(isinstance(getattr(self, name), pint.Quantity) for name in self.__dataclass_fields__)

    def in_clock_units(self):
        """Return the four times as plain floats, in seconds if they have units."""
        times = (getattr(self, name) for name in self.__dataclass_fields__)
        return tuple(float(time.m_as("second") if isinstance(time, pint.Quantity) else time) for time in times)


@dataclass(frozen=True)
class Server:
    """A server: a pool of pages, slots for requests, and the time of a step.

    Parameters
    ----------
    page_size : int
        Tokens that a page holds, at least 1.
    total_pages : int
        Pages in the pool, at least 1.
    slots : int
        Requests that may run at a time, at least 1.
    step_time : StepTime
        How long a step takes.
    max_model_len : int or None
        Longest sequence (prompt and new tokens) that is served. It is what ``allocation="reserve_max"`` reserves;
        None means the longest of the workload.

    Raises
    ------
    TypeError, ValueError
        If a number is not whole or below its minimum.

    Examples
    --------
    >>> from dataclasses import replace
    >>> replace(Server(page_size=16, total_pages=30_000, slots=256), slots=8).slots
    8
    """

    page_size: int
    total_pages: int
    slots: int
    step_time: StepTime = field(default_factory=StepTime)
    max_model_len: int | None = None

    def __post_init__(self):
        for name in ("page_size", "total_pages", "slots", "max_model_len"):
            if getattr(self, name) is not None or name != "max_model_len":
                object.__setattr__(self, name, check_count(name, getattr(self, name), minimum=1))
        if not isinstance(self.step_time, StepTime):
            raise TypeError(f"step_time must be a StepTime, such as StepTime(base=1), got {self.step_time!r}")


class RequestView(NamedTuple):
    """What a rule of one's own sees of a request. `pages` and `generated` are 0 for one that was never admitted."""

    id: str
    arrival: float
    prompt_tokens: int
    new_tokens: int
    generated: int
    pages: int


_CHOICES = {
    "batching": ("continuous", "static"),
    "allocation": ("paged", "reserve_max", "reserve_pow2", "reserve_exact"),
    "admission": ("fifo", "shortest_first"),
    "preemption": ("none", "recompute"),
    "victim": ("latest", "fewest_tokens"),
}


@dataclass(frozen=True)
class Policy:
    """The rules of the scheduler.

    Parameters
    ----------
    batching : {"continuous", "static"}
        Whether requests join at any step, or only as a batch when nothing runs. A static batch takes whoever has
        arrived, up to the slots; a member that finishes frees its pages, but nobody takes its slot before the last.
    allocation : {"paged", "reserve_max", "reserve_pow2", "reserve_exact"}
        Pages as tokens come, or all at admission: for `Server.max_model_len` tokens, for the prompt and the new tokens
        rounded up to a power of two (but no more than `Server.max_model_len`), or for exactly prompt and new tokens.
    admission : {"fifo", "shortest_first"} or callable
        Who is at the head of the queue: the earliest, the one with the fewest new tokens (the earliest of equals), or
        the one of a list of `RequestView` that a function returns. Whoever was preempted goes before all others.
    preemption : {"none", "recompute"}
        Whether a request that is short of pages stalls, or evicts others, which are then prefilled again.
    victim : {"latest", "fewest_tokens"} or callable
        Who is evicted: the most recently admitted, the one that has generated fewest tokens (the latest of equals), or
        the one of a list of `RequestView`, in order of admission, that a function returns.
    watermark : float
        Fraction of the pool, in [0, 1), that an admission must leave free while something runs.
    prefill_budget : int or None
        Tokens that a step computes at most, at least the server's slots. A decoded token counts one. None: no limit.

    Raises
    ------
    TypeError, ValueError
        If a rule is unknown or a number is outside its domain.

    Notes
    -----
    A function given as rule must depend on nothing but its list: it is asked when the list may have changed, not at
    every step.

    Examples
    --------
    >>> def longest_prompt(running):
    ...     return max(running, key=lambda request: request.prompt_tokens)
    >>> Policy(preemption="recompute", victim=longest_prompt).watermark
    0.0
    """

    batching: str = "continuous"
    allocation: str = "paged"
    admission: str | Callable = "fifo"
    preemption: str = "none"
    victim: str | Callable = "latest"
    watermark: float = 0.0
    prefill_budget: int | None = None

    def __post_init__(self):
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if name in ("admission", "victim") and callable(value):
                continue
            if value not in choices:
                either = " or a function" if name in ("admission", "victim") else ""
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}{either}, got {value!r}")
        object.__setattr__(self, "watermark", check_number("watermark", self.watermark, FRACTION))
        if self.prefill_budget is not None:
            object.__setattr__(self, "prefill_budget", check_count("prefill_budget", self.prefill_budget, minimum=1))
            if self.batching == "static":
                raise ValueError('prefill_budget must be None with batching="static", which prefills a whole batch')


def most_pages(workload, server, policy):
    """Return the pages of each request when it has all its tokens, or those that are reserved for it."""
    tokens = workload.prompt_tokens + workload.new_tokens
    limit = server.max_model_len
    if limit is not None and (too_long := np.flatnonzero(tokens > limit)).size:
        i = too_long[0]
        raise ValueError(
            f"workload must hold no request longer than max_model_len = {limit} tokens, "
            f"got {workload.id[i]!r} with {tokens[i]}"
        )
    if policy.allocation == "reserve_max":
        tokens = np.full_like(tokens, limit or tokens.max(initial=1))
    elif policy.allocation == "reserve_pow2":
        tokens = workload.prompt_tokens + np.exp2(np.ceil(np.log2(workload.new_tokens))).astype(np.int64)
        tokens = tokens if limit is None else np.minimum(tokens, limit)
    return -(-tokens // server.page_size)

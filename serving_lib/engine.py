"""The engine: continuous batching over a paged KV cache, exact, at a cost that grows with events and not with tokens.

Between two events (an arrival that can be admitted, a completion, the first step that is short of pages) every running
request gains one token a step. So a request is one number, its *birth*: the step at which it would have held no tokens,
had it always grown. At step s it holds ``s - birth`` tokens, and sums over requests are closed forms in s. The module
reads in that order: what is simulated, the state, the loop over events, the contended step, the result.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

import numpy as np
import pint

from serving_lib.units import FRACTION, NONNEGATIVE, TIME, check_count, check_number, check_quantity
from serving_lib.workload import Workload

# ---------------------------------------------------------------------------------------------------------------------
# What is simulated: a server, the time of its steps, and the rules of its scheduler
# ---------------------------------------------------------------------------------------------------------------------


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


def simulate(workload, server, policy=None, max_steps=None):
    """Simulate a server on a workload, exactly.

    Parameters
    ----------
    workload : Workload
        Who arrives when; times in seconds if `server.step_time` has units, and in its unit otherwise.
    server : Server
        Pages, slots, and the time of a step.
    policy : Policy, optional
        The scheduler's rules; the default is that of `paged_continuous_batching`.
    max_steps : int, optional
        Steps after which to stop.

    Returns
    -------
    Result
        Times and counts per request, the pages over time, any stretch of steps in full, and the deadlock if there is
        one. The last step of a run that deadlocks is the first in which nothing could happen any more.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, a request is longer than `server.max_model_len`, the budget is smaller
        than the slots, or a rule of one's own returns something that was not in its list.

    Notes
    -----
    *Time.* A request has arrived at a step if its arrival is not after the start of the step. Without running requests
    a step is idle and takes `base`, but the next arrival ends it early, so that nobody waits for an empty server.
    Admission is at the start of a step; a token, and so completion, comes at its end.

    *A step, without preemption and prefill budget*, is that of `paged_continuous_batching`. Requests are admitted from
    the head of the queue while a slot and the pages of the prompt are free; the first that does not fit stops
    admission. Prefill is part of the step of admission. Then each running request, in order of admission, asks for
    room for one token more than it holds; if that takes a page and none is free, it stalls for this step. Otherwise it
    emits a token. With its last token it completes and frees its pages at once, for those after it in the same step.
    Its slot is free at the next step.

    *A step, with either*, has the order of vLLM's V1 scheduler. (1) Running requests, in order of admission, ask for
    room: for one token more, or for the next chunk of their prefill. (2) If all got it without an eviction, requests
    are admitted while a slot, some budget, and the pages of the first chunk are free. (3) Whoever has completed its
    prefill in this step asks for room for its token, in order of admission. (4) Everyone with room emits a token;
    completed requests leave, and free their pages, at the end of the step. A chunk is as long as the budget allows:
    the budget less one for each decoding request that got room, and less the chunks before it. Chunks are never cut
    to the pages that are free. The token that completes a prefill costs no budget.

    *Short of pages.* With ``preemption="recompute"`` running requests are evicted, by the victim rule, until the one
    that asks has room or is evicted itself; one that runs alone stalls. A victim emits no token in that step. It loses
    its cache (`Result.recomputed_tokens`), keeps its generated tokens, and goes to the front of the queue; when it is
    admitted again, prompt and generated tokens are prefilled.

    *Termination.* A step in which requests run and nothing is computed, nor anyone admitted, would repeat for ever: the
    run stops there. So it does when nothing runs and the head of the queue does not fit, unless an arrival may still
    take its place. Evictions cannot go on for ever: of all running requests one remains, and it can use the whole pool,
    so that between two steps with evictions a token is emitted, and emitted tokens are kept.

    References
    ----------
    Yu et al. (2022), Orca, for scheduling at every iteration and for the reservations; Kwon et al. (2023),
    PagedAttention, for pages and preemption; Agrawal et al. (2024), Sarathi-Serve, for chunked prefill.

    Examples
    --------
    >>> workload = Workload(["a", "b"], [0, 0], prompt_tokens=[8, 8], new_tokens=[4, 4])
    >>> result = simulate(workload, Server(page_size=4, total_pages=4, slots=2))
    >>> result.deadlock
    Deadlock(step=1, stalled=('a', 'b'), missing_pages=2)
    >>> result.deadlock.smallest_pool
    5
    >>> simulate(workload, Server(4, 4, 2), Policy(preemption="recompute")).finished.tolist()
    [4.0, 8.0]
    """
    policy = Policy() if policy is None else policy
    for name, value, kind in (("workload", workload, Workload), ("server", server, Server), ("policy", policy, Policy)):
        if not isinstance(value, kind):
            mend = "; Workload.from_requests makes one of a list of dicts" if kind is Workload else ""
            raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}{mend}")
    if policy.prefill_budget is not None and policy.prefill_budget < server.slots:
        raise ValueError(
            f"prefill_budget must be at least the slots ({server.slots}), so that every running request can decode, "
            f"got {policy.prefill_budget}"
        )
    max_steps = _NO_LIMIT if max_steps is None else check_count("max_steps", max_steps, minimum=0)
    engine = _Engine(workload, server, policy, max_steps)
    engine.run()
    return Result(engine)


# ---------------------------------------------------------------------------------------------------------------------
# State: who waits, who runs, and how many pages they hold at any later step
# ---------------------------------------------------------------------------------------------------------------------

# What a request does from a step on, as the log of lives has it. ADMITTED is added if it joins in that step.
_GONE, _HOLDS, _GROWS, _ADMITTED = 0, 1, 2, 4

_LIFE, _PIECE = Struct("4q").pack, Struct("4d").pack  # rows of the two logs

_NO_LIMIT = 2**53  # steps: what a float counts exactly


class _Queue:
    """Requests that wait: those that were preempted, in front, then those that have arrived, in the order of a rule."""

    def __init__(self, workload, rule):
        self.workload, self.rule = workload, rule
        self.count = len(workload)
        self.arrival = memoryview(workload.arrival)
        self.new_tokens = memoryview(workload.new_tokens)
        self.returned = []  # a stack: the last one evicted is the head
        self.arrived = []  # indices, for a function; a heap of new_tokens * count + index, for shortest first
        self.chosen = None  # the answer of a function, until its list changes
        self.next = 0
        self.upcoming = self.arrival[0] if self.count else math.inf  # arrival time of request `next`

    def head(self, now):
        """Return the request that is to be admitted next, or None."""
        if self.rule == "fifo":
            if self.returned:
                return self.returned[-1]
            return self.next if self.upcoming <= now else None
        while self.upcoming <= now:
            self.chosen = None
            if self.rule == "shortest_first":
                heappush(self.arrived, self.new_tokens[self.next] * self.count + self.next)
            else:
                self.arrived.append(self.next)
            self.skip()
        if self.returned:
            return self.returned[-1]
        if not self.arrived:
            return None
        if self.rule == "shortest_first":
            return self.arrived[0] % self.count
        if self.chosen is None:
            views = [_view(self.workload, i) for i in self.arrived]
            self.chosen = self.arrived[_index_of_choice("admission", self.rule, views)]
        return self.chosen

    def take(self):
        """Remove the head."""
        if self.returned:
            self.returned.pop()
        elif self.rule == "fifo":
            self.skip()
        elif self.rule == "shortest_first":
            heappop(self.arrived)
        else:
            self.arrived.remove(self.chosen)
            self.chosen = None

    def skip(self, count=1):
        """Go on to the arrivals after the next ones."""
        self.next += count
        self.upcoming = self.arrival[self.next] if self.next < self.count else math.inf

    def in_order(self):
        """Return the indices of all who wait, in the order of the queue, then of those who have not arrived."""
        arrived = sorted(self.arrived)
        if self.rule == "shortest_first":
            arrived = [key % self.count for key in arrived]
        return [*reversed(self.returned), *arrived, *range(self.next, self.count)]


def _view(workload, i, generated=0, pages=0):
    row = (column[i] for column in (workload.arrival, workload.prompt_tokens, workload.new_tokens))
    return RequestView(workload.id[i], *(number.item() for number in row), generated, pages)


def _index_of_choice(name, rule, views):
    choice = rule(views)
    if choice not in views:
        raise ValueError(f"{name} must return one of the requests in its list, got {choice!r}")
    return views.index(choice)


class _PageCount:
    """Pages of requests that all grow by one token a step, at any step, from a histogram of births modulo page size.

    A request holds ``ceil((step - birth) / page_size)`` pages. With ``birth = wave * page_size + phase`` it takes a
    page in every step that is congruent to its phase.
    """

    def __init__(self, page_size, births):
        self.page_size = page_size
        self.phases = [0] * page_size
        self.waves = 0
        self.count = 0
        for birth in births:
            self.add(birth)

    def add(self, birth, sign=1):
        wave, phase = divmod(birth, self.page_size)
        self.phases[phase] += sign
        self.waves += sign * wave
        self.count += sign

    def held(self, step):
        """Return the pages held at the start of a step."""
        wave, phase = divmod(step, self.page_size)
        return self.count * wave - self.waves + sum(self.phases[:phase])

    def first_short(self, step, total):
        """Return the first step, from this one on, in which growth takes more than `total` pages."""
        waves, free = divmod(total - self.held(step), self.count)  # all together take `count` pages in page_size steps
        phase = step % self.page_size
        for ahead, taken in enumerate(accumulate(self.phases[phase:] + self.phases[:phase])):
            if taken > free:
                return step + waves * self.page_size + ahead
        raise AssertionError("one turn of the phases takes more than is left")


class _Engine:
    """The state of a run between two events, and the two logs that its result is made of."""

    def __init__(self, workload, server, policy, max_steps):
        self.workload, self.server, self.policy, self.max_steps = workload, server, policy, max_steps
        self.count = max(len(workload), 1)
        self.page_size, self.total, self.slots = server.page_size, server.total_pages, server.slots
        self.base, self.per_request, self.per_kv, self.per_prefill = server.step_time.in_clock_units()
        self.reserving = policy.allocation != "paged"
        self.evicting = policy.preemption == "recompute"
        self.running_first = self.evicting or policy.prefill_budget is not None
        self.budget = policy.prefill_budget or math.inf
        self.reserve = int(policy.watermark * self.total)
        self.prompt = memoryview(workload.prompt_tokens)
        self.target = memoryview(workload.prompt_tokens + workload.new_tokens)
        self.most_pages = memoryview(_most_pages(workload, server, policy))  # of each request, when it has all tokens

        self.step, self.now, self.events = 0, 0.0, 0
        self.queue = _Queue(workload, policy.admission)
        self.active = {}  # birth of each decoding request, in order of admission
        self.finishes = []  # heap of (step of the last token) * count + index
        self.births = 0  # sum of births: tokens in the cache are len(active) * step - births
        self.committed = 0  # sum of most_pages over running requests: while it fits, no step can be short of pages
        self.pages = None  # _PageCount of the active, kept from the first time that it does not fit
        self.stalled = set()
        self.partial, self.computed = None, 0  # the one request in mid-prefill, always the last in order of admission
        self.kept = {}  # tokens that a preempted request had generated

        # Of the current step:
        self.fresh = []  # requests that completed their prefill
        self.chunk = 0  # tokens that `partial` prefilled
        self.left = self.budget  # tokens that may yet be prefilled
        self.extra = 0.0  # time beyond that of a step in which the active requests decode
        self.retry = False  # the head of the queue may be admitted at the next step
        self.watch = True  # an arrival is an event

        self.is_even = (self.per_request, self.per_kv, self.per_prefill, self.budget) == (0, 0, 0, math.inf)
        self.patience, self.glide_at = 32, 0 if self.is_even else math.inf  # events after which to try gliding again

        self.lives = bytearray()  # rows (request, step, tokens, what it does from there on)
        self.clock = bytearray()  # rows (step, time, duration, growth of the duration from step to step)
        self.piece = (0, 0.0, -1.0)  # of the last row of the clock: step, time, duration if it does not grow
        self.deadlock = None

    # -----------------------------------------------------------------------------------------------------------------
    # The loop: one turn an event
    # -----------------------------------------------------------------------------------------------------------------

    def run(self):
        """Go from event to event until nothing is left, nothing can happen, or the steps are used up."""
        while self.step < self.max_steps and self.deadlock is None:
            self.events += 1
            self.retire()
            self.fresh, self.chunk, self.extra, self.retry = [], 0, 0.0, False
            self.left = self.budget - len(self.active)
            if self.can_coast():
                if self.events >= self.glide_at and self.queue.upcoming < math.inf:
                    self.glide()
                self.coast()
                if self.step >= self.max_steps:
                    break
            elif self.running_first and self.ask_running():
                continue
            head = None if self.retry else self.admit()
            if not self.active and self.partial is None:
                if head is None and self.queue.upcoming == math.inf:
                    break
                self.idle(head)
            elif not (self.committed > self.total and self.is_short() and self.contend()):
                self.advance()
        self.retire()
        self.queue.head(self.now)  # takes note of who has arrived since

    def can_coast(self):
        """Whether pages and order play no part: nothing is scarce, nobody is in an unusual state."""
        simple = self.policy.batching == "continuous" and self.policy.admission == "fifo"
        unusual = self.stalled or self.partial is not None or self.queue.returned
        return simple and not unusual and self.committed <= self.total

    def glide(self):
        """Take the next arrivals at once, up to the first that finds something scarce, or the server idle.

        If all steps take the same time and nothing is scarce, the step in which a request joins follows from its
        arrival, the step in which it finishes follows from that, and sums over the finishes before a step tell who
        still runs in it.
        """
        self.tick(0, self.base)  # an idle server may just have been woken: steps count from there
        (start, time, duration), first, before = self.piece, self.queue.next, len(self.active)
        block = slice(first, first + 8192)
        arrival, prompt, new = (getattr(self.workload, name)[block] for name in ("arrival", "prompt_tokens", "new_tokens"))
        most = np.asarray(self.most_pages)[block]
        ahead = np.ceil((arrival - time) / duration)
        ahead += time + ahead * duration < arrival
        ahead -= time + (ahead - 1) * duration >= arrival
        join = start + np.maximum(ahead.astype(np.int64), self.step - start)
        finish = np.concatenate([self.finishing(), join + new - 1])
        freed = np.concatenate([np.array([self.most_pages[i] for i in self.active], dtype=np.int64), most])
        order = np.argsort(finish)
        gone = np.searchsorted(finish, join, sorter=order)
        running = before + np.arange(len(join)) - gone
        committed = self.committed + np.cumsum(most) - np.concatenate([[0], np.cumsum(freed[order])])[gone]
        idle = (running == 0) & (time + (join - start) * duration > arrival)
        good = ~idle & (running < self.slots) & (committed <= self.total - np.where(running > 0, self.reserve, 0))
        stop_at = len(good) - 1 if good.all() else int(np.argmin(good))
        stop = finish[: before + stop_at].max(initial=self.step - 1) + 1 if idle[stop_at] else join[stop_at]
        stop = min(int(stop), self.max_steps)
        taken = int(np.searchsorted(join, stop))

        rows = (np.arange(first, first + taken), join[:taken], prompt[:taken], np.full(taken, _GROWS | _ADMITTED))
        self.lives += np.column_stack(rows).tobytes()
        self.events += 1 + np.count_nonzero(np.diff(join[:taken])) if taken else 0
        self.step, self.now = stop, time + (stop - start) * duration
        self.queue.skip(taken)
        self.retire()
        lasting = np.flatnonzero(finish[before : before + taken] >= stop)
        self.committed += int(most[lasting].sum())
        births = (join - prompt)[lasting]
        self.births += int(births.sum())
        self.active.update(zip((first + lasting).tolist(), births.tolist(), strict=True))
        self.finishes.extend((finish[before + lasting] * self.count + first + lasting).tolist())
        heapify(self.finishes)
        if self.pages is not None:
            for birth in births.tolist():
                self.pages.add(birth)
        self.patience = 32 if taken >= 64 else 2 * self.patience
        self.glide_at = self.events + (0 if taken >= 64 else self.patience)

    def coast(self):
        """Go on to the first step that needs a closer look, and up to the first request that does.

        This is the loop of `run` for the case in which all but slots is plentiful. It is where an uncontended run
        spends its time, so the state is in local variables and nothing is called that need not be.
        """
        queue, count, slots, total, reserve = self.queue, self.count, self.slots, self.total, self.reserve
        arrival, prompt, target, most_pages = queue.arrival, self.prompt, self.target, self.most_pages
        active, finishes, pages, lives = self.active, self.finishes, self.pages, self.lives
        base, per_request, per_kv, prefill = self.base, self.per_request, self.per_kv, self.per_prefill - self.per_kv
        step, now, births, committed = self.step, self.now, self.births, self.committed
        i, upcoming, last, max_steps = queue.next, queue.upcoming, len(arrival), self.max_steps
        (start, time, even), clock, events = self.piece, self.clock, self.events
        pause = self.glide_at if upcoming < math.inf else math.inf
        while True:
            limit = step * count
            while finishes and finishes[0] < limit:
                done = heappop(finishes) % count
                birth = active.pop(done)
                births -= birth
                committed -= most_pages[done]
                if pages is not None:
                    pages.add(birth, -1)
            running = before = len(active)
            left = self.budget - running
            prefilled = 0
            scarce = step >= max_steps
            while upcoming <= now and running < slots and not scarce:
                context, most = prompt[i], most_pages[i]
                if context > left or committed + most > (total - reserve if running else total):
                    scarce = True
                    break
                active[i] = birth = step - context
                births += birth
                committed += most
                heappush(finishes, (birth + target[i] - 1) * count + i)
                lives += _LIFE(i, step, context, _GROWS | _ADMITTED)
                if pages is not None:
                    pages.add(birth)
                running += 1
                prefilled += context
                left -= context
                i += 1
                upcoming = arrival[i] if i < last else math.inf
            extra = prefilled * prefill
            if scarce or not running or events >= pause:
                break
            duration = base + per_request * running + per_kv * (running * step - births)
            growth = per_kv * running
            until = upcoming if upcoming > now else math.inf  # else it waits for a slot
            if extra:
                duration, growth, steps = duration + extra, 0.0, 1
            else:
                # A completion is an event if it changes the time of a step, or may let somebody in.
                finish = max(finishes) if self.is_even and upcoming == math.inf else finishes[0]
                steps = min(finish // count + 1, max_steps) - step
            if growth or duration != even or now != time + (step - start) * duration:
                start, time, even = step, now, -1.0 if growth else duration
                clock += _PIECE(step, now, duration, growth)
            ahead = step - start
            end = time + (ahead + steps) * duration + growth * steps * (steps - 1) / 2
            if until < end:
                steps, end = _steps_until(until, ahead, time, duration, growth)
            step += steps
            now = end
            events += 1
        self.events, self.piece = events, (start, time, even)
        queue.next, queue.upcoming = i, upcoming
        self.step, self.now, self.births, self.committed = step, now, births, committed
        self.fresh, self.extra, self.left = list(active)[before:], extra, left

    def retire(self):
        """Let those go whose last token came before this step."""
        finishes, limit = self.finishes, self.step * self.count
        while finishes and finishes[0] < limit:
            i = heappop(finishes) % self.count
            birth = self.active.pop(i)
            self.births -= birth
            self.committed -= self.most_pages[i]
            if self.pages is not None:
                self.pages.add(birth, -1)

    def admit(self):
        """Admit from the head of the queue; return the head if it has to wait."""
        queue, total = self.queue, self.total
        self.watch = True
        head = queue.head(self.now)
        if head is None:
            return None
        running = len(self.active) + (self.partial is not None)
        closed = self.policy.batching == "static" and running
        taken = None
        while head is not None:
            if running == self.slots or closed:
                self.watch = False
                return head
            if not self.left:
                self.retry = True
                return head
            context = self.prompt[head] + self.kept.get(head, 0)
            chunk = min(context, self.left)
            most = self.most_pages[head]
            room = total - self.reserve if running else total
            if self.committed + most > room:  # else it fits, as nobody ever holds more than is committed
                if taken is None:
                    taken = self.taken()
                if taken + (most if self.reserving else self.pages_for(chunk)) > room:
                    self.watch = self.policy.admission != "fifo" and not queue.returned
                    return head
            if taken is not None:
                taken += most if self.reserving else self.pages_for(chunk)
            queue.take()
            running += 1
            self.left -= chunk
            self.committed += most
            if chunk == context:
                self.join(head, context, chunk, _ADMITTED)
            else:
                self.partial, self.computed, self.chunk = head, chunk, chunk
                self.lives += _LIFE(head, self.step, chunk, _HOLDS | _ADMITTED)
                self.extra += self.per_request + self.per_prefill * chunk
            head = queue.head(self.now)
        return None

    def taken(self):
        """Return the pages that a newcomer finds taken: held, or just given to those that ask before it."""
        if self.reserving:
            return self.committed
        if not self.running_first:
            return self.tracked().held(self.step)
        yet_to_ask = sum((self.step - self.active[i]) % self.page_size == 0 for i in self.fresh)
        return self.demand() - yet_to_ask

    def start(self, i, birth):
        self.active[i] = birth
        self.births += birth
        heappush(self.finishes, (birth + self.target[i] - 1) * self.count + i)
        if self.pages is not None:
            self.pages.add(birth)

    def join(self, i, context, chunk, admitted=0):
        """Let a request decode from this step on, which has prefilled its last chunk in it."""
        self.start(i, self.step - context)
        self.lives += _LIFE(i, self.step, context, _GROWS | admitted)
        self.fresh.append(i)
        # The cost of a decoding request counts its whole context as cache; what is new in this step is not yet there.
        self.extra += chunk * (self.per_prefill - self.per_kv)

    def idle(self, head):
        """Wait for the next arrival, or find that the head of the queue fits into no empty pool."""
        upcoming, steps_left = self.queue.upcoming, self.max_steps - self.step
        if head is not None and (upcoming == math.inf or self.queue.returned or self.policy.admission == "fifo"):
            chunk = min(self.prompt[head] + self.kept.get(head, 0), self.budget)
            need = self.most_pages[head] if self.reserving else self.pages_for(chunk)
            self.deadlock = (self.step, [head], need - self.total)
            self.tick(1, self.base)
            return
        steps = max(1, math.ceil((upcoming - self.now) / self.base)) if self.base else 1
        self.tick(min(steps, steps_left), self.base)
        if steps <= steps_left:
            self.now = upcoming

    def advance(self):
        """Go to the next event: every active request gains a token a step until then."""
        for i in self.stalled:
            self.lives += _LIFE(i, self.step, self.step - self.active[i], _GROWS)
        self.stalled.clear()
        count, step = len(self.active), self.step
        duration = self.base + self.per_request * count + self.per_kv * (count * step - self.births)
        if self.retry or self.extra or self.partial is not None:
            self.tick(1, duration + self.extra)
            return
        steps = self.finishes[0] // self.count + 1 - step
        if self.committed > self.total:
            steps = min(steps, self.pages.first_short(step, self.total) - step)
        steps = min(steps, self.max_steps - step)
        self.tick(steps, duration, self.per_kv * count, self.queue.upcoming if self.watch else math.inf)

    def tick(self, steps, duration, growth=0.0, until=math.inf):
        """Let some steps pass, the first of a given duration, but stop at the first that starts at `until` or later."""
        start, time, even = self.piece
        if growth or duration != even or self.now != time + (self.step - start) * duration:
            start, time = self.step, self.now
            self.piece = start, time, -1.0 if growth else duration
            self.clock += _PIECE(start, time, duration, growth)
        ahead = self.step - start
        end = _time_after(ahead + steps, time, duration, growth)
        if until < end:
            steps, end = _steps_until(until, ahead, time, duration, growth)
        self.step += steps
        self.now = end

    # -----------------------------------------------------------------------------------------------------------------
    # The contended step
    # -----------------------------------------------------------------------------------------------------------------

    def pages_for(self, tokens):
        return -(-tokens // self.page_size)

    def tracked(self):
        """Return the page count of the active requests, which is kept from its first use on."""
        if self.pages is None:
            self.pages = _PageCount(self.page_size, self.active.values())
        return self.pages

    def demand(self, chunk=0):
        """Return the pages at the end of this step if everyone decodes and the partial request prefills a chunk."""
        partial = 0 if self.partial is None else self.pages_for(self.computed + chunk)
        return self.tracked().held(self.step + 1) + partial

    def is_short(self, chunk=0):
        return self.demand(chunk) > self.total

    def next_chunk(self, decoding):
        """Return how many tokens the partial request prefills next to some that decode."""
        context = self.prompt[self.partial] + self.kept.get(self.partial, 0)
        return min(context - self.computed, self.budget - decoding)

    def ask_running(self):
        """Let running requests ask first; return whether that was the whole step because one of them stalled."""
        contended = self.committed > self.total
        if contended and self.evicting:
            self.make_room()
        chunk = 0 if self.partial is None else self.next_chunk(len(self.active))
        if contended and self.evicting:
            self.make_room(chunk)
        if contended and self.is_short(chunk):
            self.visit()
            return True
        if self.partial is not None:
            self.prefill(chunk)
        return False

    def contend(self):
        """Resolve a shortage after admission; return whether that was the whole step because one request stalled."""
        if self.evicting:
            self.make_room()
            if not self.is_short():
                return False
        self.visit()
        return True

    def prefill(self, chunk):
        """Prefill a chunk of the partial request."""
        i, before = self.partial, self.computed
        self.chunk = chunk
        self.left -= chunk
        self.computed += chunk
        if self.computed == self.prompt[i] + self.kept.get(i, 0):
            self.partial = None
            self.join(i, self.computed, chunk)
        else:
            self.lives += _LIFE(i, self.step, self.computed, _HOLDS)
            self.extra += self.per_request + self.per_kv * before + self.per_prefill * chunk

    def make_room(self, chunk=0):
        """Evict until those left have room, or one is left.

        The order of asking does not show: no victim depends on who asks, and an eviction is needed as long as those
        that are left do not fit together.
        """
        while self.is_short(chunk) and len(self.active) + (self.partial is not None) > 1:
            self.evict(self.victim())
            self.retry = True

    def victim(self):
        rule = self.policy.victim
        if rule == "latest":
            return next(reversed(self.active)) if self.partial is None else self.partial
        running = [*self.active, *([] if self.partial is None else [self.partial])]
        if rule == "fewest_tokens":
            return min(reversed(running), key=self.generated)
        views = [_view(self.workload, i, self.generated(i), self.pages_for(self.cached(i))) for i in running]
        return running[_index_of_choice("victim", rule, views)]

    def finishing(self):
        """Return the step of the last token of each active request."""
        return np.array([birth + self.target[i] - 1 for i, birth in self.active.items()], dtype=np.int64)

    def cached(self, i):
        return self.computed if i == self.partial else self.step - self.active[i]

    def generated(self, i):
        return self.kept.get(i, 0) if i == self.partial else self.cached(i) - self.prompt[i]

    def evict(self, i):
        cached, self.kept[i] = self.cached(i), self.generated(i)
        if i == self.partial:
            self.partial = None
        else:
            birth = self.active.pop(i)
            self.births -= birth
            self.pages.add(birth, -1)
            self.finishes.remove((birth + self.target[i] - 1) * self.count + i)
            heapify(self.finishes)
            if i in self.fresh:  # it took part: it prefilled
                self.fresh.remove(i)
                self.extra += self.per_request + self.per_kv * cached
        self.committed -= self.most_pages[i]
        self.queue.returned.append(i)
        self.lives += _LIFE(i, self.step, cached, _GONE)

    def visit(self):
        """Execute one step in which someone stalls, request by request."""
        step, newly_partial = self.step, self.chunk > 0
        chunk = 0 if self.partial is None or newly_partial else self.next_chunk(len(self.active))
        missing = self.demand(chunk) - self.total
        free = self.total - self.pages.held(step) - (self.pages_for(self.computed) if self.partial is not None else 0)
        decoding = cache = 0
        for i in [*self.active, self.partial]:
            if i == self.partial:
                if i is None or newly_partial:
                    continue
                chunk = self.next_chunk(decoding)
                need = self.pages_for(self.computed + chunk) - self.pages_for(self.computed)
                if need > free:
                    continue
                free -= need
                self.prefill(chunk)
                if i == self.partial:
                    continue
            tokens = step - self.active[i]
            if tokens % self.page_size == 0 and not free:
                self.stall(i, tokens)
                continue
            free -= tokens % self.page_size == 0
            if i in self.stalled:
                self.stalled.remove(i)
                self.lives += _LIFE(i, step, tokens, _GROWS)
            decoding += 1
            cache += tokens
            if tokens + 1 == self.target[i] and not self.running_first:
                free += self.pages_for(tokens + 1)
        self.finishes = [(birth + self.target[i] - 1) * self.count + i for i, birth in self.active.items()]
        heapify(self.finishes)
        if not (decoding or self.fresh or self.chunk):
            self.deadlock = (step, [*self.active, *([] if self.partial is None else [self.partial])], missing)
        self.tick(1, self.base + self.per_request * decoding + self.per_kv * cache + self.extra)

    def stall(self, i, tokens):
        birth = self.active[i]
        self.active[i] = birth + 1
        self.births += 1
        self.pages.add(birth, -1)
        self.pages.add(birth + 1)
        if i in self.fresh:  # it took part: it prefilled
            self.extra += self.per_request + self.per_kv * tokens
        if i not in self.stalled:
            self.stalled.add(i)
            self.lives += _LIFE(i, self.step, tokens, _HOLDS)


def _most_pages(workload, server, policy):
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


def _time_after(steps, time, duration, growth):
    """Return the time after some steps, of which the first takes `duration` and each next one `growth` more."""
    return time + steps * duration + growth * steps * (steps - 1) / 2


def _steps_until(until, ahead, time, duration, growth):
    """Return how many steps, after `ahead` of them, it takes to reach a time, and the time at their end."""
    wait = until - time
    if growth:  # the positive root of wait = slope * k + growth * k**2 / 2
        slope = duration - growth / 2
        steps = math.ceil(2 * wait / (slope + math.sqrt(slope * slope + 2 * growth * wait)))
    else:
        steps = math.ceil(wait / duration)
    steps = max(steps, ahead + 1)  # and then to the step on which rounding has no say
    while (end := time + steps * duration + growth * steps * (steps - 1) / 2) < until:
        steps += 1
    while steps > ahead + 1:
        earlier = time + (steps - 1) * duration + growth * (steps - 1) * (steps - 2) / 2
        if earlier < until:
            break
        steps, end = steps - 1, earlier
    return steps - ahead, end


# ---------------------------------------------------------------------------------------------------------------------
# The result: everything is read off two logs, what requests did from when on, and how long steps took
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deadlock:
    """Why a run could not go on.

    Parameters
    ----------
    step : int
        The step, the last of the run, in which nothing could happen.
    stalled : tuple of str
        Ids of the requests that are short of pages: all that run, or the head of a queue that fits into no empty pool.
    missing_pages : int
        Pages that the pool lacks for all of them to take their next step.
    """

    step: int
    stalled: tuple
    missing_pages: int
    _setting: tuple = field(repr=False, compare=False)

    @cached_property
    def smallest_pool(self):
        """Pages of the smallest larger pool with which the run finishes, found by running it.

        Whether a run finishes does not only turn with the size of the pool: a larger one may admit the very request
        that a deadlock takes. So every size is tried in turn, up to 64 more than any that could do, and what is
        returned is the smallest. Beyond, a bisection finds a size that finishes where one page less does not; between
        this pool and that one there may be others. A pool smaller than this one is never tried.
        """
        workload, server, policy = self._setting

        def finishes(pages):
            return simulate(workload, replace(server, total_pages=pages), policy).deadlock is None

        least = max(server.total_pages + 1, int(_most_pages(workload, server, policy).max()))
        for pages in range(least, least + 64):
            if finishes(pages):
                return pages
        short, enough = pages, 2 * pages
        while not finishes(enough):
            short, enough = enough, 2 * enough
        while enough - short > 1:
            middle = (short + enough) // 2
            short, enough = (short, middle) if finishes(middle) else (middle, enough)
        return enough


class Result:
    """What happened in a run.

    Attributes
    ----------
    workload : Workload
    server : Server
    policy : Policy
    steps : int
        Steps that the run took, idle ones included.
    events : int
        Steps that the engine visited.
    duration : float
        Time at the end of the last step. Times are in seconds if `server.step_time` has units, else in its unit.
    admitted, first_token, finished : ndarray of float, shape (n,)
        Times at which each request was first admitted (the start of a step), had its first token, and had its last
        (the end of a step), in the workload's order; NaN where that never happened.
    admitted_step, first_token_step, finished_step : ndarray of int, shape (n,)
        The steps of the same; -1 where that never happened.
    generated : ndarray of int, shape (n,)
        Tokens that each request was given.
    preemptions, recomputed_tokens : ndarray of int, shape (n,)
        How often each request was evicted, and how many tokens its cache held when it was: each is prefilled again.
    waiting : list of str
        Ids that are not running at the end and have not completed, in the order of the queue, future arrivals last.
    active : list of dict
        Requests that run at the end, in order of admission, with their `id`, `generated` tokens and `pages`.
    deadlock : Deadlock or None
        Why the run stopped, if it could not go on.
    """

    def __init__(self, engine):
        self.workload, self.server, self.policy = engine.workload, engine.server, engine.policy
        self.steps, self.events, self.duration = engine.step, engine.events, engine.now
        engine.clock += _PIECE(engine.step, engine.now, 0.0, 0.0)
        self.clock = np.frombuffer(engine.clock, dtype=np.float64).reshape(-1, 4)
        self._lives = np.frombuffer(engine.lives, dtype=np.int64).reshape(-1, 4)
        self._most_pages = np.asarray(engine.most_pages)
        who, step, tokens, does = self._lives.T
        self._end, self._complete = self._ends(np.asarray(engine.target))

        emits = ((does & _GROWS) > 0) & (self._end > step)
        self.admitted_step = self._first(who, step, (does & _ADMITTED) > 0)
        self.first_token_step = self._first(who, step, emits)
        self.finished_step = self._first(who, self._end - 1, self._complete)
        self.admitted = self._time_of(self.admitted_step, 0)
        self.first_token = self._time_of(self.first_token_step, 1)
        self.finished = self._time_of(self.finished_step, 1)

        gone = does == _GONE
        self.generated = self._per_request(who[emits], (self._end - step)[emits])
        self.preemptions = self._per_request(who[gone], None)
        self.recomputed_tokens = self._per_request(who[gone], tokens[gone])

        names = self.workload.id
        running = [*engine.active, *([] if engine.partial is None else [engine.partial])]
        self.active = [
            {
                "id": names[i],
                "generated": int(self.generated[i]),
                "pages": int(engine.most_pages[i]) if engine.reserving else engine.pages_for(engine.cached(i)),
            }
            for i in running
        ]
        self.waiting = [names[i] for i in engine.queue.in_order()]
        self.deadlock = None
        if engine.deadlock is not None:
            step, stalled, missing = engine.deadlock
            setting = (self.workload, self.server, self.policy)
            self.deadlock = Deadlock(step, tuple(names[i] for i in stalled), missing, setting)

    def __repr__(self):
        completed = int((self.finished_step >= 0).sum())
        stuck = "" if self.deadlock is None else f", {self.deadlock}"
        return f"<Result: {completed} of {len(self.workload)} requests completed in {self.steps} steps{stuck}>"

    def _ends(self, target):
        """Return the step at which each life ends, and whether it ends because the request completes."""
        who, step, tokens, does = self._lives.T
        order = np.argsort(who, kind="stable")
        next_one = np.full(len(who), self.steps)
        followed = np.flatnonzero(who[order[:-1]] == who[order[1:]])
        next_one[order[followed]] = step[order[followed + 1]]
        natural = step + target[who] - tokens
        complete = ((does & _GROWS) > 0) & (natural <= next_one)
        return np.where(complete, natural, next_one), complete

    def _first(self, who, step, mask):
        """Return the first step of each request among some rows of the log of lives, or -1."""
        first = np.full(len(self.workload), -1)
        first[who[mask][::-1]] = step[mask][::-1]
        return first

    def _per_request(self, who, weights):
        return np.bincount(who, weights, minlength=len(self.workload)).astype(np.int64)

    def _time_of(self, step, after):
        """Return the time at the start of each step (or some steps later), NaN where the step is -1."""
        time = np.full(len(step), np.nan)
        time[step >= 0] = self.start_of(step[step >= 0] + after)
        return time

    def start_of(self, steps):
        """Return the times at which steps start; step number `steps` starts where the run ends.

        Parameters
        ----------
        steps : array_like of int
            From 0 to `self.steps`.

        Returns
        -------
        ndarray of float
        """
        steps = np.asarray(steps, dtype=np.int64)
        first, time, duration, growth = self.clock.T
        piece = np.searchsorted(first, steps, side="right") - 1
        return _time_after(steps - first[piece], time[piece], duration[piece], growth[piece])

    def pages_at(self, steps):
        """Return the pages in use at the end of steps.

        Parameters
        ----------
        steps : array_like of int
            From 0 to one less than `self.steps`, in any order.

        Returns
        -------
        ndarray of int

        Examples
        --------
        >>> workload = Workload(["a"], [0], prompt_tokens=[3], new_tokens=[4])
        >>> simulate(workload, Server(page_size=4, total_pages=4, slots=1)).pages_at([0, 1, 2, 3]).tolist()
        [1, 2, 2, 0]
        """
        steps = np.asarray(steps, dtype=np.int64)
        who, start, tokens, does = self._lives.T
        until = self._end - self._complete  # a request that completes in a step holds no pages at its end
        held = (does & (_GROWS | _HOLDS)) > 0
        if self.policy.allocation != "paged":
            return _sum_over(start[held], until[held], self._most_pages[who[held]], steps)
        grows, holds = (does & _GROWS) > 0, (does & _HOLDS) > 0
        standing = -(-tokens[holds] // self.server.page_size)
        pages = _sum_over(start[holds], until[holds], standing, steps)
        # As in _PageCount: count * wave - waves, and one more for each request whose phase has come.
        start, until, birth = start[grows], until[grows], (start - tokens)[grows]
        wave, phase = np.divmod(steps + 1, self.server.page_size)
        waves, phases = np.divmod(birth, self.server.page_size)
        pages += wave * _sum_over(start, until, 1, steps) - _sum_over(start, until, waves, steps)
        for turn in np.unique(phase):
            come, at = phases < turn, phase == turn
            pages[at] += _sum_over(start[come], until[come], 1, steps[at])
        return pages

    def tokens_at(self, steps):
        """Return the tokens in the cache at the end of steps.

        Parameters
        ----------
        steps : array_like of int
            From 0 to one less than `self.steps`, in any order.

        Returns
        -------
        ndarray of int

        Examples
        --------
        >>> workload = Workload(["a"], [0], prompt_tokens=[3], new_tokens=[4])
        >>> simulate(workload, Server(page_size=4, total_pages=4, slots=1)).tokens_at([0, 1, 2, 3]).tolist()
        [4, 5, 6, 0]
        """
        steps = np.asarray(steps, dtype=np.int64)
        _, start, tokens, does = self._lives.T
        until = self._end - self._complete
        grows, holds = (does & _GROWS) > 0, (does & _HOLDS) > 0
        total = _sum_over(start[holds], until[holds], tokens[holds], steps)
        start, until, birth = start[grows], until[grows], (start - tokens)[grows]
        return total + (steps + 1) * _sum_over(start, until, 1, steps) - _sum_over(start, until, birth, steps)

    def timeline(self):
        """Return the page occupancy over time, at every event and at the step before it.

        Returns
        -------
        time : ndarray of float
            Ends of steps, ascending.
        pages : ndarray of int
            Pages in use then. Between two of these points the pages in use rise evenly, to within rounding to pages.

        Examples
        --------
        >>> workload = Workload(["a"], [0], prompt_tokens=[3], new_tokens=[4])
        >>> time, pages = simulate(workload, Server(page_size=4, total_pages=4, slots=1)).timeline()
        >>> time.tolist(), pages.tolist()
        ([1.0, 3.0, 4.0], [1, 2, 0])
        """
        edges = np.concatenate([self._lives[:, 1], self._end - self._complete])
        steps = np.unique(np.concatenate([edges - 1, edges]))
        steps = steps[(steps >= 0) & (steps < self.steps)]
        return self.start_of(steps + 1), self.pages_at(steps)

    def itl_runs(self):
        """Return all gaps between consecutive tokens of a request, pooled over requests, as runs of equal gaps.

        Returns
        -------
        gaps : ndarray of float
            The different gaps, ascending.
        counts : ndarray of int
            How many there are of each. A gap belongs to the later token; a first token has none.

        Examples
        --------
        >>> workload = Workload(["a", "b"], [0, 0], prompt_tokens=[3, 3], new_tokens=[4, 4])
        >>> step_time = StepTime(base=1, per_request=1)
        >>> gaps, counts = simulate(workload, Server(4, 4, 2, step_time)).itl_runs()
        >>> gaps.tolist(), counts.tolist()
        ([3.0], [6])
        """
        who, start, _, does = self._lives.T
        emits = ((does & _GROWS) > 0) & (self._end > start)
        who, start, end = who[emits], start[emits], self._end[emits]
        # Gaps across an interruption (a stall, a preemption), one for each pair of lives of a request:
        order = np.argsort(who, kind="stable")
        again = np.flatnonzero(who[order[:-1]] == who[order[1:]])
        gaps = [self.start_of(start[order[again + 1]] + 1) - self.start_of(end[order[again]])]
        counts = [np.ones(len(again), dtype=np.int64)]
        # Gaps within a life, one for each step but its first: that step's duration. Steps of a piece without growth
        # are alike; the others are taken one by one.
        first, _, duration, growth = self.clock.T
        first = first.astype(np.int64)
        length = np.diff(first, append=self.steps)
        even = growth == 0
        tokens_before = np.sort(start + 1), np.sort(end)
        gaps.append(duration[even])
        counts.append(_tokens_until(first + length, *tokens_before)[even] - _tokens_until(first, *tokens_before)[even])
        piece = np.repeat(np.flatnonzero(~even), length[~even])
        ahead = np.arange(len(piece)) - np.repeat(np.cumsum(length[~even]) - length[~even], length[~even])
        gaps.append(duration[piece] + growth[piece] * ahead)
        counts.append(_sum_over(start + 1, end, 1, first[piece] + ahead))
        gaps, inverse = np.unique(np.concatenate(gaps), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate(counts), minlength=len(gaps)).astype(np.int64)
        return gaps[counts > 0], counts[counts > 0]

    def window(self, first, last):
        """Return some steps in full, as `paged_continuous_batching` has them.

        Parameters
        ----------
        first, last : int
            The steps from `first` up to, but without, `last`; what lies outside the run is left out.

        Returns
        -------
        list of dict
            One a step: ``tick``, the ids ``admitted``, ``decoded`` and ``completed``, in order of admission, and the
            ``pages`` in use at its end; with preemption also the ids ``preempted``, in order of eviction.

        Examples
        --------
        >>> workload = Workload(["a"], [0], prompt_tokens=[1], new_tokens=[9])
        >>> simulate(workload, Server(page_size=4, total_pages=4, slots=1)).window(8, 10)
        [{'tick': 8, 'admitted': [], 'decoded': ['a'], 'completed': ['a'], 'pages': 0}]
        """
        first, last = max(first, 0), min(last, self.steps)
        names = ("admitted", "decoded", "completed") + (("preempted",) if self.policy.preemption != "none" else ())
        steps = [{"tick": step} | {name: [] for name in names} for step in range(first, last)]
        if not steps:
            return steps
        who, start, _, does = self._lives.T
        rows = np.flatnonzero((start < last) & ((self._end > first) | (start >= first)))
        seniority = self._seniority()[rows]
        for row in rows[np.argsort(seniority, kind="stable")].tolist():
            name, begin, end = self.workload.id[who[row]], int(start[row]), int(self._end[row])
            if does[row] & _ADMITTED and begin >= first:
                steps[begin - first]["admitted"].append(name)
            if does[row] & _GROWS:
                for step in range(max(begin, first), min(end, last)):
                    steps[step - first]["decoded"].append(name)
                if self._complete[row] and first < end <= last:
                    steps[end - 1 - first]["completed"].append(name)
        for row in rows[(does[rows] == _GONE) & (start[rows] >= first)].tolist():
            steps[start[row] - first]["preempted"].append(self.workload.id[who[row]])
        for step, pages in zip(steps, self.pages_at(np.arange(first, last)).tolist(), strict=True):
            step["pages"] = pages
        return steps

    def _seniority(self):
        """Return for each life the place of its admission in the order of all admissions."""
        who, _, _, does = self._lives.T
        order = np.argsort(who, kind="stable")
        admission = np.where(does[order] & _ADMITTED, order, 0)
        # The log is in order of time and every request's first row is its admission, so the latest one so far is the
        # nearest above; rows of the request before it are smaller only by chance, hence the offset per request.
        offset = who[order] * len(who)
        seniority = np.empty(len(who), dtype=np.int64)
        seniority[order] = np.maximum.accumulate(admission + offset) - offset
        return seniority


def _sum_over(start, end, weight, at):
    """Return, at each step, the sum of weights over the intervals ``start <= step < end`` that it lies in."""
    weight = np.broadcast_to(weight, start.shape)
    total = 0
    for sign, edge in ((1, start), (-1, end)):
        order = np.argsort(edge, kind="stable")
        upto = np.concatenate([[0], np.cumsum(weight[order])])
        total = total + sign * upto[np.searchsorted(edge[order], at, side="right")]
    return total


def _tokens_until(step, start, end):
    """Return how many tokens are emitted before each step by lives that emit one in each step from start to end."""
    total = 0
    for sign, edge in ((1, start), (-1, end)):
        upto = np.concatenate([[0], np.cumsum(edge)])
        passed = np.searchsorted(edge, step)
        total = total + sign * (passed * step - upto[passed])
    return total

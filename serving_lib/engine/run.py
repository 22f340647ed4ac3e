"""A run: from event to event, exactly, at a cost that grows with events and not with tokens.

Between two events (an arrival that can be admitted, a completion, the first step that is short of pages) every running
request gains one token a step. So a request is one number, its *birth*: the step at which it would have held no tokens,
had it always grown. At step s it holds ``s - birth`` tokens, and sums over requests are closed forms in s.

The module reads in that order: the rules (in the docstring of `simulate`), the state, the next event, the contended
step. Where nothing is scarce a run does not even stop at each event: it coasts, or glides over many at once.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from ..units import check_count
from ..workload import Workload
from .result import ADMITTED, GONE, GROWS, HOLDS, Result, pack_life, pack_piece
from .settings import Policy, Server, most_pages
from .state import PageCount, Queue, index_of_choice, steps_until, time_after, view

NO_LIMIT = 2**53
"""Steps that a float counts exactly."""


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
    a step is idle and takes `base`, but the next arrival ends it early, so that nobody waits for an empty server; with
    a `base` of 0 it lasts to the next arrival. Admission is at the start of a step; a token, and so completion, comes
    at its end.

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
    max_steps = NO_LIMIT if max_steps is None else check_count("max_steps", max_steps, minimum=0)
    engine = _Engine(workload, server, policy, max_steps)
    engine.run()
    deadlock = None
    if engine.stuck is not None:
        step, stalled, missing_pages = engine.stuck
        setting = (workload, server, policy)
        deadlock = Deadlock(step, tuple(workload.id[i] for i in stalled), missing_pages, setting)
    return Result(engine, deadlock)


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
        """Pages of the smallest pool, larger than this one, with which the run finishes: found by running it.

        More pages need not help, as they may admit the very request that is one too many. So sizes are tried one by
        one, from the first that holds the largest request, and the answer is exact. Only if 64 of them fail, a
        bisection takes over: its answer finishes, and with one page less the run does not, but a smaller pool that
        finishes may have been passed over. Pools smaller than this one are never tried, though one may well finish.
        """
        workload, server, policy = self._setting

        def finishes(pages):
            return simulate(workload, replace(server, total_pages=pages), policy).deadlock is None

        least = max(server.total_pages + 1, int(most_pages(workload, server, policy).max()))
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
        self.most_pages = memoryview(most_pages(workload, server, policy))  # of each request, when it has all tokens

        self.step, self.now, self.events = 0, 0.0, 0
        self.queue = Queue(workload, policy.admission)
        self.active = {}  # birth of each decoding request, in order of admission
        self.finishes = []  # heap of (step of the last token) * count + index
        self.births = 0  # sum of births: tokens in the cache are len(active) * step - births
        self.committed = 0  # sum of most_pages over running requests: while it fits, no step can be short of pages
        self.pages = None  # PageCount of the active, kept from the first time that it does not fit
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
        self.stuck = None

    # -----------------------------------------------------------------------------------------------------------------
    # The loop: one turn an event
    # -----------------------------------------------------------------------------------------------------------------

    def run(self):
        """Go from event to event until nothing is left, nothing can happen, or the steps are used up."""
        while self.step < self.max_steps and self.stuck is None:
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
        return simple and not self.stalled and not self.queue.returned and self.committed <= self.total

    def glide(self):
        """Take the next arrivals at once, up to the first that finds something scarce, or the server idle.

        If all steps take the same time and nothing is scarce, the step in which a request joins follows from its
        arrival, the step in which it finishes follows from that, and sums over the finishes before a step tell who
        still runs in it.
        """
        self.tick(0, self.base)  # an idle server may just have been woken: steps count from there
        (start, time, duration), first, before = self.piece, self.queue.next, len(self.active)
        block = slice(first, first + 8192)
        columns = self.workload.arrival, self.workload.prompt_tokens, self.workload.new_tokens, self.most_pages
        arrival, prompt, new, most = (np.asarray(column)[block] for column in columns)
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

        rows = (np.arange(first, first + taken), join[:taken], prompt[:taken], np.full(taken, GROWS | ADMITTED))
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
        # Where something is always scarce, trying costs more than it saves: each time try half as often.
        self.patience = 32 if taken >= 64 else 2 * self.patience
        self.glide_at = self.events + (0 if taken >= 64 else self.patience)

    def coast(self):
        """Go on to the first step that needs a closer look, and up to the first request that does.

        This is the loop of `run` for the case in which all but slots and token budget is plentiful. It is where such a
        run spends its time, so the state is in local variables and nothing is called that need not be.
        """
        queue, count, slots, total, reserve = self.queue, self.count, self.slots, self.total, self.reserve
        arrival, prompt, target, most_pages = queue.arrival, self.prompt, self.target, self.most_pages
        active, finishes, pages, lives = self.active, self.finishes, self.pages, self.lives
        base, per_request, per_kv, per_prefill = self.base, self.per_request, self.per_kv, self.per_prefill
        partial, computed, budget = self.partial, self.computed, self.budget
        whole = 0 if partial is None else prompt[partial] + self.kept.get(partial, 0)
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
            before = len(active)
            left, prefilled, extra, scarce, retry = budget - before, 0, 0.0, False, False
            if step >= max_steps:
                break
            if partial is not None:
                chunk = min(whole - computed, left)
                left -= chunk
                computed += chunk
                if computed == whole:
                    active[partial] = birth = step - whole
                    births += birth
                    heappush(finishes, (birth + target[partial] - 1) * count + partial)
                    lives += pack_life(partial, step, whole, GROWS)
                    if pages is not None:
                        pages.add(birth)
                    partial, prefilled = None, chunk
                else:
                    lives += pack_life(partial, step, computed, HOLDS)
                    extra = per_request + per_kv * (computed - chunk) + per_prefill * chunk
            running = len(active) + (partial is not None)
            while upcoming <= now and running < slots:
                if not left:
                    retry = True
                    break
                context, most = prompt[i], most_pages[i]
                if committed + most > (total - reserve if running else total):
                    scarce = True
                    break
                committed += most
                if context > left:
                    partial, whole, computed, left = i, context, left, 0
                    lives += pack_life(i, step, computed, HOLDS | ADMITTED)
                    extra += per_request + per_prefill * computed
                else:
                    active[i] = birth = step - context
                    births += birth
                    heappush(finishes, (birth + target[i] - 1) * count + i)
                    lives += pack_life(i, step, context, GROWS | ADMITTED)
                    if pages is not None:
                        pages.add(birth)
                    prefilled += context
                    left -= context
                running += 1
                i += 1
                upcoming = arrival[i] if i < last else math.inf
            extra += prefilled * (per_prefill - per_kv)
            if scarce or not running or events >= pause:
                break
            decoding = running if partial is None else running - 1
            duration = base + per_request * decoding + per_kv * (decoding * step - births)
            growth = per_kv * decoding
            until = upcoming if upcoming > now else math.inf  # else it waits for a slot
            if extra or retry or partial is not None:
                duration, growth, steps = duration + extra, 0.0, 1
            else:
                # A completion is an event if it changes the time of a step, or may let somebody in.
                finish = max(finishes) if self.is_even and upcoming == math.inf else finishes[0]
                steps = min(finish // count + 1, max_steps) - step
            if growth or duration != even or now != time + (step - start) * duration:
                start, time, even = step, now, -1.0 if growth else duration
                clock += pack_piece(step, now, duration, growth)
            ahead = step - start
            end = time + (ahead + steps) * duration + growth * steps * (steps - 1) / 2
            if until < end:
                steps, end = steps_until(until, ahead, time, duration, growth)
            step += steps
            now = end
            events += 1
        self.events, self.piece = events, (start, time, even)
        queue.next, queue.upcoming = i, upcoming
        self.step, self.now, self.births, self.committed = step, now, births, committed
        self.partial, self.computed = partial, computed  # none in a scarce step: it would have taken the whole budget
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
                self.join(head, context, chunk, ADMITTED)
            else:
                self.partial, self.computed, self.chunk = head, chunk, chunk
                self.lives += pack_life(head, self.step, chunk, HOLDS | ADMITTED)
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
        """Let a request decode from this step on, in which its last chunk was prefilled."""
        self.start(i, self.step - context)
        self.lives += pack_life(i, self.step, context, GROWS | admitted)
        self.fresh.append(i)
        # The cost of a decoding request counts its whole context as cache; what is new in this step is not yet there.
        self.extra += chunk * (self.per_prefill - self.per_kv)

    def idle(self, head):
        """Wait for the next arrival, or find that the head of the queue fits into no empty pool."""
        upcoming, steps_left = self.queue.upcoming, self.max_steps - self.step
        if head is not None and (upcoming == math.inf or self.policy.admission == "fifo"):
            # It was never admitted: whoever has run before fits into an empty pool.
            need = self.most_pages[head] if self.reserving else self.pages_for(min(self.prompt[head], self.budget))
            self.stuck = (self.step, [head], need - self.total)
            self.tick(1, self.base)
            return
        steps = max(1, math.ceil((upcoming - self.now) / self.base)) if self.base else 1
        self.tick(min(steps, steps_left), self.base)
        if steps <= steps_left:
            self.now = upcoming

    def advance(self):
        """Go to the next event: every active request gains a token a step until then."""
        for i in self.stalled:
            self.lives += pack_life(i, self.step, self.step - self.active[i], GROWS)
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
            self.clock += pack_piece(start, time, duration, growth)
        ahead = self.step - start
        end = time_after(ahead + steps, time, duration, growth)
        if until < end:
            steps, end = steps_until(until, ahead, time, duration, growth)
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
            self.pages = PageCount(self.page_size, self.active.values())
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
            self.lives += pack_life(i, self.step, self.computed, HOLDS)
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
        running = self.running()
        if rule == "fewest_tokens":
            return min(reversed(running), key=self.generated)
        views = [view(self.workload, i, self.generated(i), self.pages_of(i)) for i in running]
        return running[index_of_choice("victim", rule, views)]

    def running(self):
        """Return all that run, in order of admission."""
        return [*self.active] if self.partial is None else [*self.active, self.partial]

    def pages_of(self, i):
        return self.most_pages[i] if self.reserving else self.pages_for(self.cached(i))

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
        self.lives += pack_life(i, self.step, cached, GONE)

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
                self.lives += pack_life(i, step, tokens, GROWS)
            decoding += 1
            cache += tokens
            if tokens + 1 == self.target[i] and not self.running_first:
                free += self.pages_for(tokens + 1)
        self.finishes = [(birth + self.target[i] - 1) * self.count + i for i, birth in self.active.items()]
        heapify(self.finishes)
        if not (decoding or self.fresh or self.chunk):
            self.stuck = (step, self.running(), missing)
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
            self.lives += pack_life(i, self.step, tokens, HOLDS)

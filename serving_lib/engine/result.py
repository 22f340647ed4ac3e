"""The result of a run: everything is read off two logs, what requests did from when on, and how long steps took."""

from struct import Struct

import numpy as np

from .state import time_after

# The log of lives has rows (request, step, tokens, what it does from that step on). A request grows by a token a step,
# holds what it has, or is gone, evicted with that many tokens. ADMITTED is added if it joins in that step.
GONE, HOLDS, GROWS, ADMITTED = 0, 1, 2, 4
pack_life = Struct("4q").pack

# The clock has rows (step, its start, its duration, growth of the duration from each step to the next).
pack_piece = Struct("4d").pack


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
    clock : ndarray of float, shape (k, 4)
        How time passed: from the step in the first column on, which starts at the second, steps take the third, and
        each one the fourth more than the one before.
    """

    def __init__(self, engine, deadlock):
        self.workload, self.server, self.policy = engine.workload, engine.server, engine.policy
        self.steps, self.events, self.duration = engine.step, engine.events, engine.now
        engine.clock += pack_piece(engine.step, engine.now, 0.0, 0.0)
        self.clock = np.frombuffer(engine.clock, dtype=np.float64).reshape(-1, 4)
        self._lives = np.frombuffer(engine.lives, dtype=np.int64).reshape(-1, 4)
        self._reserved = np.asarray(engine.most_pages) if engine.reserving else None
        who, step, tokens, does = self._lives.T
        self._end, self._complete = self._ends(np.asarray(engine.target))

        emits = ((does & GROWS) > 0) & (self._end > step)
        self.admitted_step = self._first(who, step, (does & ADMITTED) > 0)
        self.first_token_step = self._first(who, step, emits)
        self.finished_step = self._first(who, self._end - 1, self._complete)
        self.admitted = self._time_of(self.admitted_step, 0)
        self.first_token = self._time_of(self.first_token_step, 1)
        self.finished = self._time_of(self.finished_step, 1)

        gone = does == GONE
        self.generated = self._per_request(who[emits], (self._end - step)[emits])
        self.preemptions = self._per_request(who[gone], None)
        self.recomputed_tokens = self._per_request(who[gone], tokens[gone])

        names = self.workload.id
        self.waiting = [names[i] for i in engine.queue.in_order()]
        self.active = [
            {"id": names[i], "generated": int(self.generated[i]), "pages": engine.pages_of(i)} for i in engine.running()
        ]
        self.deadlock = deadlock

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
        complete = ((does & GROWS) > 0) & (natural <= next_one)
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
        return time_after(steps - first[piece], time[piece], duration[piece], growth[piece])

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
        >>> from serving_lib import Server, Workload, simulate
        >>> workload = Workload(["a"], [0], prompt_tokens=[3], new_tokens=[4])
        >>> simulate(workload, Server(page_size=4, total_pages=4, slots=1)).pages_at([0, 1, 2, 3]).tolist()
        [1, 2, 2, 0]
        """
        steps = np.asarray(steps, dtype=np.int64)
        who, start, tokens, does = self._lives.T
        until = self._end - self._complete  # a request that completes in a step holds no pages at its end
        held = (does & (GROWS | HOLDS)) > 0
        if self._reserved is not None:
            return _sum_over(start[held], until[held], self._reserved[who[held]], steps)
        grows, holds = (does & GROWS) > 0, (does & HOLDS) > 0
        standing = -(-tokens[holds] // self.server.page_size)
        pages = _sum_over(start[holds], until[holds], standing, steps)
        # As in PageCount: count * wave - waves, and one more for each request whose phase has come.
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
        >>> from serving_lib import Server, Workload, simulate
        >>> workload = Workload(["a"], [0], prompt_tokens=[3], new_tokens=[4])
        >>> simulate(workload, Server(page_size=4, total_pages=4, slots=1)).tokens_at([0, 1, 2, 3]).tolist()
        [4, 5, 6, 0]
        """
        steps = np.asarray(steps, dtype=np.int64)
        _, start, tokens, does = self._lives.T
        until = self._end - self._complete
        grows, holds = (does & GROWS) > 0, (does & HOLDS) > 0
        total = _sum_over(start[holds], until[holds], tokens[holds], steps)
        start, until, birth = start[grows], until[grows], (start - tokens)[grows]
        return total + (steps + 1) * _sum_over(start, until, 1, steps) - _sum_over(start, until, birth, steps)

    def running_at(self, steps):
        """Return how many requests hold pages at the end of steps.

        Parameters
        ----------
        steps : array_like of int
            From 0 to one less than `self.steps`, in any order.

        Returns
        -------
        ndarray of int

        Examples
        --------
        >>> from serving_lib import Server, Workload, simulate
        >>> workload = Workload(["a", "b"], [0, 1], prompt_tokens=[3, 3], new_tokens=[4, 4])
        >>> simulate(workload, Server(page_size=4, total_pages=4, slots=2)).running_at([0, 1, 2, 3, 4]).tolist()
        [1, 2, 2, 1, 0]
        """
        _, start, _, does = self._lives.T
        held = (does & (GROWS | HOLDS)) > 0
        return _sum_over(start[held], (self._end - self._complete)[held], 1, np.asarray(steps, dtype=np.int64))

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
        >>> from serving_lib import Server, Workload, simulate
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
        >>> from serving_lib import Server, StepTime, Workload, simulate
        >>> workload = Workload(["a", "b"], [0, 0], prompt_tokens=[3, 3], new_tokens=[4, 4])
        >>> step_time = StepTime(base=1, per_request=1)
        >>> gaps, counts = simulate(workload, Server(4, 4, 2, step_time)).itl_runs()
        >>> gaps.tolist(), counts.tolist()
        ([3.0], [6])
        """
        return merge_runs([self.itl_parts()])

    def itl_parts(self):
        """Return the gaps and counts of `itl_runs` as they come: in no order, equal ones apart, some with none."""
        who, start, _, does = self._lives.T
        emits = ((does & GROWS) > 0) & (self._end > start)
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
        steps = first[piece] + ahead  # ascending, and many more than there are lives
        edges = (np.bincount(np.searchsorted(steps, edge), minlength=len(steps) + 1) for edge in tokens_before)
        counts.append(np.cumsum(np.subtract(*edges))[:-1])
        return np.concatenate(gaps), np.concatenate(counts)

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
        >>> from serving_lib import Server, Workload, simulate
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
            if does[row] & ADMITTED and begin >= first:
                steps[begin - first]["admitted"].append(name)
            if does[row] & GROWS:
                for step in range(max(begin, first), min(end, last)):
                    steps[step - first]["decoded"].append(name)
                if self._complete[row] and first < end <= last:
                    steps[end - 1 - first]["completed"].append(name)
        for row in rows[(does[rows] == GONE) & (start[rows] >= first)].tolist():
            steps[start[row] - first]["preempted"].append(self.workload.id[who[row]])
        for step, pages in zip(steps, self.pages_at(np.arange(first, last)).tolist(), strict=True):
            step["pages"] = pages
        return steps

    def _seniority(self):
        """Return for each life the place of its admission in the order of all admissions."""
        who, _, _, does = self._lives.T
        order = np.argsort(who, kind="stable")
        admission = np.where(does[order] & ADMITTED, order, 0)
        # The log is in order of time and every request's first row is its admission, so the latest one so far is the
        # nearest above; rows of the request before it are smaller only by chance, hence the offset per request.
        offset = who[order] * len(who)
        seniority = np.empty(len(who), dtype=np.int64)
        seniority[order] = np.maximum.accumulate(admission + offset) - offset
        return seniority


def merge_runs(parts):
    """Return the different values of some pairs of values and counts, ascending, and how many there are of each."""
    values, counts = map(np.concatenate, zip(*parts, strict=True))
    values, inverse = np.unique(values, return_inverse=True)
    counts = np.bincount(inverse, counts, minlength=len(values)).astype(np.int64)
    return values[counts > 0], counts[counts > 0]


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

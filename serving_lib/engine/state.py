"""The state of a run in closed form: who waits, what a run of equal steps takes, and the pages at any later step."""

import math
from bisect import bisect_right
from heapq import heappop, heappush
from itertools import accumulate

from .settings import RequestView


class Queue:
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
            views = [view(self.workload, i) for i in self.arrived]
            self.chosen = self.arrived[index_of_choice("admission", self.rule, views)]
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


def view(workload, i, generated=0, pages=0):
    """Return what a rule of one's own sees of a request."""
    row = (column[i] for column in (workload.arrival, workload.prompt_tokens, workload.new_tokens))
    return RequestView(workload.id[i], *(number.item() for number in row), generated, pages)


def index_of_choice(name, rule, views):
    """Return the place, in a list of views, of the one that a rule chooses."""
    choice = rule(views)
    if choice not in views:
        raise ValueError(f"{name} must return one of the requests in its list, got {choice!r}")
    return views.index(choice)


class PageCount:
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
        """Count a request in, or out with sign -1."""
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
        waves, free = divmod(total - self.held(step), self.count)  # page_size steps take a page for each request
        phase = step % self.page_size
        taken = list(accumulate(self.phases[phase:] + self.phases[:phase]))
        return step + waves * self.page_size + bisect_right(taken, free)


def time_after(steps, time, duration, growth):
    """Return the time after some steps, of which the first takes `duration` and each next one `growth` more."""
    return time + steps * duration + growth * steps * (steps - 1) / 2


def steps_until(until, ahead, time, duration, growth):
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

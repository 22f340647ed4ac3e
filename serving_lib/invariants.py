"""What no rule of a scheduler may break, checked step by step on the records of a run."""

from collections import Counter

STRETCH = 4096  # steps that are looked at together; an hour of records would take much memory at once


def check_invariants(result):
    """Replay a run from its records, and return every invariant that it breaks.

    Parameters
    ----------
    result : Result
        A run of `simulate`. Its steps are counted again by hand: nothing that the engine computes in closed form is
        used to check it.

    Returns
    -------
    list of str
        One sentence for each kind of fault, about its first occurrence; empty if there is none.

    Notes
    -----
    - *Conservation*: every request has completed, runs, or waits, and only one of them.
    - *Pages*: no more are in use than there are, and as many as the running requests need. With a reservation they may
      be more; with chunked prefill the records do not tell how much of a prompt is there, and this is not checked.
    - *Slots*: no more requests run than there are slots.
    - *Tokens*: only who runs gets a token, one a step; who completes has all of its own, and nobody gets more.
    - *Time*: nobody is admitted before it arrives, and every later token has a later time.

    It visits every token: a second or so for a million.

    Examples
    --------
    >>> from serving_lib import Server, Workload, simulate
    >>> workload = Workload(["a", "b"], [0, 0], prompt_tokens=[8, 8], new_tokens=[4, 4])
    >>> check_invariants(simulate(workload, Server(page_size=4, total_pages=6, slots=2)))
    []
    """
    replay = _Replay(result)
    for first in range(0, result.steps, STRETCH):
        for step in result.window(first, first + STRETCH):
            replay.take(step)
    replay.end()
    return list(replay.faults.values())


class _Replay:
    """The state of a run, followed from record to record."""

    def __init__(self, result):
        workload = result.workload
        self.result, self.server = result, result.server
        columns = (workload.arrival, workload.prompt_tokens, workload.new_tokens)
        self.requests = dict(zip(workload.id, zip(*(c.tolist() for c in columns), strict=True), strict=True))
        self.cached = {}  # tokens of each running request
        self.generated = Counter()
        self.completed = Counter()
        self.chunked = result.policy.prefill_budget is not None
        self.reserving = result.policy.allocation != "paged"
        self.starts = result.start_of(range(result.steps + 1)).tolist()
        self.faults = {}

    def fault(self, kind, sentence):
        self.faults.setdefault(kind, f"{kind}: {sentence}")

    def take(self, step):
        """Apply one record to the state."""
        tick, where = step["tick"], f"at step {step['tick']}"
        for name in step["admitted"]:
            arrival, prompt, _ = self.requests[name]
            if name in self.cached or self.completed[name]:
                self.fault("conservation", f"{name!r} is admitted {where} for a second time")
            if arrival > self.starts[tick]:
                self.fault("time", f"{name!r} is admitted {where}, before it arrives")
            self.cached[name] = prompt + self.generated[name]
        # After the admissions, for a step may evict whom it has just admitted; one that evicts first admits nobody.
        for name in step.get("preempted", ()):
            if self.cached.pop(name, None) is None:
                self.fault("conservation", f"{name!r} is evicted {where}, but does not run")
        if len(self.cached) > self.server.slots:
            self.fault("slots", f"{len(self.cached)} requests run {where}, in {self.server.slots} slots")
        if len(set(step["decoded"])) < len(step["decoded"]):
            self.fault("tokens", f"a request gets two tokens {where}")
        for name in step["decoded"]:
            if name not in self.cached:
                self.fault("tokens", f"{name!r} gets a token {where}, but does not run")
                continue
            self.cached[name] += 1
            self.generated[name] += 1
        for name in step["completed"]:
            new = self.requests[name][2]
            if self.generated[name] != new:
                self.fault("tokens", f"{name!r} completes {where} with {self.generated[name]} of {new} tokens")
            if self.cached.pop(name, None) is None:
                self.fault("conservation", f"{name!r} completes {where}, but does not run")
            self.completed[name] += 1
        self.check_pages(step["pages"], where)
        if not self.starts[tick + 1] > self.starts[tick]:
            self.fault("time", f"the clock does not move {where}")

    def check_pages(self, pages, where):
        if pages > self.server.total_pages:
            self.fault("pages", f"{pages} are in use {where}, of {self.server.total_pages}")
        needed = sum(-(-tokens // self.server.page_size) for tokens in self.cached.values())
        if not self.chunked and (pages < needed or (pages > needed and not self.reserving)):
            self.fault("pages", f"{pages} are in use {where}, but the running requests need {needed}")

    def end(self):
        """Compare the last state with what the run says of its end."""
        result = self.result
        running = [request["id"] for request in result.active]
        counts = Counter(running) + Counter(result.waiting) + self.completed
        for name in self.requests:
            if counts[name] != 1:
                self.fault("conservation", f"{name!r} is counted {counts[name]} times among completed, active, waiting")
        if set(running) != set(self.cached):
            self.fault("conservation", "those who run at the end are not those who were admitted and have not left")
        for name, tokens in zip(result.workload.id, result.generated.tolist(), strict=True):
            if tokens != self.generated[name]:
                self.fault("tokens", f"{name!r} is said to have {tokens} tokens, and got {self.generated[name]}")

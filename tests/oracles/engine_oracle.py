"""The engine once more, step by step and token by token, from the sentences of `simulate`'s docstring.

It shares no code with the library and skips nothing: every step visits every running request. Numbers are Python ints
as long as the arguments are, so that comparison is exact.
"""

from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace


@dataclass
class Request:
    """A request, and what has become of it."""

    id: str
    arrival: int
    prompt_tokens: int
    new_tokens: int
    place: int  # in the workload
    reserved: int | None = None  # pages, if they are reserved
    generated: int = 0
    cached: int = 0  # tokens in its cache
    pages: int = 0
    cached_before: int = 0  # tokens in its cache at the start of this step
    admitted: int | None = None
    first_token: int | None = None
    finished: int | None = None
    preemptions: int = 0
    recomputed_tokens: int = 0
    token_times: list = field(default_factory=list)

    @property
    def context(self):
        """Tokens to prefill before it can decode."""
        return self.prompt_tokens + self.generated

    @property
    def decoding(self):
        return self.cached >= self.context


def engine_oracle(
    requests,
    page_size,
    total_pages,
    slots,
    *,
    base=1,
    per_request=0,
    per_kv_token=0,
    per_prefill_token=0,
    batching="continuous",
    allocation="paged",
    admission="fifo",
    preemption="none",
    victim="latest",
    watermark=0.0,
    prefill_budget=None,
    max_model_len=None,
    max_steps=inf,
):
    """Return the steps, the requests in the workload's order, and how it ended."""
    everyone = [
        Request(place=place, **request) for place, request in enumerate(sorted(requests, key=lambda r: r["arrival"]))
    ]
    longest = max_model_len or max((r.prompt_tokens + r.new_tokens for r in everyone), default=1)
    budget = inf if prefill_budget is None else prefill_budget
    vllm_order = preemption == "recompute" or prefill_budget is not None

    def pages_for(tokens):
        return (tokens + page_size - 1) // page_size

    for r in everyone:
        if allocation == "reserve_max":
            r.reserved = pages_for(longest)
        elif allocation == "reserve_pow2":
            power = 1
            while power < r.new_tokens:
                power *= 2
            r.reserved = pages_for(min(r.prompt_tokens + power, max_model_len or inf))
        elif allocation == "reserve_exact":
            r.reserved = pages_for(r.prompt_tokens + r.new_tokens)

    future = list(everyone)
    arrived, returned, running = [], [], []
    steps, now, deadlock, tokens_in_cache = [], 0, None, []

    def head():
        if returned:
            return returned[0]
        if not arrived:
            return None
        if admission == "fifo":
            return arrived[0]
        if admission == "shortest_first":
            return min(arrived, key=lambda r: r.new_tokens)
        return admission(arrived)

    def in_use():
        return sum(r.pages for r in running)

    def set_pages(r):
        r.pages = pages_for(r.cached) if r.reserved is None else r.reserved

    def pages_with(r, tokens):
        return pages_for(r.cached + tokens) if r.reserved is None else r.reserved

    def evict(r, step):
        running.remove(r)
        if r in step.granted:
            step.granted.remove(r)
            step.budget += 1
        step.preempted.append(r)
        returned.insert(0, r)
        r.preemptions += 1
        r.recomputed_tokens += r.cached
        r.cached = r.pages = 0

    def choose_victim():
        if victim == "latest":
            return running[-1]
        if victim == "fewest_tokens":
            return min(reversed(running), key=lambda r: r.generated)
        return victim(running)

    def has_room(asking, tokens, step):
        """Make room for some more tokens; whether the one that asks has it, and still runs."""
        while in_use() - asking.pages + pages_with(asking, tokens) > total_pages:
            if preemption == "none" or len(running) == 1:
                step.missed = True
                return False
            chosen = choose_victim()
            evict(chosen, step)
            step.missed = True
            if chosen is asking:
                return False
        return True

    def admit(step):
        if batching == "static" and running:
            return
        while (r := head()) is not None and len(running) < slots and step.budget > 0:
            room = total_pages - (int(watermark * total_pages) if running else 0)
            chunk = min(r.context, step.budget)
            if in_use() + pages_with(r, chunk) > room:
                return
            (returned if returned else arrived).remove(r)
            running.append(r)
            r.cached_before = 0
            step.admitted.append(r)
            if r.admitted is None:
                r.admitted = now
            prefill(r, chunk, step)

    def prefill(r, chunk, step):
        r.cached += chunk
        step.budget -= chunk
        step.prefilled.append(r)
        step.prefill_tokens += chunk
        set_pages(r)

    def grant(r, step):
        """Give a request that decodes the room for its token, which comes at the end of the step."""
        r.pages = pages_with(r, 1)
        step.granted.append(r)

    def emit(r, step):
        r.generated += 1
        r.cached += 1
        step.decoded.append(r)
        if r.generated == r.new_tokens:
            running.remove(r)
            r.pages = 0
            step.completed.append(r)

    def contract_step(step):
        admit(step)
        for r in list(running):
            if has_room(r, 1, step):
                grant(r, step)
                emit(r, step)

    def vllm_step(step):
        for r in list(running):
            if r not in running:
                continue
            if r.decoding:
                if has_room(r, 1, step):
                    grant(r, step)
                    step.budget -= 1
            else:
                chunk = min(r.context - r.cached, step.budget)
                if has_room(r, chunk, step):
                    prefill(r, chunk, step)
        if not step.missed:
            admit(step)
        for r in list(step.prefilled):
            if r in running and r.decoding and has_room(r, 1, step):
                grant(r, step)
        for r in list(running):
            if r in step.granted:
                emit(r, step)

    while len(steps) < max_steps and (future or arrived or returned or running):
        while future and future[0].arrival <= now:
            arrived.append(future.pop(0))
        for r in running:
            r.cached_before = r.cached
        step = SimpleNamespace(
            budget=budget,
            admitted=[],
            granted=[],
            decoded=[],
            completed=[],
            preempted=[],
            prefilled=[],
            prefill_tokens=0,
            missed=False,
        )
        had_running = list(running)
        (vllm_step if vllm_order else contract_step)(step)

        taking_part = {r.id: r for r in step.decoded + step.prefilled}.values()
        idle = not running and not had_running and not taking_part
        stuck = head() if idle else None
        if stuck is not None and future and not returned and admission != "fifo":
            stuck = None  # an arrival may take its place
        duration = (
            base
            + per_request * len(taking_part)
            + per_kv_token * sum(r.cached_before for r in taking_part)
            + per_prefill_token * step.prefill_tokens
        )
        if idle and stuck is None and future and (future[0].arrival < now + base or base == 0):
            duration = future[0].arrival - now
        now += duration
        for r in step.decoded:
            r.token_times.append(now)
            r.first_token = r.first_token or now
            r.finished = now if r in step.completed else None
        steps.append(
            {
                "tick": len(steps),
                "admitted": [r.id for r in step.admitted],
                "decoded": [r.id for r in step.decoded],
                "completed": [r.id for r in step.completed],
                "pages": in_use(),
            }
            | ({"preempted": [r.id for r in step.preempted]} if preemption != "none" else {})
        )

        tokens_in_cache.append(sum(r.cached for r in running))

        if running and not taking_part:
            wanted = sum(
                pages_with(r, 1 if r.decoding else min(r.context - r.cached, budget - sum(q.decoding for q in running)))
                for r in running
            )
            deadlock = (len(steps) - 1, tuple(r.id for r in running), wanted - total_pages)
            break
        if stuck is not None:
            need = pages_with(stuck, min(stuck.context, budget))
            deadlock = (len(steps) - 1, (stuck.id,), need - total_pages)
            break

    while future and future[0].arrival <= now:
        arrived.append(future.pop(0))
    if admission == "shortest_first":
        arrived.sort(key=lambda r: r.new_tokens)
    return SimpleNamespace(
        steps=steps,
        tokens_in_cache=tokens_in_cache,
        requests=everyone,
        duration=now,
        deadlock=deadlock,
        waiting=[r.id for r in returned + arrived + future],
        active=[{"id": r.id, "generated": r.generated, "pages": r.pages} for r in running],
    )

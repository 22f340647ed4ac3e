"""Runs of the engine break no invariant under any rule, and a record that breaks one is found."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, note, settings

from serving_lib import Policy, Server, StepTime, Workload, simulate
from serving_lib.invariants import check_invariants
from tests.test_engine import POLICIES, runs

REQUESTS = 5


def deadlocking():
    """The lecture's five requests, which evict each other."""
    names = [f"r{i}" for i in range(REQUESTS)]
    workload = Workload(names, [0] * REQUESTS, prompt_tokens=[8] * REQUESTS, new_tokens=[4] * REQUESTS)
    return simulate(workload, Server(page_size=4, total_pages=10, slots=5), Policy(preemption="recompute"))


@settings(max_examples=150, deadline=None)
@given(runs())
def test_no_run_of_the_engine_breaks_an_invariant_under_any_policy(run):
    workload, server, limit = run
    for name, rules in POLICIES.items():
        note(name)
        assert check_invariants(simulate(workload, server, Policy(**rules), limit)) == []


def test_a_run_in_seconds_breaks_no_invariant():
    rng = np.random.default_rng(1)
    workload = Workload(
        [str(i) for i in range(300)], np.cumsum(rng.exponential(0.2, 300)), *rng.integers(1, 200, (2, 300))
    )
    server = Server(16, 60, 16, StepTime(base=0.013, per_request=0.0007, per_kv_token=1e-6))
    result = simulate(workload, server, Policy(preemption="recompute", watermark=0.05))
    assert result.preemptions.sum() > 0
    assert check_invariants(result) == []


def tampered(**changes):
    """A run whose records, or whose last state, say something else than what happened."""
    result = deadlocking()
    steps = result.window(0, result.steps)
    fields = ("workload", "server", "policy", "steps", "active", "waiting", "generated", "start_of")
    stand_in = SimpleNamespace(**{name: getattr(result, name) for name in fields})
    stand_in.window = lambda first, last: steps[first:last]
    for name, change in changes.items():
        if name == "records":
            change(steps)
        else:
            setattr(stand_in, name, change(getattr(stand_in, name)))
    return stand_in


def in_step(tick, field, change):
    def apply(steps):
        steps[tick][field] = change(steps[tick][field])

    return apply


FIRST_END = next(s["tick"] for s in deadlocking().window(0, 99) if s["completed"])
FIRST_EVICTION = next(s["tick"] for s in deadlocking().window(0, 99) if s["preempted"])

TAMPERED = {
    "a completion is not recorded": (
        {"records": in_step(FIRST_END, "completed", lambda names: names[1:])},
        "conservation",
    ),
    "a request completes twice": (
        {"records": in_step(FIRST_END, "completed", lambda names: names * 2)},
        "conservation",
    ),
    "a request is lost from the queue": (
        {"records": in_step(0, "admitted", lambda names: names[1:]), "waiting": lambda _: []},
        "conservation",
    ),
    "a request is admitted twice": ({"records": in_step(1, "admitted", lambda _: ["r0"])}, "conservation"),
    "who does not run is evicted": (
        {"records": in_step(FIRST_EVICTION, "preempted", lambda names: [*names, *names])},
        "conservation",
    ),
    "an eviction is not recorded": ({"records": in_step(FIRST_EVICTION, "preempted", lambda _: [])}, "pages"),
    "a page too many is in use": ({"records": in_step(1, "pages", lambda pages: pages + 1)}, "pages"),
    "a page too few is in use": ({"records": in_step(1, "pages", lambda pages: pages - 1)}, "pages"),
    "the pool is smaller than what is in use": ({"server": lambda s: Server(4, 8, s.slots)}, "pages"),
    "there are fewer slots": ({"server": lambda _: Server(4, 10, 2)}, "slots"),
    "a token is left out": ({"records": in_step(2, "decoded", lambda names: names[1:])}, "tokens"),
    "two tokens in one step": ({"records": in_step(2, "decoded", lambda names: names + names[:1])}, "tokens"),
    "a token for who waits": ({"records": in_step(FIRST_EVICTION, "decoded", lambda names: [*names, "r4"])}, "tokens"),
    "a completion comes early": ({"records": in_step(1, "completed", lambda _: ["r0"])}, "tokens"),
    "the totals differ from the records": ({"generated": lambda tokens: tokens + 1}, "tokens"),
    "an admission comes before the arrival": (
        {"workload": lambda w: Workload(w.id, w.arrival + 1, w.prompt_tokens, w.new_tokens)},
        "time",
    ),
    "the clock stands still": ({"start_of": lambda _: lambda steps: np.zeros(len(steps))}, "time"),
}


@pytest.mark.parametrize(("changes", "kind"), TAMPERED.values(), ids=TAMPERED.keys())
def test_a_broken_invariant_is_found(changes, kind):
    assert kind in [fault.partition(":")[0] for fault in check_invariants(tampered(**changes))]


def test_untouched_records_have_no_fault():
    assert check_invariants(tampered()) == []

"""The engine: equal to the contract simulator and to a step-by-step oracle, and no run goes on for ever."""

import json
import math
import os
import pathlib
import pickle
from dataclasses import replace

import numpy as np
import pint
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from serving_lib import Workload, affine_batch_chain, calc_mm1_time_in_system, paged_continuous_batching, poisson, ureg
from serving_lib.engine import Policy, Server, StepTime, simulate
from serving_lib.engine.state import steps_until, time_after
from serving_lib.queue_simulator import mean_interval
from tests.benchmarks.literal_loop import literal_loop
from tests.oracles.engine_oracle import engine_oracle

CONTRACT_CASES = json.loads((pathlib.Path(__file__).parent / "golden" / "paged_continuous_batching.json").read_text())

# ---------------------------------------------------------------------------------------------------------------------
# The proof: generated runs in pools so small that stalls, deadlocks and preemptions are common
# ---------------------------------------------------------------------------------------------------------------------


def longest_context(requests):
    """A rule of one's own that is neither of the built-in ones."""
    return max(requests, key=lambda request: request.prompt_tokens + request.generated)


POLICIES = {
    "the contract": {},
    "static": {"batching": "static"},
    "reserve_max": {"allocation": "reserve_max"},
    "reserve_pow2": {"allocation": "reserve_pow2"},
    "reserve_exact": {"allocation": "reserve_exact"},
    "shortest first": {"admission": "shortest_first"},
    "a rule of one's own admits": {"admission": longest_context},
    "watermark": {"watermark": 0.25},
    "reserve_exact, watermark": {"allocation": "reserve_exact", "watermark": 0.4},
    "chunked prefill": {"prefill_budget": 6},
    "recompute": {"preemption": "recompute"},
    "recompute, fewest tokens": {"preemption": "recompute", "victim": "fewest_tokens"},
    "recompute, a rule of one's own evicts": {"preemption": "recompute", "victim": longest_context},
    "recompute, watermark": {"preemption": "recompute", "watermark": 0.25},
    "recompute, static": {"preemption": "recompute", "batching": "static"},
    "recompute, chunked prefill": {"preemption": "recompute", "prefill_budget": 6},
}
CASES = int(os.environ.get("ENGINE_CASES", "2000"))
"""Generated cases, each of which goes through every policy. The proof by hand takes 100,000."""


@st.composite
def runs(draw, requests=8, tokens=12, arrival=16):
    """A workload, a server with integer costs, and a limit to the steps."""
    tokens, small = st.integers(1, tokens), st.integers(0, 2)
    rows = draw(st.lists(st.tuples(tokens, tokens, st.integers(0, arrival)), max_size=requests))
    costs = draw(st.one_of(st.just((1, 0, 0, 0)), st.tuples(st.integers(1, 5), small, small, small)))
    server = Server(
        page_size=draw(st.integers(1, 9)),
        total_pages=draw(st.integers(1, 16)),
        slots=draw(st.integers(1, 6)),
        step_time=StepTime(*costs),
    )
    limit = draw(st.one_of(st.none(), st.integers(0, 64)))
    return workload_of(rows), server, limit


def workload_of(rows):
    """A workload of (prompt tokens, new tokens, arrival)."""
    names = ("prompt_tokens", "new_tokens", "arrival")
    return Workload.from_requests([{"id": f"r{i}"} | dict(zip(names, row, strict=True)) for i, row in enumerate(rows)])


def oracle_of(workload, server, rules, limit=None):
    costs = {name: getattr(server.step_time, name) for name in server.step_time.__dataclass_fields__}
    return engine_oracle(
        workload.requests(),
        server.page_size,
        server.total_pages,
        server.slots,
        max_steps=math.inf if limit is None else limit,
        max_model_len=server.max_model_len,
        **costs,
        **rules,
    )


def numbers(values, missing=np.nan):
    return [missing if value is None else value for value in values]


def assert_equal(result, expected):
    """Compare everything that a run says with the oracle's run, exactly."""
    assert result.steps == len(expected.steps)
    assert result.window(0, result.steps) == expected.steps
    requests = expected.requests
    for name in ("admitted", "first_token", "finished"):
        np.testing.assert_array_equal(getattr(result, name), numbers(getattr(r, name) for r in requests))
    for name in ("generated", "preemptions", "recomputed_tokens"):
        assert getattr(result, name).tolist() == [getattr(r, name) for r in requests]
    assert result.duration == expected.duration
    assert (result.waiting, result.active) == (expected.waiting, expected.active)
    assert result.tokens_at(range(result.steps)).tolist() == expected.tokens_in_cache
    found = result.deadlock and (result.deadlock.step, result.deadlock.stalled, result.deadlock.missing_pages)
    assert found == expected.deadlock
    gaps = [gap for r in requests for gap in np.diff(r.token_times).tolist()]
    assert [column.tolist() for column in result.itl_runs()] == [
        column.tolist() for column in np.unique(gaps, return_counts=True)
    ]


@settings(max_examples=CASES, deadline=None)
@given(runs())
def test_under_every_policy_the_engine_equals_the_step_by_step_oracle(run):
    workload, server, limit = run
    for name, rules in POLICIES.items():
        note(name)
        assert_equal(simulate(workload, server, Policy(**rules), limit), oracle_of(workload, server, rules, limit))


@settings(max_examples=200, deadline=None)
@given(runs())
def test_a_limit_only_cuts_a_run_short(run):
    workload, server, limit = run
    for name, rules in POLICIES.items():
        note(name)
        whole, cut = simulate(workload, server, Policy(**rules)), simulate(workload, server, Policy(**rules), limit)
        assert cut.window(0, cut.steps) == whole.window(0, cut.steps)


def assert_equals_the_contract(result, expected):
    """The engine stops at a deadlock; from there on the simulator repeats itself, but for arrivals."""
    assert result.window(0, result.steps) == expected["steps"][: result.steps]
    if result.deadlock is None:
        assert result.steps == len(expected["steps"])
    for step in expected["steps"][result.steps :]:
        assert (step["admitted"], step["decoded"], step["pages"]) == (
            [],
            [],
            expected["steps"][result.steps - 1]["pages"],
        )
    assert (result.waiting, result.active) == (expected["waiting"], expected["active"])


@settings(max_examples=2000, deadline=None)
@given(runs())
def test_the_engine_equals_the_contract_simulator(run):
    workload, server, limit = run
    server, limit = replace(server, step_time=StepTime()), 200 if limit is None else limit
    result = simulate(workload, server, max_steps=limit)
    sizes = server.page_size, server.total_pages, server.slots
    assert_equals_the_contract(result, paged_continuous_batching(workload.requests(), *sizes, limit))


@pytest.mark.parametrize("case", CONTRACT_CASES, ids=lambda case: case["name"])
def test_every_case_of_the_contract_holds(case):
    requests, page_size, total_pages, slots, max_ticks = case["args"]
    result = simulate(Workload.from_requests(requests), Server(page_size, total_pages, slots), max_steps=max_ticks)
    assert_equals_the_contract(result, case["expect"])


@pytest.mark.parametrize("recompute", [False, True])
@settings(max_examples=300, deadline=None)
@given(run=runs())
def test_the_loop_that_the_benchmark_times_does_the_same_work(recompute, run):
    workload, server, _ = run
    result = simulate(workload, server, Policy(preemption="recompute" if recompute else "none"))
    if result.deadlock is None:
        assert literal_loop(workload, server, recompute) == result.window(0, result.steps)


def test_the_result_of_a_run_has_no_gaps_between_blocks_of_arrivals():
    """The engine takes arrivals in blocks; 20,000 of them are several, with idle spells in between."""
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.integers(0, 2, 20_000) * rng.integers(0, 9, 20_000)).astype(float)
    workload = Workload(list(map(str, range(20_000))), arrival, rng.integers(1, 30, 20_000), rng.integers(1, 9, 20_000))
    server = Server(page_size=4, total_pages=60, slots=8)
    result = simulate(workload, server)
    assert literal_loop(workload, server) == result.window(0, result.steps)


# ---------------------------------------------------------------------------------------------------------------------
# No run goes on for ever: the known hangs of other simulators, and the certificate of a deadlock
# ---------------------------------------------------------------------------------------------------------------------


def test_a_request_larger_than_the_pool_stops_the_run():
    result = simulate(workload_of([(9, 1, 0), (1, 1, 9)]), Server(page_size=1, total_pages=8, slots=2))
    assert (result.deadlock.stalled, result.deadlock.missing_pages) == (("r0",), 1)
    assert result.deadlock.smallest_pool == 10, "the prompt and the new token"


def test_a_request_that_outgrows_the_pool_is_not_preempted_and_readmitted_for_ever():
    server = Server(page_size=1, total_pages=8, slots=2)
    result = simulate(workload_of([(4, 6, 0), (2, 2, 0)]), server, Policy(preemption="recompute"))
    assert (result.deadlock.stalled, result.deadlock.missing_pages) == (("r0",), 1)
    assert result.finished_step[1] < 0, "it waits behind the one that cannot go on"
    assert result.deadlock.smallest_pool == 10


@pytest.mark.parametrize("victim", ["latest", "fewest_tokens", lambda running: running[0], longest_context])
def test_two_requests_do_not_preempt_each_other_for_ever(victim):
    """Each fits the pool alone, both do not; whoever is evicted comes back and evicts the other."""
    server = Server(page_size=1, total_pages=10, slots=2)
    policy = Policy(preemption="recompute", victim=victim, prefill_budget=2)
    result = simulate(workload_of([(6, 4, 0), (6, 4, 0)]), server, policy)
    assert result.deadlock is None
    assert result.preemptions.sum() > 0
    assert (result.generated == 4).all()


def test_two_half_prefilled_requests_that_hold_everything_stop_the_run():
    """The first still grows when the second, in mid-prefill, takes the last page."""
    server = Server(page_size=1, total_pages=10, slots=2)
    result = simulate(workload_of([(4, 9, 0), (8, 1, 0)]), server, Policy(prefill_budget=3))
    assert result.deadlock.stalled == ("r0", "r1")
    assert result.steps < 10
    assert (
        simulate(workload_of([(4, 6, 0), (8, 1, 0)]), server, Policy(prefill_budget=3, preemption="recompute")).deadlock
        is None
    )


def test_a_prefill_that_goes_on_in_its_last_page_is_no_deadlock_yet():
    workload, server, rules = workload_of([(5, 9, 0), (8, 2, 1)]), Server(8, 2, 2), {"prefill_budget": 2}
    result = simulate(workload, server, Policy(**rules))
    assert_equal(result, oracle_of(workload, server, rules))
    last_token = max(step["tick"] for step in result.window(0, result.steps) if step["decoded"])
    assert result.deadlock.step > last_token + 1, "chunks were prefilled in between"


def test_a_head_that_never_fits_under_the_watermark_is_admitted_when_nothing_runs():
    server = Server(page_size=1, total_pages=10, slots=2)
    result = simulate(workload_of([(2, 2, 0), (8, 2, 0)]), server, Policy(watermark=0.5))
    assert result.admitted.tolist() == [0, 2]
    assert result.deadlock is None


def test_a_head_that_never_fits_gives_way_to_a_shorter_request_that_comes_later():
    rows = [(9, 2, 0), (1, 1, 50)]
    server = Server(page_size=1, total_pages=8, slots=1)
    assert simulate(workload_of(rows), server).steps == 1
    result = simulate(workload_of(rows), server, Policy(admission="shortest_first"))
    assert result.finished.tolist()[1] == 51
    assert result.deadlock.stalled == ("r0",)


def test_requests_that_all_stall_stop_the_run_and_say_so():
    result = simulate(workload_of([(8, 4, 0)] * 5), Server(page_size=4, total_pages=10, slots=5))
    assert result.deadlock.stalled == ("r0", "r1", "r2", "r3", "r4")
    assert result.deadlock.missing_pages == 5
    assert result.deadlock.smallest_pool == 11


def test_a_smaller_pool_may_finish_where_a_larger_one_does_not():
    workload = workload_of([(8, 4, 0)] * 5)
    stuck = [
        simulate(workload, Server(page_size=4, total_pages=pages, slots=5)).deadlock is not None
        for pages in (9, 10, 11)
    ]
    assert stuck == [False, True, False]


@settings(max_examples=200, deadline=None)
@given(runs(requests=6))
def test_the_smallest_pool_finishes_and_no_pool_between_does(run):
    workload, server, _ = run
    for name, rules in POLICIES.items():
        note(name)
        deadlock = simulate(workload, server, Policy(**rules)).deadlock
        for pages in range(server.total_pages + 1, deadlock.smallest_pool + 1) if deadlock else ():
            larger = simulate(workload, replace(server, total_pages=pages), Policy(**rules))
            assert (larger.deadlock is None) == (pages == deadlock.smallest_pool)


def test_beyond_64_sizes_a_bisection_finds_a_pool_of_which_no_page_can_be_spared():
    workload = workload_of([(1, 200, 0)] * 4)
    deadlock = simulate(workload, Server(page_size=1, total_pages=8, slots=4)).deadlock
    enough = deadlock.smallest_pool
    assert enough > 201 + 64
    assert simulate(workload, Server(1, enough, 4)).deadlock is None
    assert simulate(workload, Server(1, enough - 1, 4)).deadlock is not None


# ---------------------------------------------------------------------------------------------------------------------
# What the rules mean, one sentence each
# ---------------------------------------------------------------------------------------------------------------------

ROOMY = Server(page_size=4, total_pages=1000, slots=16)


def test_five_requests_preempt_two_and_recompute_sixteen_prompt_tokens():
    server = Server(page_size=4, total_pages=10, slots=5)
    result = simulate(workload_of([(8, 4, 0)] * 5), server, Policy(preemption="recompute"))
    assert (result.preemptions.sum(), result.recomputed_tokens.sum()) == (2, 16)
    assert result.window(0, 1)[0]["preempted"] == ["r4", "r3"]
    assert result.finished.tolist() == [4, 4, 4, 8, 8]


def test_a_static_batch_lets_nobody_in_before_its_last_member_leaves():
    workload = workload_of([(1, 2, 0), (1, 9, 0), (1, 1, 1)])
    assert simulate(workload, ROOMY, Policy(batching="static")).admitted.tolist() == [0, 0, 9]
    assert simulate(workload, ROOMY).admitted.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("allocation", "max_model_len", "pages"),
    [
        ("reserve_exact", None, 5),
        ("reserve_pow2", None, 6),
        ("reserve_pow2", 18, 5),
        ("reserve_max", 64, 16),
        ("paged", None, 3),
    ],
)
def test_a_reservation_takes_its_pages_at_admission(allocation, max_model_len, pages):
    server = replace(ROOMY, max_model_len=max_model_len)
    result = simulate(workload_of([(8, 9, 0)]), server, Policy(allocation=allocation))
    assert result.pages_at([0]).tolist() == [pages]


def test_reserve_max_reserves_the_longest_request_of_the_workload_unless_told_otherwise():
    result = simulate(workload_of([(1, 1, 0), (20, 20, 99)]), ROOMY, Policy(allocation="reserve_exact"))
    assert result.pages_at([0]).tolist() == [0]
    result = simulate(workload_of([(1, 2, 0), (20, 20, 99)]), ROOMY, Policy(allocation="reserve_max"))
    assert result.pages_at([0]).tolist() == [10]


def test_a_budget_cuts_a_long_prefill_into_chunks_and_lets_the_others_decode():
    workload = workload_of([(1, 9, 0), (20, 1, 1)])
    server = replace(ROOMY, slots=2, step_time=StepTime(base=1, per_prefill_token=1))
    whole, chunked = simulate(workload, server), simulate(workload, server, Policy(prefill_budget=5))
    assert whole.first_token_step[1] - whole.admitted_step[1] == 0
    assert chunked.first_token_step[1] - chunked.admitted_step[1] == 4, "20 tokens in chunks of 4"
    gaps = [run.itl_runs()[0].max() for run in (whole, chunked)]
    assert gaps == [21, 5]


def test_a_request_holds_pages_for_the_chunks_that_are_computed():
    result = simulate(workload_of([(20, 2, 0)]), replace(ROOMY, slots=2), Policy(prefill_budget=8))
    assert result.pages_at([0, 1, 2]).tolist() == [2, 4, 6]
    assert [step["decoded"] for step in result.window(0, 4)] == [[], [], ["r0"], ["r0"]]


def test_shortest_first_admits_by_new_tokens_among_those_that_have_arrived():
    workload = workload_of([(1, 9, 0), (1, 5, 1), (1, 3, 2), (1, 1, 20)])
    result = simulate(workload, replace(ROOMY, slots=1), Policy(admission="shortest_first"))
    assert result.admitted.tolist() == [0, 12, 9, 20]


def test_a_rule_of_ones_own_sees_requests_and_chooses_one():
    seen = []

    def last_come(waiting):
        seen.append(waiting)
        return waiting[-1]

    workload = workload_of([(1, 4, 0), (2, 5, 1), (3, 6, 2)])
    assert simulate(workload, replace(ROOMY, slots=1), Policy(admission=last_come)).admitted.tolist() == [0, 10, 4]
    assert seen[-2][1]._asdict() == {
        "id": "r2",
        "arrival": 2.0,
        "prompt_tokens": 3,
        "new_tokens": 6,
        "generated": 0,
        "pages": 0,
    }


def test_fewest_tokens_evicts_the_one_that_has_generated_least():
    rows = [(1, 20, 0), (12, 20, 3), (1, 20, 3)]
    evicted = {}
    for victim in ("latest", "fewest_tokens", lambda running: max(running, key=lambda one: one.pages)):
        result = simulate(
            workload_of(rows), Server(4, 6, 3), Policy(preemption="recompute", victim=victim), max_steps=12
        )
        evicted[victim if isinstance(victim, str) else "most pages"] = [
            name for step in result.window(0, 12) for name in step["preempted"]
        ][:1]
    assert evicted == {"latest": ["r2"], "fewest_tokens": ["r2"], "most pages": ["r1"]}


def test_nobody_is_admitted_in_a_step_that_preempts_a_running_request():
    rows = [(4, 9, 0), (4, 9, 0), (1, 1, 1)]
    steps = simulate(workload_of(rows), Server(4, 4, 3), Policy(preemption="recompute")).window(0, 99)
    first = next(step for step in steps if step["preempted"])
    assert (first["tick"], first["preempted"], first["admitted"]) == (4, ["r1"], [])


def test_a_preempted_request_keeps_its_tokens_and_is_first_in_the_queue():
    rows = [(4, 9, 0), (4, 9, 0), (1, 1, 1)]
    result = simulate(workload_of(rows), Server(4, 4, 2), Policy(preemption="recompute"), max_steps=6)
    assert result.waiting == ["r1", "r2"]
    assert result.generated.tolist() == [6, 4, 0]


# ---------------------------------------------------------------------------------------------------------------------
# Time
# ---------------------------------------------------------------------------------------------------------------------


def test_a_step_time_with_units_makes_a_clock_in_seconds():
    step_time = StepTime(
        base=20 * ureg.ms, per_request=1 * ureg.ms, per_kv_token=1 * ureg.us, per_prefill_token=0.1 * ureg.ms
    )
    result = simulate(workload_of([(100, 3, 1)]), replace(ROOMY, step_time=step_time))
    # 21 ms and 100 prefilled tokens; 21 ms and 101 cached ones; 21 ms and 102.
    np.testing.assert_allclose(result.first_token, [1.031])
    np.testing.assert_allclose(result.finished, [1.031 + 0.021101 + 0.021102])
    gaps, counts = result.itl_runs()
    np.testing.assert_allclose(gaps, [0.021101, 0.021102])
    assert counts.tolist() == [1, 1]


def test_an_arrival_wakes_an_idle_server():
    server = replace(ROOMY, step_time=StepTime(base=10))
    result = simulate(workload_of([(1, 1, 0), (1, 2, 23.5)]), server)
    assert result.admitted.tolist() == [0, 23.5]
    assert [step["tick"] for step in result.window(0, 9) if step["decoded"]] == [0, 3, 4]


def test_an_arrival_waits_for_the_end_of_a_running_step():
    result = simulate(workload_of([(1, 2, 0), (1, 1, 3)]), replace(ROOMY, step_time=StepTime(base=10)))
    assert result.admitted.tolist() == [0, 10]


def test_time_does_not_drift_over_a_million_steps():
    server = Server(page_size=16, total_pages=10**6, slots=1, step_time=StepTime(base=0.1))
    result = simulate(workload_of([(1, 10**6, 0)]), server)
    assert result.finished.tolist() == [pytest.approx(10**5, rel=1e-15)]


@settings(max_examples=2000, deadline=None)
@given(
    until=st.floats(0, 1e6),
    ahead=st.integers(0, 1000),
    duration=st.floats(1e-6, 1e3),
    growth=st.just(0.0) | st.floats(1e-12, 1e-6),
)
def test_an_arrival_is_seen_at_the_first_step_that_starts_at_it_or_later(until, ahead, duration, growth):
    steps, end = steps_until(until, ahead, 0.0, duration, growth)
    assert steps >= 1
    assert end == time_after(ahead + steps, 0.0, duration, growth)
    assert end >= until
    assert steps == 1 or time_after(ahead + steps - 1, 0.0, duration, growth) < until


@pytest.mark.parametrize("kv", [0, 1e-9, 1e-6, 1e-3])
def test_real_costs_agree_with_a_sum_over_steps(kv):
    """Closed forms and the oracle's sum differ only by rounding."""
    workload = poisson(rate=5, requests=60, seed=1, prompt_tokens=40, new_tokens=lambda rng, n: rng.integers(1, 80, n))
    server = Server(4, 10**6, 16, StepTime(base=0.01, per_request=0.001, per_kv_token=kv, per_prefill_token=0.0003))
    result, expected = simulate(workload, server), oracle_of(workload, server, {})
    np.testing.assert_allclose(result.finished, [r.finished for r in expected.requests], rtol=1e-9)
    np.testing.assert_allclose(result.first_token, [r.first_token for r in expected.requests], rtol=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# The result
# ---------------------------------------------------------------------------------------------------------------------


def test_the_cost_of_a_run_grows_with_events_and_not_with_tokens():
    workload = poisson(rate=1, requests=300, seed=0, prompt_tokens=10, new_tokens=50)
    step_time = StepTime(base=1e-3, per_request=1e-4, per_kv_token=1e-8, per_prefill_token=1e-6)
    server = Server(16, 10**9, 10**6, step_time)
    events = [simulate(replace(workload, new_tokens=workload.new_tokens * k), server).events for k in (1, 1000)]
    assert max(events) <= 3 * len(workload) + 1


@settings(max_examples=200, deadline=None)
@given(runs(), st.integers(-3, 40), st.integers(-3, 40))
def test_a_window_and_the_time_line_agree_and_no_pool_overflows(run, first, last):
    workload, server, _ = run
    for name, rules in POLICIES.items():
        note(name)
        result = simulate(workload, server, Policy(**rules))
        steps = result.window(0, result.steps)
        assert result.window(first, last) == [step for step in steps if first <= step["tick"] < last]
        assert all(0 <= step["pages"] <= server.total_pages for step in steps)
        time, pages = result.timeline()
        pages_at_end = dict(zip(result.start_of(range(1, result.steps + 1)).tolist(), steps, strict=True))
        assert pages.tolist() == [pages_at_end[end]["pages"] for end in time.tolist()]
        assert (np.diff(time) > 0).all()


def test_a_result_survives_a_trip_to_another_process():
    result = simulate(workload_of([(8, 8, 0)] * 3), Server(4, 7, 3))
    copy = pickle.loads(pickle.dumps(result))
    assert copy.window(0, copy.steps) == result.window(0, result.steps)
    assert copy.deadlock == result.deadlock
    assert copy.deadlock.smallest_pool == result.deadlock.smallest_pool


def test_an_empty_workload_takes_no_step():
    result = simulate(workload_of([]), ROOMY)
    assert (result.steps, result.duration, result.window(0, 9), result.waiting) == (0, 0.0, [], [])
    assert [len(column) for column in (*result.timeline(), *result.itl_runs())] == [0, 0, 0, 0]


# ---------------------------------------------------------------------------------------------------------------------
# Against theory
# ---------------------------------------------------------------------------------------------------------------------

MEAN_TOKENS = 200


def memoryless(rate, requests, seed):
    """Poisson arrivals of requests with a geometric number of tokens: a memoryless service, step by step."""
    return poisson(rate, requests, seed, prompt_tokens=1, new_tokens=lambda rng, n: rng.geometric(1 / MEAN_TOKENS, n))


@pytest.mark.parametrize("utilization", [0.3, 0.6, 0.8])
def test_one_slot_and_even_steps_are_an_mm1_queue(utilization):
    workload = memoryless(utilization, 40_000, seed=11)
    result = simulate(workload, Server(16, 10**6, 1, StepTime(base=1 / MEAN_TOKENS)))
    interval = mean_interval(result.finished - workload.arrival)
    assert calc_mm1_time_in_system(1.0, utilization) in interval


@pytest.mark.parametrize("utilization", [0.3, 0.6, 0.85])
def test_an_affine_step_time_is_the_affine_batch_chain(utilization):
    """Each of n requests finishes in a step with probability 1/m, and the step takes t0 + n t1."""
    slots, fixed, each = 16, 2e-3, 1e-3
    capacity = slots / (MEAN_TOKENS * (fixed + slots * each))
    workload = memoryless(utilization * capacity, 30_000, seed=5)
    result = simulate(workload, Server(16, 10**6, slots, StepTime(base=fixed, per_request=each)))
    interval = mean_interval(result.finished - workload.arrival)
    chain = affine_batch_chain(workload.rate, MEAN_TOKENS * fixed, MEAN_TOKENS * each, slots, capacity=4000)
    assert chain.time_in_system in interval


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------

ONE = {"workload": workload_of([(1, 1, 0)]), "server": ROOMY}


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: StepTime(base=-1), ValueError, "base must be nonnegative"),
        (lambda: StepTime(base=1 * ureg.m), pint.DimensionalityError, "base must be a time"),
        (lambda: StepTime(base=1 * ureg.ms, per_request=1), TypeError, "per_request needs a time unit"),
        (lambda: StepTime(base=0), ValueError, "base or per_request must be positive"),
        (lambda: Server(0, 1, 1), ValueError, "page_size must be a whole number of at least 1, got 0"),
        (lambda: Server(1, 1.5, 1), ValueError, "total_pages must be a whole number"),
        (lambda: Server(1, 1, None), TypeError, "slots must be a number"),
        (lambda: Server(1, 1, 1, step_time=1), TypeError, "step_time must be a StepTime"),
        (lambda: Server(1, 1, 1, max_model_len=0), ValueError, "max_model_len must be"),
        (
            lambda: Policy(batching="dynamic"),
            ValueError,
            "batching must be one of 'continuous', 'static', got 'dynamic'",
        ),
        (lambda: Policy(admission="lifo"), ValueError, "'fifo', 'shortest_first' or a function, got 'lifo'"),
        (lambda: Policy(preemption=min), ValueError, "preemption must be one of"),
        (lambda: Policy(watermark=1.0), ValueError, r"watermark must be in \[0, 1\)"),
        (lambda: Policy(prefill_budget=0), ValueError, "prefill_budget must be"),
        (lambda: Policy(prefill_budget=9, batching="static"), ValueError, "prefill_budget must be None with"),
        (lambda: simulate([{"id": "a"}], ROOMY), TypeError, "Workload.from_requests"),
        (lambda: simulate(ONE["workload"], "h100"), TypeError, "server must be a Server"),
        (lambda: simulate(**ONE, policy="fifo"), TypeError, "policy must be a Policy"),
        (
            lambda: simulate(**ONE, policy=Policy(prefill_budget=3)),
            ValueError,
            "prefill_budget must be at least the slots",
        ),
        (lambda: simulate(**ONE, max_steps=-1), ValueError, "max_steps must be"),
        (
            lambda: simulate(**ONE, policy=Policy(admission=lambda _: None)),
            ValueError,
            "admission must return one",
        ),
        (
            lambda: simulate(ONE["workload"], replace(ROOMY, max_model_len=1)),
            ValueError,
            "longer than max_model_len = 1 tokens, got 'r0' with 2",
        ),
    ],
)
def test_bad_input_is_refused_by_name(make, error, words):
    with pytest.raises(error, match=words):
        make()

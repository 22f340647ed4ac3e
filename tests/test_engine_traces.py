"""The engine on real traffic: whole traces against the contract simulator, ten minutes of each against the oracle."""

import math

import numpy as np
import pytest

from serving_lib import Workload, paged_continuous_batching, read_trace
from serving_lib.engine import Policy, Server, StepTime, simulate
from tests.oracles.engine_oracle import engine_oracle

TRACES = {
    "Azure conversation": "AzureLLMInferenceTrace_conv.csv",
    "Azure code": "AzureLLMInferenceTrace_code.csv",
    "Mooncake conversation": "mooncake_conversation_trace.jsonl",
}
WINDOWS = 50


@pytest.fixture(scope="module", params=TRACES.values(), ids=TRACES.keys())
def trace(request, shared_data):
    return read_trace(shared_data / request.param)


def on_a_clock(workload, tick, duration=math.inf):
    """The requests of the first seconds, with arrivals counted in ticks, rounded up."""
    early = workload.arrival < duration
    columns = (column[early] for column in (workload.id, workload.prompt_tokens, workload.new_tokens))
    name, prompt_tokens, new_tokens = columns
    return Workload(name, np.ceil(workload.arrival[early] / tick), prompt_tokens, new_tokens)


def assert_windows_equal(result, steps):
    assert result.steps == len(steps)
    for first in np.random.default_rng(0).integers(0, result.steps, WINDOWS).tolist():
        last = min(first + 40, result.steps)
        assert result.window(first, last) == steps[first:last]


@pytest.fixture(scope="module")
def whole_run(trace):
    """The whole trace at 25 ms a tick, on a server that is busy: the engine's run and the simulator's steps."""
    workload = on_a_clock(trace, tick=0.025)
    busy = 1.2 * trace.rate * trace.new_tokens.mean() * 0.025  # slots, by Little's law, and a fifth to spare
    server = Server(page_size=16, total_pages=10**6, slots=math.ceil(busy))
    result = simulate(workload, server)
    limit = result.steps + 1
    expected = paged_continuous_batching(workload.requests(), server.page_size, server.total_pages, server.slots, limit)
    return result, expected["steps"]


def test_fifty_windows_of_a_whole_trace_equal_the_contract_simulator(whole_run):
    assert_windows_equal(*whole_run)


def test_every_request_of_a_trace_is_served_once_and_in_full(whole_run):
    result, steps = whole_run
    workload = result.workload
    assert (result.generated == workload.new_tokens).all()
    assert sum(len(step["decoded"]) for step in steps) == workload.new_tokens.sum()
    assert (workload.arrival <= result.admitted).all()
    assert (result.admitted < result.first_token).all()
    np.testing.assert_array_equal(result.finished - result.first_token, workload.new_tokens - 1)


def test_the_time_line_of_a_trace_is_the_simulators_and_never_overflows(whole_run):
    result, steps = whole_run
    time, pages = result.timeline()
    assert pages.tolist() == [steps[end - 1]["pages"] for end in time.astype(int).tolist()]
    assert (pages >= 0).all()
    assert (pages <= result.server.total_pages).all()
    pages = result.pages_at(range(result.steps))
    assert pages.tolist() == [step["pages"] for step in steps]


def test_littles_law_holds_on_a_trace(whole_run):
    """The simulator's steps give the mean number in the system; the engine's times give rate and residence."""
    result, steps = whole_run
    arrived = np.searchsorted(result.workload.arrival, np.arange(len(steps)), side="right")
    completed = np.cumsum([0] + [len(step["completed"]) for step in steps])[:-1]
    occupancy = (arrived - completed).mean()
    rate = len(result.workload) / len(steps)
    residence = (result.finished - result.workload.arrival).mean()
    np.testing.assert_allclose(occupancy, rate * residence, rtol=1e-12)


def test_the_gaps_between_tokens_of_a_trace_are_all_one_tick(whole_run):
    result, _ = whole_run
    gaps, counts = result.itl_runs()
    assert gaps.tolist() == [1]
    assert counts.tolist() == [(result.workload.new_tokens - 1).sum()]


COSTS = {"base": 12_000, "per_request": 200, "per_kv_token": 1, "per_prefill_token": 20}  # microseconds
POLICIES = {
    "fifo": {},
    "chunked prefill": {"prefill_budget": 2048},
    "shortest first": {"admission": "shortest_first"},
    "static, reserved": {"batching": "static", "allocation": "reserve_pow2"},
    "recompute": {"preemption": "recompute"},
    "recompute, chunked, fewest tokens, watermark": {
        "preemption": "recompute",
        "victim": "fewest_tokens",
        "watermark": 0.01,
        "prefill_budget": 2048,
    },
}


@pytest.mark.parametrize("rules", POLICIES.values(), ids=POLICIES.keys())
def test_ten_minutes_of_a_trace_equal_the_oracle_under_pressure(trace, rules):
    """The clock counts microseconds, so that times are exact; the pool just holds the largest request."""
    workload = on_a_clock(trace, tick=1e-6, duration=600)
    pages = math.ceil((workload.prompt_tokens + workload.new_tokens).max() / 2)
    server = Server(page_size=2, total_pages=pages, slots=64, step_time=StepTime(**COSTS))
    limit = 10_000
    result = simulate(workload, server, Policy(**rules), max_steps=limit)
    expected = engine_oracle(workload.requests(), 2, pages, 64, max_steps=limit, **COSTS, **rules)
    assert_windows_equal(result, expected.steps)
    assert result.preemptions.any() == ("preemption" in rules)
    for name in ("admitted", "first_token", "finished"):
        times = [np.nan if getattr(r, name) is None else getattr(r, name) for r in expected.requests]
        np.testing.assert_array_equal(getattr(result, name), times)
    for name in ("generated", "preemptions", "recomputed_tokens"):
        assert getattr(result, name).tolist() == [getattr(r, name) for r in expected.requests]
    assert (result.waiting, result.active) == (expected.waiting, expected.active)
    assert result.pages_at(range(result.steps)).tolist() == [step["pages"] for step in expected.steps]

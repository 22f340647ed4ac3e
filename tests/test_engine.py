"""The engine: equal to the contract simulator and to a step-by-step oracle, and no run goes on for ever."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib import Workload, paged_continuous_batching, ureg
from serving_lib.engine import Policy, RequestView, Server, StepTime, simulate
from tests.oracles.engine_oracle import engine_oracle

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
    "chunked prefill": {"prefill_budget": 6},
    "recompute": {"preemption": "recompute"},
    "recompute, fewest tokens": {"preemption": "recompute", "victim": "fewest_tokens"},
    "recompute, a rule of one's own evicts": {"preemption": "recompute", "victim": longest_context},
    "recompute, watermark": {"preemption": "recompute", "watermark": 0.25},
    "recompute, static": {"preemption": "recompute", "batching": "static"},
    "recompute, chunked prefill": {"preemption": "recompute", "prefill_budget": 6},
}
EVERY_POLICY = pytest.mark.parametrize("rules", POLICIES.values(), ids=POLICIES.keys())


@st.composite
def runs(draw, rules, requests=12, tokens=16, arrival=24):
    """A workload, a server with integer costs, the rules, and a limit to the steps."""
    tokens, small = st.integers(1, tokens), st.integers(0, 2)
    rows = draw(st.lists(st.tuples(tokens, tokens, st.integers(0, arrival)), max_size=requests))
    costs = draw(st.one_of(st.just((1, 0, 0, 0)), st.tuples(st.integers(1, 5), small, small, small)))
    server = Server(
        page_size=draw(st.integers(1, 6)),
        total_pages=draw(st.integers(1, 24)),
        slots=draw(st.integers(1, 6)),
        step_time=StepTime(*costs),
    )
    limit = draw(st.one_of(st.none(), st.integers(0, 64)))
    return workload_of(rows), server, rules, limit


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
    found = result.deadlock and (result.deadlock.step, result.deadlock.stalled, result.deadlock.missing_pages)
    assert found == expected.deadlock
    gaps = [gap for r in requests for gap in np.diff(r.token_times).tolist()]
    assert [column.tolist() for column in result.itl_runs()] == [
        column.tolist() for column in np.unique(gaps, return_counts=True)
    ]


@EVERY_POLICY
@settings(max_examples=2000, deadline=None)
@given(data=st.data())
def test_the_engine_equals_the_step_by_step_oracle(rules, data):
    workload, server, rules, limit = data.draw(runs(rules))
    assert_equal(simulate(workload, server, Policy(**rules), limit), oracle_of(workload, server, rules, limit))

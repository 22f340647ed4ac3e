"""Replicas: who gets which request, and the runs put together, against hand cases and independent recursions."""

import numpy as np
import pint
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib import Policy, Server, StepTime, Workload, metrics, poisson, simulate, ureg
from serving_lib.replicas import dispatch, simulate_replicas

ARRAYS = ("admitted", "first_token", "finished", "preemptions", "recomputed_tokens")


def requests(arrivals, prompts, new=None):
    names = [str(number) for number in range(len(arrivals))]
    return Workload(names, arrivals, prompts, new or [1] * len(arrivals))


@pytest.mark.parametrize(
    ("arrivals", "prompts", "chosen"),
    [
        ([0, 0, 0, 0], [5, 5, 5, 5], [0, 1, 0, 1]),  # equals: the one that was sent fewest
        ([0, 1, 2, 3], [100, 10, 10, 10], [0, 1, 1, 1]),  # a long prompt keeps others away
        ([0, 50, 60], [10, 10, 10], [0, 1, 0]),  # both idle again: fewest, then the first
        ([0, 0, 5, 5], [10, 4, 4, 4], [0, 1, 1, 1]),  # 5 left on the first; 0, then 4 on the second
        ([0, 0, 6], [10, 4, 4], [0, 1, 1]),
    ],
)
def test_least_loaded_goes_where_the_prompts_are_done_first(arrivals, prompts, chosen):
    assert dispatch(requests(arrivals, prompts), 2, "least_loaded", prompt_token_time=1).tolist() == chosen


def test_round_robin_takes_turns_whatever_the_work():
    workload = requests([0, 1, 2, 3, 4], [900, 1, 900, 1, 900])
    assert dispatch(workload, 3).tolist() == [0, 1, 2, 0, 1]


def test_least_loaded_is_round_robin_while_prompts_take_no_time():
    workload = poisson(rate=3, requests=50, seed=0)
    assert dispatch(workload, 4, "least_loaded").tolist() == dispatch(workload, 4).tolist()


@given(
    gaps=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    replicas=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_least_loaded_agrees_with_queues_that_are_worked_off_step_by_step(gaps, replicas, data):
    arrivals = np.cumsum(gaps)
    prompts = data.draw(st.lists(st.integers(1, 12), min_size=len(gaps), max_size=len(gaps)))
    left, sent, expected, now = [0] * replicas, [0] * replicas, [], 0
    for arrival, prompt in zip(arrivals, prompts, strict=True):
        while now < arrival:  # one tick works off one token of every queue
            left = [max(work - 1, 0) for work in left]
            now += 1
        best = sorted(range(replicas), key=lambda one: (left[one], sent[one], one))[0]
        left[best] += prompt
        sent[best] += 1
        expected.append(best)
    chosen = dispatch(requests(arrivals, prompts), replicas, "least_loaded", prompt_token_time=1)
    assert chosen.tolist() == expected


def test_a_time_with_a_unit_is_taken_in_seconds():
    workload = poisson(rate=20, requests=200, seed=1, prompt_tokens=lambda rng, n: rng.integers(1, 900, n))
    in_seconds = dispatch(workload, 3, "least_loaded", 0.0002)
    assert np.array_equal(dispatch(workload, 3, "least_loaded", 0.2 * ureg.ms), in_seconds)


@pytest.mark.parametrize("rule", ["round_robin", "least_loaded"])
def test_one_replica_is_the_engine(rule):
    workload = poisson(rate=4, requests=120, seed=2)
    server = Server(16, 300, 8, StepTime(base=5 * ureg.ms, per_prefill_token=0.1 * ureg.ms))
    policy = Policy(preemption="recompute", prefill_budget=256)
    alone, fleet = simulate(workload, server, policy), simulate_replicas(workload, server, 1, policy, rule)
    for name in ARRAYS:
        assert np.array_equal(getattr(fleet, name), getattr(alone, name), equal_nan=True)
    for one, other in zip(fleet.itl_runs(), alone.itl_runs(), strict=True):
        assert np.array_equal(one, other)
    assert metrics.summary(fleet) == metrics.summary(alone)
    assert fleet.duration == alone.duration


@given(
    gaps=st.lists(st.integers(0, 6), min_size=1, max_size=30),
    replicas=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_with_one_slot_each_the_fleet_is_so_many_single_server_queues(gaps, replicas, data):
    arrivals = np.cumsum(gaps)
    new = data.draw(st.lists(st.integers(1, 9), min_size=len(gaps), max_size=len(gaps)))
    free, expected = [0.0] * replicas, []
    for number, (arrival, service) in enumerate(zip(arrivals, new, strict=True)):  # Lindley, one queue per replica
        queue = number % replicas
        free[queue] = max(free[queue], arrival) + service
        expected.append(free[queue])
    fleet = simulate_replicas(requests(arrivals, [1] * len(gaps), new), Server(16, 9, 1), replicas)
    assert fleet.finished.tolist() == expected


def test_no_request_is_lost_or_served_twice():
    workload = poisson(rate=30, requests=500, seed=3, new_tokens=lambda rng, n: rng.integers(1, 60, n))
    fleet = simulate_replicas(workload, Server(16, 400, 16, StepTime(base=20 * ureg.ms)), 3, rule="least_loaded")
    served = np.concatenate([run.workload.id for run in fleet.runs])
    assert sorted(served) == sorted(workload.id)
    assert sum(int(counts.sum()) for _, counts in [fleet.itl_runs()]) == int((workload.new_tokens - 1).sum())


def test_the_gaps_of_all_replicas_are_pooled():
    workload = requests([0, 0], [1, 1], [3, 5])
    gaps, counts = simulate_replicas(workload, Server(4, 9, 1, StepTime(base=2)), 2).itl_runs()
    assert (gaps.tolist(), counts.tolist()) == ([2.0], [2 + 4])


def test_more_replicas_than_requests_leaves_some_idle():
    fleet = simulate_replicas(requests([0, 0], [4, 4], [2, 2]), Server(4, 9, 4), 5)
    assert fleet.finished.tolist() == [2.0, 2.0]


def test_a_deadlock_of_one_replica_is_reported():
    workload = requests([0, 0, 0, 0], [8, 1, 8, 1], [4, 1, 4, 1])  # in turn: both long ones go to the first replica
    fleet = simulate_replicas(workload, Server(page_size=4, total_pages=4, slots=2), 2)
    assert fleet.deadlock.stalled == ("0", "2")
    assert np.isnan(fleet.finished).tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"replicas": 0}, ValueError, "replicas"),
        ({"replicas": 1.5}, ValueError, "replicas must be a whole number"),
        ({"replicas": 2, "rule": "random"}, ValueError, "rule must be one of 'round_robin', 'least_loaded'"),
        ({"replicas": 2, "prompt_token_time": -1}, ValueError, "prompt_token_time"),
        ({"replicas": 2, "prompt_token_time": 1 * ureg.m}, pint.DimensionalityError, "prompt_token_time"),
    ],
)
def test_a_bad_argument_is_named(arguments, error, words):
    with pytest.raises(error, match=words):
        dispatch(requests([0], [1]), **arguments)

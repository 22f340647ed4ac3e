"""Workloads: the arrays, the arrival processes, and the profiles against the traces they were measured from."""

import json
import math

import numpy as np
import pint
import pytest

from serving_lib import ureg
from serving_lib.workload import Workload, burst, gamma, index_of_dispersion, poisson, profile
from tests.tools import measure_profiles


def squared_cv(gaps):
    return np.var(gaps) / np.mean(gaps) ** 2


# ---- the arrays


def workload_of(**columns):
    good = {"id": ["a", "b"], "arrival": [0, 1], "prompt_tokens": [3, 4], "new_tokens": [5, 6]}
    return Workload(**good | columns)


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"id": ["a", "a"]}, ValueError, "id must be unique"),
        ({"id": ["a", 1]}, TypeError, "id must hold strings, got 1"),
        ({"arrival": [0]}, ValueError, "arrival must hold one value for each of the 2 ids"),
        ({"arrival": [[0, 1]]}, ValueError, "arrival must hold one value"),
        ({"arrival": [1, 0]}, ValueError, "arrival must ascend, got a step back at index 1"),
        ({"arrival": [-1, 0]}, ValueError, "arrival must be finite and nonnegative, got -1.0 at index 0"),
        ({"arrival": [0, math.nan]}, ValueError, "arrival must be finite"),
        ({"arrival": [0, math.inf]}, ValueError, "arrival must be finite"),
        ({"prompt_tokens": [3, 0]}, ValueError, "prompt_tokens must be between 1 and .*, got 0 at index 1"),
        ({"new_tokens": [-5, 6]}, ValueError, "new_tokens must be between 1 and .*, got -5 at index 0"),
        ({"new_tokens": [10**12, 6]}, ValueError, "new_tokens must be between"),
        ({"new_tokens": [2**80, 6]}, TypeError, "new_tokens must hold integers"),
        ({"new_tokens": [1.5, 6]}, TypeError, "new_tokens must hold integers"),
        ({"new_tokens": [True, True]}, TypeError, "new_tokens must hold integers"),
        ({"prompt_tokens": ["3", "4"]}, TypeError, "prompt_tokens must hold integers"),
    ],
)
def test_a_column_that_cannot_be_is_refused_by_name(columns, error, words):
    with pytest.raises(error, match=words):
        workload_of(**columns)


def test_the_arrays_are_copies_that_nobody_can_change():
    arrival = np.array([0.0, 1.0])
    workload = workload_of(arrival=arrival)
    arrival[0] = 0.5
    assert workload.arrival[0] == 0
    for name in ("id", "arrival", "prompt_tokens", "new_tokens"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(workload, name)[0] = 1


def test_two_workloads_are_equal_when_all_their_arrays_are():
    assert workload_of() == workload_of()
    assert hash(workload_of()) == hash(workload_of())
    assert workload_of() != workload_of(new_tokens=[5, 7])
    assert workload_of() != workload_of(id=["a", "c"])
    assert workload_of() != "a workload"


def test_requests_and_from_requests_are_inverse_and_whole_times_come_back_as_int():
    requests = [
        {"id": "x", "arrival": 2, "prompt_tokens": 4, "new_tokens": 1},
        {"id": "y", "arrival": 2.5, "prompt_tokens": 5, "new_tokens": 2},
    ]
    back = Workload.from_requests(reversed(requests)).requests()
    assert back == requests
    assert [type(request["arrival"]) for request in back] == [int, float]
    assert json.loads(json.dumps(back)) == back


def test_requests_that_arrive_together_keep_their_order():
    requests = [{"id": name, "arrival": 7, "prompt_tokens": 1, "new_tokens": 1} for name in "zaym"]
    assert Workload.from_requests(requests).id.tolist() == list("zaym")


def test_a_request_without_a_field_is_refused_by_name():
    with pytest.raises(ValueError, match=r"request \{'id': 'a', 'arrival': 1\} has no 'prompt_tokens'"):
        Workload.from_requests([{"id": "a", "arrival": 1}])


def test_arrival_times_may_carry_a_unit():
    assert workload_of(arrival=np.array([250, 500]) * ureg.ms).arrival.tolist() == [0.25, 0.5]
    with pytest.raises(pint.DimensionalityError):
        workload_of(arrival=np.array([250, 500]) * ureg.m)


def test_an_empty_workload_is_one():
    empty = Workload([], [], [], [])
    assert (len(empty), empty.requests()) == (0, [])
    assert len(empty.shuffled_gaps(seed=1)) == 0
    with pytest.raises(ValueError, match="at least two requests"):
        _ = empty.rate


def test_at_rate_changes_the_speed_and_nothing_else():
    workload = gamma(rate=3, requests=500, seed=2, cv=2)
    faster = workload.at_rate(12 / ureg.s)
    assert faster.rate == pytest.approx(12)
    np.testing.assert_allclose(faster.arrival * 12, workload.arrival * workload.rate)
    assert faster.prompt_tokens is not workload.prompt_tokens
    np.testing.assert_array_equal(faster.prompt_tokens, workload.prompt_tokens)


def test_shuffled_gaps_keep_every_gap_and_lose_their_order():
    workload = gamma(rate=3, requests=500, seed=2, cv=2)
    shuffled = workload.shuffled_gaps(seed=1)
    gaps, kept = np.diff(workload.arrival), np.diff(shuffled.arrival)
    np.testing.assert_allclose(np.sort(gaps), np.sort(kept), atol=1e-9)
    assert not np.allclose(gaps, kept)
    assert shuffled.arrival[0] == workload.arrival[0]
    assert shuffled == workload.shuffled_gaps(seed=1) != workload.shuffled_gaps(seed=2)


# ---- arrival processes


DRAWS = {
    "poisson": lambda seed, **kind: poisson(4, 50, seed, **kind),
    "gamma": lambda seed, **kind: gamma(4, 50, seed, cv=2, **kind),
    "burst": lambda seed, **kind: burst(4, 50, seed, **kind),
    "profile": lambda seed: profile("azure-code-2023", seed),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_seed_names_one_workload(draw):
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("seed", [None, -1, 1.5, "1"])
def test_a_seed_must_be_a_whole_number(draw, seed):
    with pytest.raises((TypeError, ValueError), match="seed must be"):
        draw(seed)


@pytest.mark.parametrize("name", ["poisson", "gamma", "burst"])
def test_tokens_may_be_one_number_one_for_each_request_or_drawn(name):
    draw = DRAWS[name]
    each = np.arange(1, 51)
    assert set(draw(1, prompt_tokens=7).prompt_tokens) == {7}
    np.testing.assert_array_equal(draw(1, prompt_tokens=each, new_tokens=list(each)).new_tokens, each)
    drawn = draw(1, new_tokens=lambda rng, n: rng.geometric(0.1, n))
    assert len(set(drawn.new_tokens)) > 5
    np.testing.assert_array_equal(drawn.arrival, draw(1).arrival)  # other tokens, same arrivals


@pytest.mark.parametrize("name", ["poisson", "gamma", "burst"])
@pytest.mark.parametrize("tokens", [0, -1, 2.5, [1, 2], "many", lambda rng, n: rng.normal(size=n)])
def test_tokens_that_cannot_be_are_refused_by_name(name, tokens):
    with pytest.raises((TypeError, ValueError), match="new_tokens must"):
        DRAWS[name](1, new_tokens=tokens)


@pytest.mark.parametrize(
    ("draw", "error", "words"),
    [
        (lambda: poisson(0, 5, 1), ValueError, "rate must be positive"),
        (lambda: poisson(math.nan, 5, 1), ValueError, "rate must be positive"),
        (lambda: poisson(2 * ureg.s, 5, 1), pint.DimensionalityError, "rate must be a rate"),
        (lambda: poisson(2, -1, 1), ValueError, "requests must be"),
        (lambda: poisson(2, 1.5, 1), ValueError, "requests must be"),
        (lambda: gamma(2, 5, 1, cv=-1), ValueError, "cv must be nonnegative"),
        (lambda: burst(2, 5, 1, ratio=0.5), ValueError, "ratio must be at least 1"),
        (lambda: burst(2, 5, 1, burst_share=0), ValueError, "burst_share must be in"),
        (lambda: burst(2, 5, 1, burst_share=1), ValueError, "burst_share must be in"),
        (lambda: burst(2, 5, 1, mean_burst=0), ValueError, "mean_burst must be positive"),
        (lambda: profile("azure", 1), ValueError, "name must be one of 'azure-conv-2023', 'azure-code-2023'"),
    ],
)
def test_an_argument_outside_its_domain_is_refused_by_name(draw, error, words):
    with pytest.raises(error, match=words):
        draw()


@pytest.mark.parametrize("name", ["poisson", "gamma", "burst"])
def test_units_change_nothing(name):
    draw = {"poisson": poisson, "gamma": lambda *a: gamma(*a, cv=2), "burst": burst}[name]
    one = draw(120 * ureg.request / ureg.minute, 50, 3)
    np.testing.assert_allclose(one.arrival, draw(2, 50, 3).arrival)
    other = pint.UnitRegistry()
    np.testing.assert_allclose(draw(2 / other.s, 50, 3).arrival, one.arrival)


@pytest.mark.parametrize("cv", [0, 0.25, 0.5, 1, 2, 4])
def test_gamma_gaps_have_the_mean_and_the_cv_asked_for(cv):
    gaps = np.diff(gamma(5, 200_000, seed=4, cv=cv).arrival)
    # Standard errors of the two estimates, for gaps of shape 1/cv^2: cv / sqrt(n), and cv sqrt((1 + 2 cv^2) / 2n).
    n = len(gaps)
    assert gaps.mean() * 5 == pytest.approx(1, abs=4 * cv / math.sqrt(n) + 1e-9)
    assert math.sqrt(squared_cv(gaps)) == pytest.approx(cv, abs=5 * cv * math.sqrt((1 + 2 * cv**2) / (2 * n)) + 1e-6)


@pytest.mark.parametrize("window", [0.1, 1, 30])
def test_poisson_arrivals_have_an_index_of_dispersion_of_one(window):
    arrival = poisson(20, 200_000, seed=11).arrival
    windows = 10_000 / window
    # Var(index) is about 2/windows + 1/(windows x mean count).
    error = math.sqrt(2 / windows + 1 / (windows * 20 * window))
    assert index_of_dispersion(arrival, window) == pytest.approx(1, abs=4 * error)


@pytest.mark.parametrize("window", [0.5, 5, 50])
def test_burst_arrivals_have_the_index_of_dispersion_of_the_mmpp(window):
    share, ratio, length, rate = 0.2, 5.0, 10.0, 4.0
    calm = rate / (1 - share + ratio * share)
    k = 1 / length + share / ((1 - share) * length)
    memory = 1 - (1 - math.exp(-k * window)) / (k * window)
    expected = 1 + 2 * share * (1 - share) * ((ratio - 1) * calm) ** 2 / (rate * k) * memory
    runs = [burst(rate, 40_000, seed, ratio=ratio, burst_share=share, mean_burst=length) for seed in range(16)]
    measured = [index_of_dispersion(run.arrival, window) for run in runs]
    error = np.std(measured, ddof=1) / math.sqrt(len(measured))
    assert np.mean(measured) == pytest.approx(expected, abs=4 * error)
    assert error < 0.05 * expected
    rates = [run.rate for run in runs]
    assert np.mean(rates) == pytest.approx(rate, abs=4 * np.std(rates, ddof=1) / math.sqrt(len(rates)))


def test_a_burst_no_stronger_than_the_calm_is_poisson():
    arrival = burst(20, 200_000, seed=1, ratio=1).arrival
    assert squared_cv(np.diff(arrival)) == pytest.approx(1, abs=0.02)
    assert index_of_dispersion(arrival, 10) == pytest.approx(1, abs=0.2)


def test_zero_requests_are_an_empty_workload():
    assert [len(draw(2, 0, 1)) for draw in (poisson, burst)] == [0, 0]


@pytest.mark.parametrize(
    ("arrival", "window", "expected"),
    [
        ([0, 1, 2, 3, 4], 1, 0),  # one in each window
        ([0, 0, 0, 3, 3, 3, 6], 2, 1),  # 3, 3, 0: variance 2, mean 2; the last arrival opens a window that is not whole
        ([5, 5, 8.9, 9], 2, 1 / 6),  # windows start at the first arrival: 2, 1
        ([5, 5, 8.9, 9], 2000 * ureg.ms, 1 / 6),
    ],
)
def test_the_index_of_dispersion_by_hand(arrival, window, expected):
    assert index_of_dispersion(arrival, window) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("arrival", "window"), [([], 1), ([3], 1), ([0, 1.5], 1), ([0, 1], math.nan), ([0, 9], 0)])
def test_an_index_of_dispersion_without_two_windows_is_refused(arrival, window):
    with pytest.raises(ValueError, match="window must"):
        index_of_dispersion(arrival, window)


def test_a_short_window_over_a_long_trace_costs_no_memory():
    assert index_of_dispersion([0, 1e9], 1e-6) == pytest.approx(1)


# ---- profiles of real traces


@pytest.fixture(scope="module")
def traces(shared_data):
    return measure_profiles.read_traces(shared_data)


def two_sample_ks(x, y):
    """Largest distance between two empirical distribution functions."""
    at = np.concatenate([x, y])
    return np.abs(
        np.searchsorted(np.sort(x), at, side="right") / len(x) - np.searchsorted(np.sort(y), at, side="right") / len(y)
    ).max()


def mean_wait(arrival, utilization):
    """Mean wait of Lindley's recursion: one server, deterministic service, as busy as asked on average."""
    gaps = np.diff(arrival)
    walk = np.concatenate([[0.0], np.cumsum(utilization * gaps.mean() - gaps)])
    return (walk - np.minimum.accumulate(walk)).mean()


def test_measuring_the_traces_again_gives_the_committed_statistics(traces):
    assert measure_profiles.as_json(traces) == measure_profiles.OUTPUT.read_text(encoding="utf-8")


def test_the_statistics_carry_the_attribution_that_their_license_asks_for():
    document = json.loads(measure_profiles.OUTPUT.read_text(encoding="utf-8"))
    for word in ("Azure Public Dataset", "LLM inference trace 2023", "Microsoft", "CC-BY 4.0"):
        assert word in document["attribution"]
    assert measure_profiles.OUTPUT.stat().st_size < 30_000


@pytest.mark.parametrize("name", measure_profiles.TRACES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_profile_has_the_arrivals_of_its_trace(traces, name, seed):
    trace, drawn = traces[name], profile(name, seed)
    assert len(drawn) == len(trace)
    assert drawn.arrival[0] == 0
    assert drawn.rate == pytest.approx(trace.rate)
    for window in (10, 60):
        expected = index_of_dispersion(trace.arrival, window)
        assert index_of_dispersion(drawn.arrival, window) == pytest.approx(expected, rel=0.01)
    # Within a window the spacing is drawn from one shape; it loses the correlation that lasts a second.
    assert index_of_dispersion(drawn.arrival, 1) == pytest.approx(index_of_dispersion(trace.arrival, 1), rel=0.15)


@pytest.mark.parametrize("name", measure_profiles.TRACES)
@pytest.mark.parametrize("column", ["prompt_tokens", "new_tokens"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_profile_has_the_tokens_of_its_trace(traces, name, column, seed):
    trace, drawn = getattr(traces[name], column), getattr(profile(name, seed), column)
    critical = 1.358 * math.sqrt(2 / len(trace))  # 5 %
    assert two_sample_ks(trace, drawn) < critical
    assert drawn.mean() == pytest.approx(trace.mean(), rel=0.01)
    assert drawn.max() <= trace.max()
    assert drawn.min() >= trace.min()


@pytest.mark.parametrize("column", ["prompt_tokens", "new_tokens"])
def test_the_rush_has_long_prompts_and_short_outputs_in_the_profile_as_in_the_trace(traces, column):
    # Drawn from one distribution for the whole hour, the spread would be 0.23 for both.
    def spread_over_minutes(workload):
        tokens = np.bincount((workload.arrival // 60).astype(int), getattr(workload, column))[:-1]
        return tokens.std() / tokens.mean()

    real = spread_over_minutes(traces["azure-conv-2023"])
    drawn = np.mean([spread_over_minutes(profile("azure-conv-2023", seed)) for seed in range(5)])
    assert drawn == pytest.approx(real, rel=0.25)
    assert abs(drawn - real) < abs(0.23 - real) / 3


def test_the_waits_of_the_real_order_are_those_of_lecture_01(traces):
    trace = traces["azure-conv-2023"]
    assert squared_cv(np.diff(trace.arrival)) == pytest.approx(1.197, abs=0.0005)
    assert mean_wait(trace.arrival, 0.8) == pytest.approx(10.96, abs=0.005)
    assert mean_wait(trace.arrival, 0.9) == pytest.approx(53.4, abs=0.05)
    for utilization, shuffled in ((0.8, 0.33), (0.9, 0.87)):
        waits = [mean_wait(trace.shuffled_gaps(seed).arrival, utilization) for seed in range(20)]
        assert np.mean(waits) == pytest.approx(shuffled, rel=0.05)
    assert [index_of_dispersion(trace.arrival, w) for w in (1, 10, 60)] == pytest.approx([1.39, 3.86, 16.1], abs=0.05)


def test_the_profile_waits_as_the_trace_does(traces):
    trace = traces["azure-conv-2023"]
    drawn = [profile("azure-conv-2023", seed) for seed in range(10)]
    for utilization, tolerance in ((0.8, 0.03), (0.9, 0.015)):
        mean = np.mean([mean_wait(workload.arrival, utilization) for workload in drawn])
        assert mean == pytest.approx(mean_wait(trace.arrival, utilization), rel=tolerance)
    scv = np.mean([squared_cv(np.diff(workload.arrival)) for workload in drawn])
    assert scv == pytest.approx(squared_cv(np.diff(trace.arrival)), rel=0.02)
    shuffled = np.mean([mean_wait(workload.shuffled_gaps(0).arrival, 0.8) for workload in drawn])
    assert shuffled == pytest.approx(0.33, abs=0.02)

"""The queue simulator against theory, against hand-worked cases and against SimPy."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pint
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib.queue_simulator import Interval, mean_interval, simulate_queue, student_t_factor
from serving_lib.units import ureg

# Multiples of 1/1024 add without rounding, so two correct simulators must agree to the last bit.
dyadic = st.integers(0, 1 << 16).map(lambda n: n / 1024)
customers = st.lists(st.tuples(dyadic, dyadic), min_size=1, max_size=60).map(
    lambda pairs: (np.cumsum([gap for gap, _ in pairs]), np.array([service for _, service in pairs]))
)
server_counts = st.integers(1, 6)


def mmc_mean_wait(servers, utilization):
    """Mean M/M/c wait in service times, from the sum over states in exact fractions."""
    load = Fraction(utilization) * servers
    busy = load**servers / math.factorial(servers) / (1 - Fraction(utilization))
    delayed = busy / (sum(load**k / math.factorial(k) for k in range(servers)) + busy)
    return float(delayed / (servers - load))


def simulate_mmc(servers, utilization, customers, seed):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / (servers * utilization), customers))
    return simulate_queue(arrivals, lambda rng, size: rng.exponential(1.0, size), servers, seed=seed + 1)


def simpy_start_times(arrivals, services, servers):
    """The same queue as SimPy models it: one process per customer, one shared resource."""
    environment = simpy.Environment()
    pool = simpy.Resource(environment, capacity=servers)
    starts = np.empty(len(arrivals))

    def customer(index):
        yield environment.timeout(arrivals[index])
        with pool.request() as turn:
            yield turn
            starts[index] = environment.now
            yield environment.timeout(services[index])

    for index in range(len(arrivals)):
        environment.process(customer(index))
    environment.run()
    return starts


# --- theory ----------------------------------------------------------------------------------------------------------

MMC_GRID = [(servers, load) for servers in (1, 2, 4, 16) for load in (0.3, 0.5, 0.7, 0.8, 0.9)]


@pytest.mark.parametrize(("servers", "utilization"), MMC_GRID)
def test_the_simulated_mean_wait_of_mmc_agrees_with_erlang_c(servers, utilization):
    # The whole grid, not each cell, holds with 99 %: each of its cells is tested at 1 - 0.01 / cells (Bonferroni).
    run = simulate_mmc(servers, utilization, customers=200_000, seed=7)
    interval = mean_interval(run.wait, confidence=1 - 0.01 / len(MMC_GRID))
    theory = mmc_mean_wait(servers, utilization)
    assert theory in interval
    if theory > 1e-3:
        assert interval.half_width < 0.4 * theory, "an interval this wide would accept a wrong formula"


def test_the_grid_would_catch_a_queue_that_forgets_half_of_the_variability():
    run = simulate_mmc(1, 0.8, customers=200_000, seed=7)
    md1_wait = mmc_mean_wait(1, 0.8) / 2  # Pollaczek-Khinchine with deterministic service
    assert md1_wait not in mean_interval(run.wait, confidence=1 - 0.01 / len(MMC_GRID))


def test_deterministic_service_halves_the_mm1_wait():
    rng = np.random.default_rng(3)
    run = simulate_queue(np.cumsum(rng.exponential(1 / 0.7, 200_000)), service=1.0)
    assert mmc_mean_wait(1, 0.7) / 2 in mean_interval(run.wait)


def test_the_interval_covers_the_true_mean_as_often_as_it_says():
    theory = mmc_mean_wait(1, 0.5)
    runs = 400
    covered = sum(
        theory in mean_interval(simulate_mmc(1, 0.5, 5_000, seed=2 * seed).wait, confidence=0.9) for seed in range(runs)
    )
    # Batches of 225 customers leave a little correlation, so up to 2 points of coverage may be missing.
    spread = 4 * math.sqrt(runs * 0.9 * 0.1)
    assert runs * 0.88 - spread < covered < runs * 0.9 + spread


def test_the_interval_shrinks_with_the_square_root_of_the_run_length():
    short = [mean_interval(simulate_mmc(1, 0.5, 4_000, seed).wait).half_width for seed in range(40)]
    long = [mean_interval(simulate_mmc(1, 0.5, 64_000, seed).wait).half_width for seed in range(40)]
    assert 3.2 < np.mean(short) / np.mean(long) < 4.8


def test_littles_law_holds_on_the_run_that_starts_and_ends_empty():
    run = simulate_mmc(3, 0.8, customers=5_000, seed=1)
    events = np.concatenate([np.stack([run.arrival, np.ones(5_000)]), np.stack([run.finish, -np.ones(5_000)])], axis=1)
    times, steps = events[:, np.argsort(events[0], kind="stable")]
    customer_seconds = np.sum(np.cumsum(steps)[:-1] * np.diff(times))
    assert customer_seconds == pytest.approx(run.time_in_system.sum(), rel=1e-9)


# --- hand-worked cases -----------------------------------------------------------------------------------------------


def test_regular_arrivals_slower_than_service_never_wait():
    run = simulate_queue(np.arange(100.0), service=0.75)
    assert np.array_equal(run.wait, np.zeros(100))
    assert np.array_equal(run.time_in_system, np.full(100, 0.75))


def test_regular_arrivals_faster_than_service_wait_a_little_longer_each():
    run = simulate_queue(np.arange(100.0), service=1.25)
    assert np.array_equal(run.wait, 0.25 * np.arange(100))


@pytest.mark.parametrize(
    ("arrivals", "service", "servers", "starts"),
    [
        pytest.param([0, 0, 0], [3, 1, 1], 1, [0, 3, 4], id="a tie keeps the order given"),
        pytest.param([0, 0, 0], [3, 1, 1], 2, [0, 0, 1], id="the third takes the server that falls free first"),
        pytest.param([0, 1, 2, 3], [10, 2, 1, 1], 2, [0, 1, 3, 4], id="a long job blocks one server only"),
        pytest.param([0, 5], [5, 1], 1, [0, 5], id="a departure serves the arrival of the same instant"),
        pytest.param([0, 0, 0], 2, 5, [0, 0, 0], id="more servers than customers"),
        pytest.param([4, 4], 0, 1, [4, 4], id="service may take no time"),
        pytest.param([], [], 3, [], id="nobody comes"),
    ],
)
def test_customers_start_in_order_at_the_first_free_server(arrivals, service, servers, starts):
    assert simulate_queue(arrivals, service, servers).start.tolist() == starts


# --- another simulator, and what every run must satisfy --------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(customers, server_counts)
def test_every_start_equals_simpys_on_the_same_customers(customers, servers):
    arrivals, services = customers
    assert np.array_equal(
        simulate_queue(arrivals, services, servers).start, simpy_start_times(arrivals, services, servers)
    )


@settings(max_examples=150, deadline=None)
@given(customers, server_counts)
def test_nobody_overtakes_no_server_is_shared_and_none_idles_while_someone_waits(customers, servers):
    arrivals, services = customers
    run = simulate_queue(arrivals, services, servers)
    assert np.array_equal(run.finish, run.start + services)
    assert np.all(run.wait >= 0)
    assert np.all(np.diff(run.start) >= 0)
    for start, waited in zip(run.start, run.wait > 0, strict=True):
        in_service = np.sum((run.start < start) & (run.finish > start))
        assert in_service < servers
        if waited:
            just_before = np.sum((run.start < start) & (run.finish >= start))
            assert just_before >= servers


@settings(max_examples=100, deadline=None)
@given(customers, server_counts)
def test_another_server_never_delays_anyone(customers, servers):
    arrivals, services = customers
    assert np.all(
        simulate_queue(arrivals, services, servers + 1).start <= simulate_queue(arrivals, services, servers).start
    )


# --- seeds, units, refusals ------------------------------------------------------------------------------------------


def test_the_seed_alone_decides_the_drawn_service_times():
    def run(seed):
        return simulate_queue(np.arange(50.0), lambda rng, size: rng.exponential(1, size), seed=seed)

    assert np.array_equal(run(5).finish, run(5).finish)
    assert not np.array_equal(run(5).finish, run(6).finish)


def test_times_come_back_in_the_unit_of_the_arrivals():
    run = simulate_queue([0, 1, 2] * ureg.s, 3000 * ureg.ms)
    assert run.wait.units == ureg.s
    assert run.wait.magnitude.tolist() == [0, 2, 4]
    drawn = simulate_queue([0, 1] * ureg.s, lambda rng, size: rng.uniform(1500, 1500, size) * ureg.ms)
    assert drawn.finish.magnitude.tolist() == [1.5, 3.0]
    interval = mean_interval(run.wait, batches=2)
    assert interval.mean == 3 * ureg.s
    assert 3000 * ureg.ms in interval


def test_a_quantity_of_another_registry_works():
    other = pint.UnitRegistry()
    run = simulate_queue([0, 1] * other.s, 2000 * ureg.ms)
    assert (run.finish == [2, 4] * other.s).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0, 2, 1], 1), ValueError, r"arrivals must be in ascending order.*index 1"),
        (([0, math.nan], 1), ValueError, "arrivals must be nonnegative and finite, got nan at index 1"),
        (([-1, 0], 1), ValueError, "arrivals must be nonnegative"),
        (([[0, 1]], 1), ValueError, "arrivals must be one-dimensional"),
        ((["a"], 1), ValueError, "could not convert"),
        (([0, 1], [1]), ValueError, r"service must hold one time per arrival \(2\), got shape \(1,\)"),
        (([0, 1], [1, -1]), ValueError, "service must be nonnegative and finite, got -1.0 at index 1"),
        (([0, 1], math.inf), ValueError, "service must be nonnegative and finite"),
        (([0, 1], None), TypeError, "service must be a number"),
        (([0, 1], 1 * ureg.s), TypeError, "both carry a time unit, or neither"),
        (([0, 1] * ureg.s, 1), TypeError, "both carry a time unit, or neither"),
        (([0, 1] * ureg.s, 1 * ureg.m), pint.DimensionalityError, "service must be a time"),
        (([0, 1] * ureg.m, 1 * ureg.s), pint.DimensionalityError, "arrivals must be a time"),
        (([0, 1], 1, 0), ValueError, "servers must be a whole number of at least 1"),
        (([0, 1], 1, 1.5), ValueError, "servers must be a whole number of at least 1"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        simulate_queue(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": np.ones(10)}, r"at least one value per batch \(20\) after the warm-up, got 9; simulate more"),
        ({"values": np.ones(10), "batches": 1}, "batches must be a whole number of at least 2"),
        ({"values": np.ones(100), "confidence": 1.0}, r"confidence must be in \(0, 1\), got 1.0"),
        ({"values": np.ones(100), "warmup": 1.0}, r"warmup must be in \[0, 1\), got 1.0"),
        ({"values": np.array([1.0, np.nan]), "batches": 2}, "values must be finite, got nan at index 1"),
        ({"values": np.ones((5, 5)), "batches": 2}, "values must be one-dimensional"),
    ],
)
def test_an_interval_that_cannot_be_estimated_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mean_interval(**arguments)


# --- the interval's own arithmetic -----------------------------------------------------------------------------------


def test_the_warm_up_leaves_out_the_first_values_and_batches_are_of_equal_length():
    values = np.concatenate([np.full(10, 1e6), np.tile([0.0, 2.0], 50)])
    interval = mean_interval(values, batches=10, warmup=0.05)  # 104 values stay, the last 100 fill ten batches
    assert interval == Interval(mean=1.0, half_width=0.0, confidence=0.99, batches=10)


def test_the_mean_of_a_condition_is_the_share_that_meets_it():
    assert mean_interval(np.array([True, False] * 50), batches=10).mean == 0.5


def test_the_half_width_is_the_student_t_factor_times_the_standard_error_of_the_batch_means():
    interval = mean_interval([1.0, 3.0, 5.0, 7.0], confidence=0.9, batches=2, warmup=0.0)
    assert interval.mean == 4.0
    assert interval.half_width == pytest.approx(6.313751514675043 * 2, rel=1e-14)  # tan(0.45 pi) times |6 - 2| / 2
    assert (interval.low, interval.high) == (4.0 - interval.half_width, 4.0 + interval.half_width)
    assert str(interval) == "4 ± 13 (90 % interval, 2 batches)"


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 10, 19, 99, 1000])
@pytest.mark.parametrize("confidence", [0.01, 0.5, 0.9, 0.99, 0.999, 0.999999])
def test_the_student_t_factor_inverts_the_distribution(confidence, degrees):
    t = mpmath.mpf(student_t_factor(confidence, degrees))
    with mpmath.workdps(40):

        def outside(t):
            return mpmath.betainc(mpmath.mpf(degrees) / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True)

        exact = mpmath.findroot(lambda t: outside(t) - (1 - mpmath.mpf(confidence)), t * (1 + mpmath.mpf(10) ** -12))
        assert abs(t / exact - 1) < 1e-9

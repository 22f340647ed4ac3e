"""The closed forms beyond the contract: values, numerics, units and refusals."""

import inspect
import json
import math
import pathlib

import mpmath
import numpy as np
import pint
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib import batching, kvcache, queueing, speculative
from serving_lib.batching import affine_batch_chain, birth_death_chain, calc_roofline_step_time
from serving_lib.kvcache import calc_kv_bytes_per_token, calc_kv_pages, calc_last_page_waste
from serving_lib.queue_simulator import mean_interval, simulate_queue
from serving_lib.queueing import (
    calc_allen_cunneen_wait,
    calc_kingman_wait_ratio,
    calc_mm1_time_in_system,
    calc_mmc_mean_wait,
    calc_mmc_min_servers,
    calc_mmc_response_quantile,
    calc_queue_latency_mmc,
)
from serving_lib.speculative import (
    calc_acceptance_rate,
    calc_speculative_best_draft_length,
    calc_speculative_break_even_batch,
    calc_speculative_expected_tokens,
    calc_speculative_round_speedup,
)
from serving_lib.units import ureg

EXTRAS = {
    name.split("(")[0].split(":")[0]: rows
    for name, rows in json.loads((pathlib.Path(__file__).parent / "golden" / "formulas.json").read_text())[
        "extras"
    ].items()
}


def golden(name):
    return pytest.mark.parametrize(
        "row", EXTRAS[name], ids=lambda row: " ".join(f"{k}={v}"[:9] for k, v in row.items())
    )


def close(value, reference, tolerance):
    """Whether a float lies within a relative tolerance of a reference of 50 digits; equal where that is zero."""
    with mpmath.workdps(60):
        reference = mpmath.mpf(reference)
        return abs(mpmath.mpf(float(value)) - reference) <= tolerance * abs(reference)


# --- M/M/c -----------------------------------------------------------------------------------------------------------


@golden("allen_cunneen_wait")
def test_allen_cunneen_meets_the_reference(row):
    wait = calc_allen_cunneen_wait(float(row["a"]), 1.0, row["c"], row["ca2"], row["cs2"])
    assert close(wait, row["value"], 1e-15)


@golden("mmc_response_quantile")
@pytest.mark.parametrize(("name", "quantile"), [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)])
def test_the_response_quantile_meets_the_reference(row, name, quantile):
    assert close(calc_mmc_response_quantile(float(row["a"]), 1.0, row["c"], quantile), row[name], 1e-15)


@golden("min_servers")
def test_the_fewest_servers_are_those_of_the_reference(row):
    assert calc_mmc_min_servers(float(row["a"]), 1.0, float(row["budget"])) == row["c"]


@golden("kingman_error")
def test_kingman_meets_the_reference_and_errs_by_the_known_amount(row):
    rho = float(mpmath.mpf(row["rho"]))
    top, _, bottom = row["arrival_scv"].partition("/")
    approximation = calc_kingman_wait_ratio(rho, float(top) / float(bottom or 1), 1.0)
    assert close(approximation, row["kingman"], 1e-14)
    too_high = float(row["kingman"]) > float(row["exact"])
    assert too_high == (row["arrivals"] in ("D", "Erlang4")), "Kingman errs high for regular arrivals, low for bursty"


def exact_response_quantile(servers, load, quantile):
    """The quantile from the distribution itself, with 60 digits."""
    load, quantile = mpmath.mpf(load), mpmath.mpf(quantile)
    term, total = mpmath.mpf(1), mpmath.mpf(1)
    for k in range(servers):
        term *= (servers - k) / load
        total += term
    delayed = 1 / (1 + (1 - load / servers) * (total - 1))
    spare = servers - load

    def share_left(time):
        if spare == 1:
            return mpmath.exp(-time) * (1 + delayed * time)
        return mpmath.exp(-time) + delayed * (mpmath.exp(-time) - mpmath.exp(-spare * time)) / (spare - 1)

    low, high = mpmath.mpf(0), -mpmath.log(1 - quantile)
    while share_left(high) > 1 - quantile:
        low, high = high, 2 * high
    while high - low > high * mpmath.mpf(10) ** -25:
        middle = (low + high) / 2
        low, high = (middle, high) if share_left(middle) > 1 - quantile else (low, middle)
    return high


def loads_around_the_double_pole(servers):
    """Loads whose spare capacity is one server, nearly one server, and far from it."""
    pole = servers - 1.0
    near = [pole, math.nextafter(pole, servers), math.nextafter(pole, 0), pole + 1e-12, pole - 1e-9, pole + 1e-5]
    far = [1e-8, 0.01 * servers, 0.5 * servers, 0.9 * servers, servers - 1e-9, math.nextafter(servers, 0)]
    return [load for load in near + far if load > 0]


@pytest.mark.parametrize("servers", [1, 2, 3, 10, 64])
@pytest.mark.parametrize("quantile", [1e-9, 0.01, 0.4999, 0.5, 0.9, 0.99, 0.999999, 1 - 2**-53])
def test_the_response_quantile_is_exact_to_the_last_digits_where_wait_and_service_are_alike(servers, quantile):
    with mpmath.workdps(60):
        for load in loads_around_the_double_pole(servers):
            ours = calc_mmc_response_quantile(load, 1.0, servers, quantile)
            assert close(ours, exact_response_quantile(servers, load, quantile), 1e-15), load


def test_one_server_has_an_exponential_response():
    for quantile in (0.5, 0.99):
        factor = -math.log1p(-quantile)
        expected = factor * calc_mm1_time_in_system(1.0, 0.75)
        assert calc_mmc_response_quantile(0.75, 1.0, 1, quantile) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(("servers", "utilization"), [(1, 0.7), (4, 0.75), (4, 0.8), (16, 0.9)])
def test_one_response_in_a_hundred_of_a_simulation_is_longer_than_the_p99(servers, utilization):
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(1 / (servers * utilization), 300_000))
    run = simulate_queue(arrivals, lambda rng, size: rng.exponential(1.0, size), servers, seed=12)
    p99 = calc_mmc_response_quantile(servers * utilization, 1.0, servers, 0.99)
    late = mean_interval(run.time_in_system > p99, confidence=1 - 0.01 / 4)  # four cases, 99 % together
    assert 0.01 in late
    assert late.half_width < 0.006


def test_the_p99_response_is_three_times_what_the_p99_wait_suggests_at_64_servers():
    arrival, service = 0.9 * 64 / ureg.s, 1 / ureg.s
    _, _, p99_wait = calc_queue_latency_mmc(arrival, service, 64)
    assert round((p99_wait + 1 * ureg.s).m_as("s"), 2) == 1.54
    assert round(calc_mmc_response_quantile(arrival, service, 64, 0.99).m_as("s"), 2) == 4.66


def test_four_split_four_pooled_and_one_fast_server_at_80_percent():
    split = 1 + calc_mmc_mean_wait(0.8, 1.0, 1)
    pooled = 1 + calc_mmc_mean_wait(3.2, 1.0, 4)
    fast = 1 / 4 + calc_mmc_mean_wait(3.2, 4.0, 1)
    assert [round(time, 2) for time in (split, pooled, fast)] == [5.0, 1.75, 1.25]


def test_a_hundred_servers_at_90_percent_wait_a_fiftieth_of_a_service_and_one_waits_nine():
    assert round(calc_mmc_mean_wait(90.0, 1.0, 100), 2) == 0.02
    assert round(calc_mmc_mean_wait(0.9, 1.0, 1), 12) == 9.0


def test_the_fewest_servers_meet_the_budget_and_one_fewer_does_not():
    rng = np.random.default_rng(5)
    for load, budget in zip(10 ** rng.uniform(-2, 4, 60), rng.choice([0.0, 0.001, 0.1, 2.0], 60), strict=True):
        servers = calc_mmc_min_servers(load, 1.0, budget)
        waits = [calc_queue_latency_mmc(load, 1.0, c)[2].m_as("s") for c in (servers, max(servers - 1, 1))]
        assert waits[0] <= budget
        assert servers == 1 or waits[1] > budget


def test_the_p99_wait_of_c_servers_is_a_budget_that_c_servers_meet():
    for servers in (5, 7, 50):
        _, _, p99 = calc_queue_latency_mmc(4.4 / ureg.s, 1 / ureg.s, servers)
        assert calc_mmc_min_servers(4.4 / ureg.s, 1 / ureg.s, p99) == min(servers, calc_mmc_min_servers(4.4, 1.0, 0.0))


def test_mmc_at_or_above_capacity_waits_forever():
    for load in (4.0, 5.0):
        assert calc_mmc_mean_wait(load, 1.0, 4) == math.inf
        assert calc_mmc_response_quantile(load / ureg.s, 1 / ureg.s, 4, 0.5) == math.inf * ureg.s
        assert calc_allen_cunneen_wait(load, 1.0, 4, 1, 1) == math.inf


def test_nobody_waits_where_nobody_comes():
    assert calc_mmc_mean_wait(0, 1.0, 4) == 0.0
    assert calc_mmc_min_servers(0, 1.0, 0.0) == 1
    assert calc_mmc_response_quantile(0.0, 1.0, 4, 0.9) == pytest.approx(math.log(10), rel=1e-15)
    assert calc_mmc_response_quantile(0.5, 1.0, 4, 0.0) == 0.0


def test_rates_of_any_unit_give_times_in_the_service_rates_unit():
    wait = calc_mmc_mean_wait(300 / ureg.hour, 6 * ureg.request / ureg.minute, 1)
    assert wait.units == ureg.minute
    assert wait.magnitude == pytest.approx(calc_mmc_mean_wait(5.0, 6.0, 1), rel=1e-14)
    assert calc_mmc_min_servers(300 / ureg.hour, 6 / ureg.minute, 1 * ureg.s) == calc_mmc_min_servers(5.0, 6.0, 1 / 60)


# --- batching --------------------------------------------------------------------------------------------------------


@golden("affine_batch_birth_death")
def test_the_affine_batch_chain_meets_the_reference(row):
    chain = affine_batch_chain(float(row["lam"]), float(row["t0"]), float(row["treq"]), row["bmax"], row["K"])
    # A product of K rounded ratios is off by up to K roundings, as is the exact product at a rate off by one rounding.
    for value, name in ((chain.probabilities[0], "p0"), (chain.blocking, "p_block"), (chain.wait, "Wq_s")):
        assert close(value, row[name], 2.3e-16 * row["K"]), name
    for value, name in (
        (chain.throughput, "throughput"),
        (chain.in_system, "L"),
        (chain.time_in_system, "W_s"),
        (chain.in_service, "mean_in_service"),
    ):
        assert close(value, row[name], 2e-15), name


@golden("mmck")
def test_a_chain_with_servers_of_one_rate_is_mmck(row):
    rates = np.minimum(np.arange(1, row["K"] + 1), row["c"]) * 1.0
    chain = birth_death_chain(float(row["a"]), rates, row["c"])
    assert close(chain.blocking, row["p_block"], 2e-15)
    assert close(chain.wait, row["Wq_mu"], 2e-15)
    assert close(chain.wait * chain.throughput, row["Lq"], 2e-15)


@golden("erlang_b")
def test_a_chain_without_a_line_is_erlang_b(row):
    chain = birth_death_chain(float(row["a"]), np.arange(1.0, row["c"] + 1), row["c"])
    assert close(chain.blocking, row["value"], 2e-15)
    assert chain.wait == 0.0


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.1, 10),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    st.integers(1, 10),
)
def test_the_chain_solves_its_balance_equations(arrival, rates, slots):
    chain = birth_death_chain(arrival, np.array(rates), slots)
    generator = np.diag([arrival] * len(rates), 1) + np.diag(rates, -1)
    generator -= np.diag(generator.sum(axis=1))
    balance = np.vstack([generator.T, np.ones(len(rates) + 1)])
    expected = np.linalg.lstsq(balance, [0.0] * (len(rates) + 1) + [1.0], rcond=None)[0]
    assert chain.probabilities == pytest.approx(expected, abs=1e-10)
    assert chain.throughput == pytest.approx(chain.probabilities[1:] @ rates, rel=1e-12)
    assert chain.in_system == pytest.approx(chain.in_service + chain.wait * chain.throughput, rel=1e-12)
    assert chain.in_system == pytest.approx(chain.throughput * chain.time_in_system, rel=1e-12)


@pytest.mark.parametrize("arrival", [1e-3, 0.999, 1.0, 1.001, 1e3])
def test_a_chain_of_100_000_places_neither_overflows_nor_loses_probability(arrival):
    chain = birth_death_chain(arrival, np.ones(100_000), slots=1)
    assert chain.probabilities.sum() == pytest.approx(1.0, rel=1e-12)
    if arrival < 1:
        assert chain.in_system == pytest.approx(arrival / (1 - arrival), rel=1e-9)
    if arrival > 1:
        assert chain.blocking == pytest.approx(1 - 1 / arrival, rel=1e-9)


def test_two_modes_of_a_chain_far_apart_are_both_kept():
    rates = np.array([1e3] * 150 + [1e-3] * 150)  # falls to 1e-450 in between, where a plain product is zero
    chain = birth_death_chain(1.0, rates, slots=1)
    assert chain.probabilities[0] == pytest.approx(chain.probabilities[-1], rel=1e-12)
    assert chain.probabilities[0] == pytest.approx(0.4995, rel=1e-3)


def test_the_chain_keeps_the_readers_units():
    bare = affine_batch_chain(2.0, 0.3, 0.08, max_batch=8, capacity=40)
    chain = affine_batch_chain(120 / ureg.minute, 300 * ureg.ms, 0.08 * ureg.s, max_batch=8, capacity=40)
    assert chain.wait.units == ureg.minute
    assert chain.wait.m_as("s") == pytest.approx(bare.wait, rel=1e-12)
    assert chain.throughput.m_as("1/s") == pytest.approx(bare.throughput, rel=1e-12)


def test_the_roofline_step_has_two_knees():
    weights, kv, flops = 16 * ureg.GB, 1 * ureg.GB, 16e9
    hardware = {"bandwidth": 2 * ureg.TB / ureg.s, "peak_flops_per_second": 300e12 * ureg.flop / ureg.s}

    def step(batch, kv=kv):
        return calc_roofline_step_time(batch, weights, kv, flops, **hardware).m_as("ms")

    assert step(0) == 8.0
    assert step(16) == 16.0, "KV bytes equal weight bytes: twice the time of the weights alone"
    knee = 300e12 / 2e12
    no_kv = 0 * ureg.GB
    assert step(knee, no_kv) == 8.0
    assert step(2 * knee, no_kv) == 16.0, "beyond the compute knee time grows with the batch"
    assert step(np.array([0, 16])).tolist() == [8.0, 16.0]


def test_below_the_compute_knee_the_roofline_is_the_affine_service_of_the_batching_formulas():
    batch = np.arange(1, 100)
    hardware = {"bandwidth": 3.35 * ureg.TB / ureg.s, "peak_flops_per_second": 989e12 / ureg.s}
    time = calc_roofline_step_time(batch, 16 * ureg.GB, 0.25 * ureg.GB, 16e9, **hardware)
    fixed, per_request = 16 / 3.35 * ureg.ms, 0.25 / 3.35 * ureg.ms
    share = batching.calc_batch_throughput_share(batch, fixed, per_request)
    assert (batch / time * per_request).m_as("") == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("size", [ureg.Quantity(26e9, ""), 26e9 / ureg.token, 26e9 * ureg.flop])
def test_a_size_that_does_not_name_bytes_is_refused_rather_than_read_as_bits(size):
    hardware = {"bandwidth": 1 * ureg.TB / ureg.s, "peak_flops_per_second": 1e15 / ureg.s}
    with pytest.raises(pint.DimensionalityError, match="weight_bytes must be a size in bytes"):
        calc_roofline_step_time(1, size, 1 * ureg.GB, 1e9, **hardware)
    with pytest.raises(pint.DimensionalityError, match="bandwidth must be a bandwidth in bytes"):
        calc_roofline_step_time(1, 1 * ureg.GB, 1 * ureg.GB, 1e9, 1e12 / ureg.s, 1e15 / ureg.s)


# --- speculative decoding --------------------------------------------------------------------------------------------


def test_acceptance_is_what_the_two_distributions_share():
    assert calc_acceptance_rate([0.5, 0.3, 0.2], [0.2, 0.6, 0.2]) == pytest.approx(0.7, rel=1e-15)
    assert calc_acceptance_rate([1.0, 0.0], [0.0, 1.0]) == 0.0
    assert calc_acceptance_rate([0.1] * 10, [0.1] * 10) == 1.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 50))
def test_acceptance_is_symmetric_and_one_minus_half_the_absolute_difference(seed, size):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    assert calc_acceptance_rate(p, q) == calc_acceptance_rate(q, p)
    assert calc_acceptance_rate(p, q) == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=1e-12)


def test_acceptance_is_the_rate_at_which_simulated_drafts_are_kept():
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    drafts = rng.choice(6, 200_000, p=q)
    kept = rng.random(200_000) * q[drafts] < p[drafts]
    spread = 2.576 * math.sqrt(0.25 / 200_000)
    assert abs(kept.mean() - calc_acceptance_rate(p, q)) < spread


@pytest.mark.parametrize(
    ("acceptance", "cost", "length", "speedup"),
    [(0.8, 0.05, 8, 3.092), (0.8, 0.2, 4, 1.868), (0.6, 0.1, 3, 1.674)],
)
def test_the_best_draft_length_of_the_lecture(acceptance, cost, length, speedup):
    assert calc_speculative_best_draft_length(acceptance, cost) == length
    accepted = calc_speculative_expected_tokens(acceptance, length) - 1
    assert round(calc_speculative_round_speedup(accepted, length, cost), 3) == speedup


@settings(max_examples=150, deadline=None)
@given(st.floats(0, 0.98), st.floats(1e-3, 2))
def test_no_other_draft_length_is_faster(acceptance, cost):
    lengths = np.arange(1500)
    speedup = calc_speculative_expected_tokens(acceptance, lengths) / (lengths * cost + 1)
    best = calc_speculative_best_draft_length(acceptance, cost)
    assert speedup[best] >= speedup.max() * (1 - 1e-14)


@pytest.mark.parametrize("cost", [0.1, 0.3, 0.7, 0.9999])
def test_speculation_pays_exactly_where_a_draft_is_accepted_more_often_than_it_costs(cost):
    assert calc_speculative_best_draft_length(cost, cost) == 0
    assert calc_speculative_best_draft_length(cost + 1e-9, cost) >= 1


def test_a_very_cheap_and_accurate_draft_has_a_best_length_too():
    assert calc_speculative_best_draft_length(1 - 1e-12, 1e-9) > 10**10


@pytest.mark.parametrize(("peak", "bandwidth", "batch"), [(989, 3.35, 151.9), (312, 2.039, 78.7)], ids=["H100", "A100"])
def test_the_break_even_batch_of_the_lecture(peak, bandwidth, batch):
    assert round(calc_speculative_break_even_batch(0.7, 4, 0.05, knee=peak / bandwidth), 1) == batch


def test_at_the_break_even_batch_a_round_takes_as_long_as_the_tokens_it_saves():
    knee, drafts, cost = 295.0, 4, 0.05
    batch = calc_speculative_break_even_batch(0.7, drafts, cost, knee)
    round_time = drafts * cost + max(1, batch * (drafts + 1) / knee)
    assert round_time == pytest.approx(calc_speculative_expected_tokens(0.7, drafts), rel=1e-14)
    assert batch < knee


def test_a_draft_that_costs_more_than_it_brings_breaks_even_nowhere():
    assert calc_speculative_break_even_batch(0.1, 4, 0.5, knee=295) == 0.0
    assert calc_speculative_break_even_batch(np.array([0.1, 0.7]), 4, 0.05, 295)[0] == 0.0


# --- KV cache --------------------------------------------------------------------------------------------------------


def test_grouped_query_attention_counts_key_value_heads_not_query_heads():
    tokens = 128 * 1024 * ureg.token
    right = calc_kv_bytes_per_token(layers=80, kv_heads=8, head_dim=128) * tokens
    wrong = calc_kv_bytes_per_token(layers=80, kv_heads=64, head_dim=128) * tokens
    assert round(right.m_as("GB"), 1) == 42.9
    assert round(wrong.m_as("GB"), 1) == 343.6


def test_bytes_per_token_stay_whole_and_follow_the_type_of_the_cache():
    sixteen_bit = calc_kv_bytes_per_token(32, 8, 128)
    assert type(sixteen_bit.magnitude) is int
    assert sixteen_bit == calc_kv_bytes_per_token(32, 8, 128, 16 * ureg.bit) == calc_kv_bytes_per_token(32, 8, 128, 2)
    assert calc_kv_bytes_per_token(32, 8, 128, 0.5).magnitude == sixteen_bit.magnitude / 4


@settings(deadline=None)
@given(st.integers(0, 10**18), st.integers(1, 10**9))
def test_pages_hold_all_tokens_and_one_fewer_does_not(tokens, page_size):
    pages = calc_kv_pages(tokens, page_size)
    assert pages * page_size >= tokens > (pages - 1) * page_size or tokens == pages == 0
    assert type(pages) is int


def test_pages_of_an_array_of_lengths():
    assert calc_kv_pages(np.array([0, 1, 16, 17]), 16).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("mean_tokens", "page_size", "percent"),
    [(499.30, 16, 1.48), (77.76, 16, 8.80), (499.30, 128, 11.3), (77.76, 128, 45.0), (499.30, 1, 0.0)],
)
def test_the_last_page_waste_of_the_lecture(mean_tokens, page_size, percent):
    digits = 2 if percent < 10 else 1
    assert round(100 * calc_last_page_waste(mean_tokens, page_size), digits) == percent


def test_the_last_page_waste_is_that_of_lengths_spread_evenly():
    lengths = np.arange(1, 16 * 100 + 1)
    allocated = 16 * calc_kv_pages(lengths, 16)
    waste = (allocated - lengths).sum() / allocated.sum()
    assert calc_last_page_waste(lengths.mean(), 16) == pytest.approx(waste, rel=1e-12)


# --- refusals --------------------------------------------------------------------------------------------------------

rate, time, size = 1 / ureg.s, 1 * ureg.s, 1 * ureg.GB
VALID = {
    calc_mmc_mean_wait: (rate, rate, 2),
    calc_mmc_response_quantile: (rate, rate, 2, 0.9),
    calc_mmc_min_servers: (rate, rate, time, 0.9),
    calc_allen_cunneen_wait: (rate, rate, 2, 1.0, 1.0),
    affine_batch_chain: (rate, time, time, 4, 8),
    birth_death_chain: (rate, np.ones(3) / ureg.s, 1),
    calc_roofline_step_time: (1, size, size, 1.0, size / ureg.s, rate),
    calc_speculative_best_draft_length: (0.8, 0.1),
    calc_speculative_break_even_batch: (0.8, 4, 0.1, 295.0),
    calc_kv_bytes_per_token: (32, 8, 128, 2),
    calc_kv_pages: (33, 16),
    calc_last_page_waste: (500.0, 16),
}
POSITIONS = [
    pytest.param(function, position, id=f"{function.__name__}-{list(inspect.signature(function).parameters)[position]}")
    for function, arguments in VALID.items()
    for position in range(len(arguments))
]


def call_with(function, position, value):
    arguments = list(VALID[function])
    arguments[position] = value
    return function(*arguments)


def argument_name(function, position):
    return list(inspect.signature(function).parameters)[position]


@pytest.mark.parametrize(("function", "position"), POSITIONS)
@pytest.mark.parametrize("magnitude", [math.nan, -1, math.inf])
def test_a_number_outside_the_domain_is_refused_by_name(function, position, magnitude):
    unit = getattr(VALID[function][position], "units", 1)
    with pytest.raises(ValueError, match=f"{argument_name(function, position)} must be"):
        call_with(function, position, magnitude * unit)


@pytest.mark.parametrize(("function", "position"), POSITIONS)
@pytest.mark.parametrize("value", ["4", None, True, 3 * ureg.meter], ids=str)
def test_what_is_not_a_number_or_measures_something_else_is_refused_by_name(function, position, value):
    error = pint.DimensionalityError if isinstance(value, pint.Quantity) else TypeError
    with pytest.raises(error, match=argument_name(function, position)):
        call_with(function, position, value)


@pytest.mark.parametrize("function", [calc_mmc_mean_wait, calc_mmc_response_quantile, affine_batch_chain])
def test_rates_with_and_without_a_unit_do_not_mix(function):
    arguments = list(VALID[function])
    arguments[0] = 1.0
    with pytest.raises(TypeError, match="arrival_rate needs a rate unit"):
        function(*arguments)


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        ([0.5, 0.4], [0.5, 0.5], "target must add up to 1, got 0.9; divide it by its sum"),
        ([0.5, 0.5], [1.2, -0.2], r"draft must be in \[0, 1\], got 1.2 at index 0"),
        ([0.5, 0.5], [1.0], r"one vocabulary, got shapes \(2,\) and \(1,\)"),
        ([[0.5, 0.5]], [1.0], "target must be a one-dimensional array"),
        (1.0, [1.0], "target must be a one-dimensional array"),
    ],
)
def test_what_is_not_a_distribution_is_refused(target, draft, message):
    with pytest.raises(ValueError, match=message):
        calc_acceptance_rate(target, draft)


def test_a_quantity_of_another_registry_comes_back_in_it():
    other = pint.UnitRegistry()
    wait = calc_mmc_mean_wait(1 / ureg.s, 2 / other.s, 1)
    assert wait._REGISTRY is other
    chain = affine_batch_chain(1 / other.s, 300 * ureg.ms, 80 * other.ms, 8, 40)
    assert chain.wait._REGISTRY is other


def test_every_extra_of_the_library_is_under_test_here():
    public = {
        function
        for module in (queueing, batching, speculative, kvcache)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }
    contract = set(json.loads((pathlib.Path(__file__).parent / "golden" / "formulas.json").read_text())["functions"])
    extras = {function.__name__ for function in public} - contract - {"calc_erlang_c", "first_float"}
    assert extras == {function.__name__ for function in VALID} | {"calc_acceptance_rate"}

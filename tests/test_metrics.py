"""What users feel of a run, against hand-computed cases and against a literal list of every token."""

from dataclasses import dataclass
from itertools import pairwise
from math import isnan, log, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib import metrics, paged_continuous_batching, ureg
from serving_lib.engine import Server, simulate
from serving_lib.workload import Workload


@dataclass
class TokenRun:
    """A run given by the times of all its tokens: the same arrays as a simulated one, with nothing simulated.

    A request that got fewer tokens than it wants did not finish.
    """

    workload: Workload
    tokens: list
    preemptions: np.ndarray

    @classmethod
    def of(cls, *requests, preemptions=0):
        """Build from (arrival, tokens wanted, times of tokens)."""
        arrivals, wanted, tokens = zip(*requests, strict=True)
        ids = [str(k) for k in range(len(requests))]
        return cls(Workload(ids, arrivals, [8] * len(ids), wanted), tokens, np.full(len(ids), preemptions))

    @property
    def first_token(self):
        return np.array([times[0] if times else nan for times in self.tokens])

    @property
    def finished(self):
        wanted = self.workload.new_tokens
        return np.array([times[-1] if len(times) == n else nan for times, n in zip(self.tokens, wanted, strict=True)])

    def itl_runs(self):
        return np.unique([gap for times in self.tokens for gap in np.diff(times)], return_counts=True)


# A chat that stalls for 6 s before its last token, a single token, and one that is cut off.
STALLED = TokenRun.of((0.0, 5, [2.0, 3.0, 4.0, 5.0, 11.0]), (1.0, 1, [4.0]), (2.0, 9, [8.0, 9.0]))


def test_ttft_counts_from_arrival_to_the_first_token():
    np.testing.assert_array_equal(metrics.ttft(STALLED), [2, 3, 6])


def test_tpot_is_the_mean_gap_and_does_not_exist_for_one_token_or_an_unfinished_request():
    np.testing.assert_array_equal(metrics.tpot(STALLED), [9 / 4, nan, nan])


def test_e2e_does_not_exist_for_an_unfinished_request():
    np.testing.assert_array_equal(metrics.e2e(STALLED), [11, 3, nan])


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 1), (75, 1), (100, 6), (87.5, 3.5)])
def test_itl_pools_the_gaps_so_the_stall_shows(percent, expected):
    # The gaps are 1, 1, 1, 6 of the first request and 1 of the third.
    assert metrics.itl_percentile(STALLED, percent) == expected


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({}, [True, True, False]),
        ({"max_ttft": 2.0}, [True, False, False]),  # a limit is met when it is reached
        ({"max_ttft": 2000 * ureg.ms}, [True, False, False]),
        ({"max_tpot": 2.0}, [False, True, False]),
        ({"max_e2e": 3.0}, [False, True, False]),
        ({"max_ttft": 3.0, "max_tpot": 3.0, "max_e2e": 20.0}, [True, True, False]),
    ],
)
def test_goodput_counts_requests_within_every_limit_per_second_of_the_run(limits, good):
    assert metrics.meets_slo(STALLED, **limits).tolist() == good
    assert metrics.goodput(STALLED, **limits) == sum(good) / 11


def test_a_limit_is_met_by_times_that_differ_from_it_by_rounding_alone():
    times = [0.1 + 0.2 * k for k in range(4)]
    run = TokenRun.of((0.0, 4, times), (0.0, 4, [0.1, 0.3, 0.5, 0.7001]))
    assert metrics.tpot(run)[0] > 0.2
    assert metrics.meets_slo(run, max_tpot=0.2).tolist() == [True, False]


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"max_ttft": 0}, "max_ttft must be positive"),
        ({"max_tpot": -1 * ureg.ms}, "max_tpot must be positive"),
        ({"max_e2e": nan}, "max_e2e must be positive"),
    ],
)
def test_a_limit_that_is_no_time_is_refused_by_name(limits, error):
    with pytest.raises(ValueError, match=error):
        metrics.goodput(STALLED, **limits)


def test_summary_holds_the_figures_of_the_finished_requests():
    summary = metrics.summary(STALLED)
    assert (summary["requests"], summary["completed"], summary["preemptions"]) == (3, 2, 0)
    assert (summary["duration"], summary["request_throughput"], summary["output_throughput"]) == (11, 2 / 11, 6 / 11)
    assert summary["ttft"] == {"mean": 2.5, "p50": 2.5, "p90": pytest.approx(2.9), "p99": pytest.approx(2.99)}
    assert summary["tpot"]["mean"] == 9 / 4
    assert summary["itl"]["mean"] == 2
    assert summary["e2e"]["mean"] == 7


def test_a_run_in_which_nothing_finished_has_no_figures_and_no_goodput():
    summary = metrics.summary(TokenRun.of((0.0, 3, []), (1.0, 2, [2.0])))
    assert summary["completed"] == 0
    assert isnan(summary["duration"])
    assert isnan(summary["request_throughput"])
    assert all(isnan(value) for name in ("ttft", "tpot", "itl", "e2e") for value in summary[name].values())


def test_the_four_tools_give_one_name_four_meanings():
    # Tokens at 2, 3, 5 and at 4, 14, for requests that arrive at 0 and 1.
    table = metrics.rosetta(TokenRun.of((0.0, 3, [2.0, 3.0, 5.0]), (1.0, 2, [4.0, 14.0])))
    expected = {
        "ttft mean": (2.5, 2.5, 2.5, 2.5),
        "ttft p50": (2.5, 2.5, 2, 2.5),  # guidellm takes a value that occurred
        "tpot mean": ((1.5 + 10) / 2, nan, (5 + 13) / 5, (3 / 3 + 10 / 2) / 2),
        "tpot p50": ((1.5 + 10) / 2, nan, 5 / 3, 3),
        "itl mean": ((1 + 2 + 10) / 3, (1.5 + 10) / 2, (3 + 10) / 3, (1 + 2 + 10) / 3),
        "itl p50": (2, (1.5 + 10) / 2, 1.5, 2),
        "icl mean": (nan, (1 + 2 + 10) / 3, nan, nan),
        "e2e mean": (9, 9, 9, 9),
        "normalized_e2e mean": (nan, nan, nan, (5 / 3 + 13 / 2) / 2),
    }
    for row, values in expected.items():
        assert list(table[row]) == ["vllm", "aiperf", "guidellm", "vidur"]
        assert list(table[row].values()) == pytest.approx(values, nan_ok=True), row


@pytest.mark.parametrize(
    ("limits", "vllm", "others"), [({}, 2, 2), ({"max_ttft": 4}, 2, 2), ({"max_tpot": 3}, 2, 1), ({"max_e2e": 4}, 1, 1)]
)
def test_a_single_token_is_good_for_vllm_alone_once_there_is_a_limit_on_tpot(limits, vllm, others):
    row = metrics.rosetta(STALLED, **limits)["goodput"]
    assert list(row.values()) == pytest.approx([vllm / 11, others / 11, others / 11, nan], nan_ok=True)


def test_vidur_figures_per_token_are_withheld_once_a_request_restarted():
    table = metrics.rosetta(TokenRun.of((0.0, 3, [2.0, 3.0, 5.0]), preemptions=1))
    assert table["ttft mean"]["vidur"] == 2
    assert all(isnan(table[f"{row} mean"]["vidur"]) for row in ("tpot", "itl", "normalized_e2e"))
    assert table["itl mean"]["vllm"] == 1.5


gaps = st.lists(st.integers(0, 8), min_size=0, max_size=12)
requests = st.tuples(st.integers(0, 30), st.integers(1, 20), gaps, st.integers(0, 2))


@given(st.lists(requests, min_size=1, max_size=8), st.integers(1, 30), st.integers(1, 8))
@settings(max_examples=300, deadline=None)
def test_every_figure_equals_that_of_a_literal_list_of_tokens(drawn, max_ttft, max_tpot):
    rows = []
    for arrival, wait, gap_list, missing in sorted(drawn, key=lambda row: row[0]):
        times = list(np.cumsum([arrival + wait, *gap_list]).astype(float))
        rows.append((float(arrival), len(times) + missing, times))
    run = TokenRun.of(*rows)

    ttfts, tpots, itls, e2es, good, out = [], [], [], [], 0, 0
    for arrival, wanted, times in rows:
        itls += [b - a for a, b in pairwise(times)]
        if len(times) < wanted:
            continue
        gap = (times[-1] - times[0]) / (wanted - 1) if wanted > 1 else 0
        tpots += [gap] * (wanted > 1)
        ttfts.append(times[0] - arrival)
        e2es.append(times[-1] - arrival)
        out += wanted
        good += times[0] - arrival <= max_ttft and gap <= max_tpot

    summary = metrics.summary(run)
    for name, values in {"ttft": ttfts, "tpot": tpots, "itl": itls, "e2e": e2es}.items():
        expected = {p: np.percentile(values, int(p[1:])) if values else nan for p in ("p50", "p90", "p99")}
        expected["mean"] = np.mean(values) if values else nan
        assert summary[name] == pytest.approx(expected, nan_ok=True)
    duration = max((t[-1] for _, n, t in rows if len(t) == n), default=nan) - rows[0][0]
    assert summary["output_throughput"] == pytest.approx(out / duration, nan_ok=True)
    assert metrics.goodput(run, max_ttft, max_tpot) == pytest.approx(good / duration, nan_ok=True)


def flat(figures):
    """A dict of numbers and of dicts of numbers, without the inner dicts."""
    inner = {(name, key): value for name, row in figures.items() if isinstance(row, dict) for key, value in row.items()}
    return inner | {name: value for name, value in figures.items() if not isinstance(value, dict)}


small = st.integers(1, 12)
contract_requests = st.lists(st.tuples(st.integers(0, 10), small, small), min_size=1, max_size=8)


@given(contract_requests, st.integers(1, 5), st.integers(1, 12), st.integers(1, 5), st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_a_simulated_run_has_the_figures_of_the_tokens_that_the_contract_simulator_lists(
    drawn, page_size, total_pages, slots, ticks
):
    workload = Workload([f"r{k}" for k in range(len(drawn))], *zip(*sorted(drawn), strict=True))
    result = simulate(workload, Server(page_size, total_pages, slots), max_steps=ticks)
    steps = paged_continuous_batching(workload.requests(), page_size, total_pages, slots, ticks)["steps"]
    tokens = [[step["tick"] + 1.0 for step in steps if name in step["decoded"]] for name in workload.id]
    literal = TokenRun(workload, tokens, np.zeros(len(workload)))
    assert flat(metrics.summary(result)) == pytest.approx(flat(metrics.summary(literal)), nan_ok=True)
    assert flat(metrics.rosetta(result, 9, 2, 20)) == pytest.approx(
        flat(metrics.rosetta(literal, 9, 2, 20)), nan_ok=True
    )


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 9)), min_size=1, max_size=12),
    st.floats(0, 100),
)
@settings(max_examples=300, deadline=None)
def test_a_percentile_of_runs_equals_numpy_on_the_expanded_list(runs, percent):
    values, counts = zip(*runs, strict=True)
    expanded = np.repeat(values, counts)
    expected = np.percentile(expanded, percent) if len(expanded) else nan
    assert metrics.percentile(values, percent, counts) == pytest.approx(expected, rel=1e-12, abs=1e-9, nan_ok=True)


def test_a_percentile_of_a_billion_equal_gaps_makes_no_list():
    assert metrics.percentile([0.02, 3.0], 99.999, counts=[10**12, 10**6]) == 0.02
    assert metrics.percentile([0.02, 3.0], 99.99999, counts=[10**12, 10**6]) == 3.0


@pytest.mark.parametrize("percent", [-1, 100.5, nan])
def test_a_percent_outside_its_domain_is_refused(percent):
    with pytest.raises(ValueError, match=r"percent must be in \[0, 100\]"):
        metrics.percentile([1.0], percent)


def waits_of_an_mm1_queue(rng, requests, utilization):
    """Lindley's recursion for a server that starts empty, from a start long enough to forget it."""
    steps = rng.exponential(utilization, requests) - rng.exponential(1.0, requests)
    walk = np.concatenate([[0.0], np.cumsum(steps)])
    return (walk - np.minimum.accumulate(walk))[requests // 5 :]


def covered(true_value, blocks):
    """How many of 60 intervals at 95 % hold the 90th percentile of the wait."""
    hits = 0
    for seed in range(60):
        waits = waits_of_an_mm1_queue(np.random.default_rng(seed), 10_000, utilization=0.7)
        estimate = metrics.percentile_interval(waits, 90, seed=seed, blocks=blocks, resamples=100)
        hits += estimate.low <= true_value <= estimate.high
    return hits


def test_block_intervals_cover_the_true_percentile_of_a_queue_where_plain_ones_do_not():
    # P(wait > t) = rho exp(-(1 - rho) t / S), with the mean service S = rho here because arrivals come at rate 1.
    rho = 0.7
    true_value = log(rho / 0.1) / ((1 - rho) / rho)
    assert covered(true_value, blocks=30) >= 48
    assert covered(true_value, blocks=8000) <= 36


def test_an_interval_is_the_same_for_the_same_seed_and_leaves_out_what_never_happened():
    values = np.random.default_rng(5).exponential(size=300)
    once = metrics.percentile_interval(values, 99, seed=1)
    assert once == metrics.percentile_interval(np.append(values, nan), 99, seed=1)
    assert once != metrics.percentile_interval(values, 99, seed=2)
    assert once.low <= once.value <= once.high


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"values": [nan]}, "values must hold"),
        ({"confidence": 1}, "confidence must be in"),
        ({"blocks": 0}, "blocks must be"),
        ({"resamples": 0}, "resamples must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_a_bad_argument_of_an_interval_is_refused_by_name(arguments, error):
    arguments = {"values": [1.0, 2.0], "percent": 50, "seed": 0, **arguments}
    with pytest.raises(ValueError, match=error):
        metrics.percentile_interval(arguments.pop("values"), arguments.pop("percent"), **arguments)


@pytest.mark.parametrize("blocks", [1, 3, 7, 100])
def test_any_number_of_blocks_works_for_any_number_of_values(blocks):
    estimate = metrics.percentile_interval(np.arange(7.0), 50, seed=0, blocks=blocks, resamples=20)
    assert 0 <= estimate.low <= estimate.high <= 6

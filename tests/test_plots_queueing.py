"""The pictures of lectures 00 and 01 draw what formulas, an independent calculation and the real traces say."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest

from serving_lib import plots, profile, read_trace, simulate_queue, ureg
from serving_lib.plots import style
from serving_lib.workload import Workload
from tests.drawn import boxes

FACTS = {
    fact["id"]: fact for fact in json.loads((Path(__file__).parent / "golden" / "paper_facts.json").read_text("utf-8"))
}
TRACES = ("azure-conv-2023", "azure-code-2023")


def line(axes, look):
    """The x and y of the first line with the color and the dashes of a look."""
    dashes = "None" if look["linestyle"] == "none" else look["linestyle"]
    if isinstance(dashes, tuple):
        dashes = "--"  # what Matplotlib calls any pattern of one's own
    return next(
        one.get_xydata().T for one in axes.lines if (one.get_color(), one.get_linestyle()) == (look["color"], dashes)
    )


def intervals(axes, number=0):
    """The x, mean, low and high of the dots with intervals, one row each."""
    dots, _, bars = axes.containers[number].lines
    low, high = np.array([segment[:, 1] for segment in bars[0].get_segments()]).T
    return np.column_stack([dots.get_xydata(), low, high])


def all_intervals(axes):
    """The intervals of every group of dots of an axes, one row each."""
    return np.vstack([intervals(axes, number) for number, _ in enumerate(axes.containers)])


def alone(figure):
    """The one axes of a figure."""
    (axes,) = figure.axes
    return axes


# --- formula and simulation on one axis ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "formula"),
    [
        pytest.param(plots.mm1_knee(), lambda rho: 200 / (1 - rho), id="the knee"),
        pytest.param(plots.tail_budget(), lambda rho: -math.log(0.01) * 0.5 / (1 - rho), id="p99"),
        pytest.param(plots.tail_budget(quantile=0.5), lambda rho: math.log(2) * 0.5 / (1 - rho), id="median"),
        pytest.param(plots.variability(), lambda rho: rho / (1 - rho), id="M/M/1"),
        pytest.param(plots.variability(service_cv=0.0), lambda rho: rho / (1 - rho) / 2, id="M/D/1"),
        pytest.param(plots.variability(service_cv=2.0), lambda rho: rho / (1 - rho) * 2.5, id="M/G/1"),
        pytest.param(plots.short_and_long(), lambda rho: rho / (1 - rho) * 0.409 / 0.29 / 2, id="90/10 mix"),
        pytest.param(plots.residency(), lambda tool: 100 / (2 + tool), id="turnover of 100 slots"),
    ],
)
def test_line_and_dots_agree_with_the_formula(figure, formula):
    axes = alone(figure)
    x, y = line(axes, style.FORMULA)
    assert y == pytest.approx([formula(one) for one in x], rel=1e-9)
    for x, _, low, high in all_intervals(axes):
        assert low <= formula(x) <= high


def test_intervals_are_narrow_enough_to_tell_constant_from_exponential_service():
    for x, _, low, high in intervals(alone(plots.variability(service_cv=0.0))):
        assert not low <= x / (1 - x) <= high


def test_the_exponential_model_of_a_90_10_mix_lies_outside_the_simulated_intervals():
    axes = alone(plots.short_and_long())
    x, exponential = line(axes, style.LIMIT)
    for load, _, low, _ in intervals(axes):
        assert np.interp(load, x, exponential) < low


def test_without_variability_nobody_waits():
    figure = plots.variability(0.95, arrival_cv=0.0, service_cv=0.0)
    assert np.all(line(alone(figure), style.FORMULA)[1] == 0)
    assert np.all(np.abs(intervals(alone(figure))[:, 1:]) < 1e-9)


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("utilization", [0.3, 0.95])
def test_littles_law_holds_in_every_picture_of_it(utilization, seed):
    sentence = plots.littles_law(utilization, requests=30, seed=seed).alt_text
    product, measured = sentence.split("The product is ")[1].split(
        "; the mean number inside, measured as area over time, is "
    )
    assert product == measured.rstrip(".")


def test_the_area_of_the_bars_is_the_sum_of_all_stays():
    axes = alone(plots.littles_law(requests=5))
    area = sum((end - start).sum() for start, end, _, _ in boxes(axes))
    x, arrived = line(axes, {"color": style.INK, "linestyle": "-"})
    y, left = line(axes, {"color": style.BLUE, "linestyle": "--"})
    grid = np.linspace(0, max(x.max(), y.max()), 200_001)[:-1]
    inside = [np.searchsorted(times[:-1], grid, side="right") for times in (x, y)]
    assert np.mean(inside[0] - inside[1]) * max(x.max(), y.max()) == pytest.approx(area, rel=1e-3)
    assert len(arrived) == len(left) == 6


@pytest.mark.parametrize("clients", [2, 4, 32])
def test_a_closed_load_has_the_tail_of_a_sum_of_services(clients):
    axes = alone(plots.open_and_closed(clients))
    times, share = line(axes, {"color": style.AMBER, "linestyle": ":"})
    for time, tail in zip(times[5:21:5], share[5:21:5], strict=True):  # down to 1 %
        erlang = float(mpmath.gammainc(clients, float(time), regularized=True))
        assert erlang == pytest.approx(tail, rel=0.15)


def test_users_and_clients_of_the_text_have_p99s_of_23_and_10_service_times():
    sentence = plots.open_and_closed(4).alt_text
    assert "mean 4 service times, p99 10," in sentence
    assert "mean 5, p99 23 by the formula and 22 in" in sentence


def test_the_ceiling_of_a_budget_is_where_the_curve_meets_it():
    axes = alone(plots.tail_budget(2 * ureg.s, 200 * ureg.ms))
    ((ceiling, budget),) = next(one.get_xydata() for one in axes.lines if one.get_marker() == "D")
    x, y = line(axes, style.FORMULA)
    assert (round(ceiling, 3), budget) == (0.539, 2.0)
    assert np.interp(ceiling, x, y) == pytest.approx(budget, rel=1e-3)


def test_a_budget_that_an_idle_server_misses_allows_no_load():
    figure = plots.tail_budget(0.5 * ureg.s, 200 * ureg.ms)
    assert "even an idle server misses it" in figure.alt_text
    assert not [one for one in alone(figure).lines if one.get_marker() == "D"]


def test_split_pooled_and_fast_take_5_and_1_75_and_1_25_service_times():
    axes = alone(plots.pooling(4, 0.8))
    drawn = [float(np.interp(0.8, *line(axes, style.series(index)))) for index in range(3)]
    assert [round(time, 2) for time in drawn] == [5.0, 1.75, 1.25]  # 1.7455
    for (_, _, low, high), time in zip(all_intervals(axes), drawn, strict=True):
        assert low <= time <= high


def test_one_server_at_90_percent_waits_9_service_times_and_a_hundred_wait_0_02():
    axes = alone(plots.pool_size(0.9, 100))
    sizes, wait = line(axes, style.FORMULA)
    assert np.interp([1, 100], sizes, wait).round(2).tolist() == [9.0, 0.02]
    for size, _, low, high in intervals(axes):
        assert low <= np.interp(size, sizes, wait) <= high


def test_the_p99_response_of_64_servers_is_three_times_the_shortcut():
    figure = plots.response_tail(64, 0.9)
    ((p99, share),) = next(one.get_xydata() for one in alone(figure).lines if one.get_marker() == "D")
    shortcut = line(alone(figure), {"color": style.RED, "linestyle": "--"})[0][0]
    assert (round(p99, 2), share, round(shortcut, 2)) == (4.66, 0.01, 1.54)
    times, levels = line(alone(figure), {"color": style.BLUE, "linestyle": "none"})
    formula = line(alone(figure), style.FORMULA)
    for time, level in zip(times[1:-1], levels[1:-1], strict=True):
        assert np.interp(-math.log(level), -np.log(formula[1]), formula[0]) == pytest.approx(time, rel=0.03)


# --- how far a simulation can be trusted -----------------------------------------------------------------------------


def test_nineteen_of_twenty_intervals_of_long_runs_hold_the_formula_and_far_fewer_of_short_runs_near_saturation():
    def holding(requests, utilization):
        theory = 1 / (1 - utilization)
        return sum(
            low <= theory <= high for _, _, low, high in intervals(alone(plots.many_runs(requests, utilization)))
        )

    assert holding(8_000, 0.5) >= 19
    assert holding(2_000, 0.8) >= 18
    assert holding(500, 0.95) < 10


def test_twenty_short_runs_differ_by_more_than_a_fifth_of_their_mean():
    means = intervals(alone(plots.many_runs(2_000, 0.8)))[:, 1]
    assert np.ptp(means) > 0.2 * means.mean()
    assert np.sum(means < 5) > 10, "most short runs miss the rare rush that lifts the mean"


def test_four_times_the_run_gives_half_the_interval():
    widths = [np.diff(intervals(alone(plots.run_length(0.5, seed)))[:, 2:]).ravel() for seed in range(1, 11)]
    shrink = np.mean(widths, axis=0)
    assert shrink[:-1] / shrink[1:] == pytest.approx([2.0, 2.0, 2.0], rel=0.25)


# --- real arrivals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", ["F212", "F213", "F214", "F215"])
def test_on_the_real_file_the_picture_draws_kingman_shuffled_and_real_order_as_measured(shared_data, fact):
    """The figure of the book: 0.346, 0.34 and 10.96 s at a load of 0.8."""
    measured, rho = FACTS[fact]["output"], FACTS[fact]["inputs"]["rho"]
    workload = read_trace(shared_data / "AzureLLMInferenceTrace_conv.csv")
    axes = alone(plots.real_arrivals(workload, rho))
    loads, kingman = line(axes, style.FORMULA)
    nearest = np.argmin(np.abs(loads - rho))
    assert loads[nearest] == pytest.approx(rho)
    assert kingman[nearest] == pytest.approx(measured["kingman_s"], rel=1e-3)
    loads, wait = line(axes, style.TRACE)
    assert wait[np.isclose(loads, rho)] == pytest.approx([measured["actual_mean_wait_s"]], rel=1e-3)
    mean, low, high = next(row[1:] for row in intervals(axes) if math.isclose(row[0], rho))
    assert low <= measured["shuffled_gaps_mean_wait_s"] <= high
    assert high - low < 0.7 * mean


def test_on_the_real_file_the_99th_percentile_is_as_measured(shared_data):
    workload = read_trace(shared_data / "AzureLLMInferenceTrace_conv.csv")
    for fact in ("F212", "F213", "F214", "F215"):
        wait = simulate_queue(workload.arrival, FACTS[fact]["inputs"]["rho"] / workload.rate).wait
        assert np.percentile(wait[1:], 99) == pytest.approx(FACTS[fact]["output"]["actual_p99_wait_s"], rel=1e-3)


@pytest.mark.parametrize("fact", ["F212", "F213", "F214", "F215"])
def test_the_shipped_profile_tells_the_story_of_the_file(fact):
    measured, rho = FACTS[fact]["output"], FACTS[fact]["inputs"]["rho"]
    for seed in range(3):
        axes = alone(plots.real_arrivals("azure-conv-2023", rho, seed))
        loads, wait = line(axes, style.TRACE)
        assert wait[np.isclose(loads, rho)] == pytest.approx([measured["actual_mean_wait_s"]], rel=0.1)
        kingman = np.interp(rho, *line(axes, style.FORMULA))
        assert kingman == pytest.approx(measured["kingman_s"], rel=0.05)


def test_shuffled_gaps_agree_with_kingman_where_it_is_meant_for_and_the_real_order_does_not():
    axes = alone(plots.real_arrivals())
    kingman, real = line(axes, style.FORMULA), line(axes, style.TRACE)
    for load, mean, low, high in intervals(axes):
        formula = np.interp(load, *kingman)
        assert mean == pytest.approx(formula, rel=0.1)
        if load >= 0.8:
            assert low <= formula <= high
        if load >= 0.7:
            assert np.interp(load, *real) > 3 * formula
    assert np.interp(0.5, *real) == pytest.approx(np.interp(0.5, *kingman), rel=0.1)


def test_the_real_order_leaves_the_formula_when_the_busiest_minute_exceeds_the_capacity():
    above, _ = plots.rush_hour().axes
    busiest = line(above, {"color": style.RED, "linestyle": "-"})[1].max()
    load = profile("azure-conv-2023", 0).rate / busiest
    assert 0.6 < load < 0.7
    axes = alone(plots.real_arrivals())
    excess = [real / np.interp(rho, *line(axes, style.FORMULA)) for rho, real in line(axes, style.TRACE).T]
    loads = line(axes, style.TRACE)[0]
    assert max(np.array(excess)[loads < load]) < 1.5
    assert min(np.array(excess)[loads > load]) > 3


@pytest.mark.parametrize("trace", TRACES)
def test_the_worst_waits_of_the_rush_are_those_of_the_queue(trace):
    _, below = plots.rush_hour(trace, 0.8).axes
    workload = profile(trace, 0)
    wait = simulate_queue(workload.arrival, 0.8 / workload.rate).wait
    minutes = int(workload.arrival[-1] // 60)
    assert line(below, {"color": style.RED, "linestyle": "-"})[1].max() == wait[workload.arrival < 60 * minutes].max()


def test_shuffling_takes_the_dispersion_away_and_leaves_the_cv():
    axes = alone(plots.dispersion())
    real, shuffled = line(axes, style.TRACE), line(axes, {"color": style.BLUE, "linestyle": ":"})
    assert np.interp([1, 10, 60], *real).round(1).tolist() == [1.4, 3.9, 16.1]
    assert np.all(shuffled[1] < 2)
    gaps = np.diff(profile("azure-conv-2023", 0).arrival)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1.197, rel=0.05)


# --- tokens in the cache ---------------------------------------------------------------------------------------------


def test_resident_tokens_rise_with_each_token_and_fall_with_each_answer():
    workload = Workload(["a", "b"], [0.0, 1.0], prompt_tokens=[100, 50], new_tokens=[4, 2])
    axes = alone(plots.resident_tokens(workload, token_time=500 * ureg.ms))
    minutes, thousands = line(axes, {"color": style.RED, "linestyle": "-"})
    seconds, tokens = (60 * minutes).round(9), (1000 * thousands).round(9)
    assert tokens[seconds == 0].tolist() == [0, 100]
    assert tokens[seconds == 1].tolist() == [102, 152]
    assert tokens[seconds == 2].max() == 104 + 52
    assert tokens[-1] == 0


def test_the_picture_of_resident_tokens_reaches_the_peak_that_its_sentence_names():
    figure = plots.resident_tokens()
    drawn = max(alone(figure).lines[0].get_ydata()) * 1000
    assert f"{style.say(drawn)} at its peak" in figure.alt_text


def test_on_the_real_file_the_resident_tokens_are_as_published(shared_data):
    workload = read_trace(shared_data / "AzureLLMInferenceTrace_conv.csv")
    sentence = plots.resident_tokens(workload, token_time=25 * ureg.ms).alt_text
    assert FACTS["F152"]["output"] == "35,816"
    assert "the hour holds 35,800 on average" in sentence


# --- lecture 00 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new_tokens", [2, 16, 40])
def test_ttft_and_the_gaps_add_up_to_e2e(new_tokens):
    sentence = plots.request_metrics(new_tokens=new_tokens).alt_text
    number = {name: int(sentence.split(name)[1].split(" ms")[0]) for name in ("TTFT ", "(TPOT) ", "E2E ")}
    gaps = new_tokens - 1
    assert number["TTFT "] + gaps * number["(TPOT) "] == pytest.approx(number["E2E "], abs=0.5 * gaps + 1)


def test_a_long_prompt_of_a_neighbor_stretches_one_gap_and_not_the_ttft():
    alone_text, beside = (plots.request_metrics(neighbor_prompt=prompt).alt_text for prompt in (100, 4000))
    ttft, longest = (
        [text.split(name)[1].split(" ms")[0] for text in (alone_text, beside)] for name in ("TTFT ", "ITL ")
    )
    assert ttft[0] == ttft[1]
    assert int(longest[1]) > 10 * int(longest[0])


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_no_more_requests_run_than_there_are_slots_and_the_cache_is_never_overfull(slots):
    above, below = plots.life_of_requests(slots, cache_tokens=2400).axes
    _, (admitted, first_token, _, _), (decoding, finished, _, _) = boxes(above)
    np.testing.assert_allclose(first_token, decoding)
    spans = list(zip(admitted, finished, strict=True))
    for start, _ in spans:
        assert sum(begin <= start + 1e-9 < end for begin, end in spans) <= slots
    assert line(below, {"color": style.INK, "linestyle": "-"})[1].max() <= 2400


# --- sliders ---------------------------------------------------------------------------------------------------------

ENDS = [
    ("littles_law", {"utilization": (0.3, 0.95), "requests": (2, 60), "seed": (1, 20)}),
    ("resident_tokens", {"trace": TRACES, "token_time": (10 * ureg.ms, 100 * ureg.ms)}),
    ("open_and_closed", {"clients": (2, 32)}),
    ("mm1_knee", {"utilization": (0.05, 0.98), "service_time": (50 * ureg.ms, 500 * ureg.ms)}),
    ("tail_budget", {"tail_budget": (0.5 * ureg.s, 10 * ureg.s), "quantile": (0.5, 0.999)}),
    ("variability", {"utilization": (0.3, 0.95), "arrival_cv": (0.0, 2.0), "service_cv": (0.0, 2.0)}),
    ("short_and_long", {"long_share": (0.0, 0.5), "long_time": (0.1 * ureg.s, 5 * ureg.s)}),
    ("pooling", {"servers": (2, 64), "utilization": (0.1, 0.95)}),
    ("pool_size", {"utilization": (0.3, 0.95), "servers": (1, 1000)}),
    ("response_tail", {"servers": (1, 256), "utilization": (0.3, 0.9)}),
    ("many_runs", {"requests": (500, 32_000), "utilization": (0.3, 0.95)}),
    ("run_length", {"utilization": (0.3, 0.95), "seed": (1, 20)}),
    ("residency", {"tool_time": (0 * ureg.s, 30 * ureg.s), "generation_time": (0.5 * ureg.s, 5 * ureg.s)}),
    ("real_arrivals", {"trace": TRACES, "utilization": (0.3, 0.95)}),
    ("rush_hour", {"trace": TRACES, "utilization": (0.3, 0.95)}),
    ("dispersion", {"trace": TRACES}),
    ("life_of_requests", {"slots": (1, 8), "cache_tokens": (1300, 6000)}),
    ("request_metrics", {"neighbor_prompt": (100, 4000), "prompt_tokens": (50, 2000), "new_tokens": (4, 40)}),
]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(name, {key: ends[end]}) for name, sliders in ENDS for key, ends in sliders.items() for end in (0, 1)],
)
def test_a_picture_at_either_end_of_each_slider_is_drawn_and_says_only_numbers(name, arguments):
    figure = getattr(plots, name)(**arguments)
    assert style.to_png(figure)
    for word in ("nan", "inf", "1 servers", "1 slots"):
        assert word not in figure.alt_text.split()

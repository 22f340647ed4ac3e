"""What the pictures of lecture 05 draw agrees with the trace, the engine and the formula."""

import numpy as np
import pytest

from serving_lib import metrics, plots, profile, sweep, ureg
from serving_lib.capacity import Plan, evaluate
from serving_lib.plots.capacity import PLANS
from tests.test_capacity import SMALL

HOUR = profile("azure-conv-2023", seed=0)


def drawn(axes, color):
    """The data of the first line of a color."""
    return next(line.get_xydata() for line in axes.lines if line.get_color() == color)


def test_the_minutes_of_the_demand_hold_all_tokens_of_their_requests():
    figure = plots.token_demand()
    total = next(patch for patch in figure.axes[0].patches if patch.get_linestyle() == "--").get_data()
    whole = HOUR.arrival < HOUR.arrival[0] + 60 * len(total.values)
    expected = (HOUR.prompt_tokens + HOUR.new_tokens)[whole].sum()
    assert 60e3 * total.values.sum() == pytest.approx(expected)


def test_the_capacity_line_is_what_full_steps_compute():
    figure = plots.token_demand(gpu="A100-80", replicas=2, prefill_budget=512)
    base, _, _, token = Plan("A100-80").server.step_time.in_clock_units()
    levels = [line.get_ydata()[0] for line in figure.axes[0].lines]
    assert 2 * 512 / (base + 512 * token) / 1e3 == pytest.approx(max(levels))


def test_a_quarter_of_the_hour_asks_for_more_than_one_a100_has():
    assert plots.token_demand().alt_text.endswith("14 of 58 minutes bring more.")


def test_the_hour_shows_the_longest_wait_of_every_ten_seconds():
    figure = plots.hour_on_a_plan(SMALL)
    waits = metrics.ttft(Plan().simulate(SMALL))
    points = figure.axes[0].lines[0].get_xydata()
    assert len(points) == (SMALL.arrival[-1] - SMALL.arrival[0]) // 10 + 1
    for time, longest in points:
        inside = np.abs(SMALL.arrival - SMALL.arrival[0] - 60 * time) < 5
        assert longest == pytest.approx(waits[inside].max())


def test_one_gap_in_a_hundred_is_longer_than_the_diamond():
    figure = plots.hour_on_a_plan(SMALL)
    (x,), (y,) = next(line for line in figure.axes[1].lines if line.get_marker() == "D").get_data()
    gaps, counts = Plan().simulate(SMALL).itl_runs()
    assert y == 0.01
    assert counts[1e3 * gaps > x].sum() / counts.sum() == pytest.approx(0.01, abs=0.001)


def test_the_hour_on_a_plan_says_whether_it_keeps_the_promise():
    assert "meets both limits" in plots.hour_on_a_plan().alt_text
    assert "does not meet both limits" in plots.hour_on_a_plan(gpu="A100-80").alt_text
    assert "but not surely in another" in plots.hour_on_a_plan(gpu="A100-80", replicas=2).alt_text


def test_the_order_of_arrivals_is_the_only_difference_of_a_shuffled_hour():
    figures = [plots.hour_on_a_plan(SMALL, shuffled=shuffled) for shuffled in (False, True)]
    expected = [evaluate(work).ttft.value for work in (SMALL, SMALL.shuffled_gaps(0))]
    assert [f"{value:.3g} s" in figure.alt_text for figure, value in zip(figures, expected, strict=True)] == [
        True,
        True,
    ]


def test_formula_shuffled_and_ordered_stand_side_by_side_for_each_plan():
    figure = plots.formula_and_plans(SMALL)
    formula, *bars = figure.axes[0].collections
    assert [segment[0, 1] for segment in formula.get_segments()] == pytest.approx(
        [Plan(gpu, replicas).formula_ttft(SMALL) for gpu, replicas in PLANS]
    )
    for container, workload in zip(figure.axes[0].containers, (SMALL.shuffled_gaps(0), SMALL), strict=True):
        outcomes = [evaluate(workload, gpu=gpu, replicas=replicas) for gpu, replicas in PLANS]
        assert container.lines[0].get_ydata() == pytest.approx([one.ttft.value for one in outcomes])
        ends = [segment[:, 1] for segment in container.lines[2][0].get_segments()]
        assert np.array(ends) == pytest.approx(np.array([(one.ttft.low, one.ttft.high) for one in outcomes]))
    assert len(bars) == 2


def test_near_saturation_order_makes_minutes_and_far_from_it_nothing():
    said = plots.formula_and_plans().alt_text
    one_a100, one_h100 = (
        [float(part.split()[-2]) for part in said.split(f"{plan}: ")[1].split(";")[0].rstrip(".").split(", ")]
        for plan in ("1 A100-80", "1 H100")
    )
    assert one_a100[2] > 5 * one_a100[1] > 25 * one_a100[0]
    assert one_h100[2] < 1.25 * one_h100[0]


def test_the_front_falls_and_its_points_are_the_outcomes_of_the_sweep():
    grid = {"workload": [SMALL], "gpu": ["A100-80", "H100"], "replicas": [1, 2]}
    result = sweep(evaluate, grid, progress=False)
    figure = plots.cost_front(result)
    steps = figure.axes[0].lines[0].get_xydata()
    points = {(one.cost.m_as("USD"), one.ttft.value) for one in result.values}
    assert {tuple(point) for point in steps} <= points
    assert np.all(np.diff(steps[:, 0]) > 0)
    assert np.all(np.diff(steps[:, 1]) < 0)
    assert f"of {len(points)} plans" in figure.alt_text


def test_a_price_moves_the_bill_of_its_gpu_and_nothing_else():
    result = sweep(evaluate, {"workload": [SMALL], "gpu": ["A100-80", "H100"]}, progress=False)
    bills = [
        {
            one[1]: one[0]
            for line in plots.cost_front(result, h100_price=price * ureg.USD / ureg.hour).axes[0].containers
            for one in line.lines[0].get_xydata()
        }
        for price in (4, 8)
    ]
    ratios = sorted(bills[1][tail] / bills[0][tail] for tail in bills[0])
    assert ratios == pytest.approx([1, 2])


def test_the_cheapest_sure_plan_changes_with_the_price_of_an_h100():
    assert "is 1 H100" in plots.cost_front(h100_price=6.5 * ureg.USD / ureg.hour).alt_text
    assert "is 3 A100-80" in plots.cost_front(h100_price=6.7 * ureg.USD / ureg.hour).alt_text


def test_the_readers_plan_is_marked_and_judged():
    mine = evaluate(SMALL, gpu="A100-80", prefill_budget=512)
    result = sweep(evaluate, {"workload": [SMALL], "gpu": ["A100-80"]}, progress=False)
    figure = plots.cost_front(result, mine)
    star = next(line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert star.get_xydata().tolist() == [[mine.cost.m_as("USD"), mine.ttft.value]]
    assert "Yours, 1 A100-80, budget 512, meets both limits." in figure.alt_text


@pytest.mark.parametrize(
    ("plot", "choices"),
    [
        (plots.token_demand, {"trace": "azure-code-2023", "replicas": 4, "gpu": "H100", "prefill_budget": 256}),
        (plots.hour_on_a_plan, {"trace": "azure-code-2023", "replicas": 4, "prefill_budget": 2048}),
        (plots.hour_on_a_plan, {"trace": "azure-code-2023", "gpu": "H200", "dispatch": "round_robin"}),
        (plots.cost_front, {"a100_price": 0.5 * ureg.USD / ureg.hour, "h100_price": 10 * ureg.USD / ureg.hour}),
    ],
)
def test_the_ends_of_the_sliders_can_be_drawn(plot, choices):
    assert plot(**choices).alt_text

"""The pictures of lecture 03 against golden facts, exact fractions and simulation, by the data that is drawn."""

import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.container import ErrorbarContainer

from serving_lib import plots, published
from serving_lib.plots import speculative, style
from tests.drawn import boxes

FACTS = {
    fact["id"]: fact
    for fact in json.loads((Path(__file__).parent / "golden" / "paper_facts.json").read_text(encoding="utf-8"))
}
acceptances = st.floats(0, 0.98)
lengths = st.integers(1, 16)
costs = st.floats(0.01, 1)


def expected_tokens(acceptance, draft_length):
    return float(sum(Fraction(acceptance) ** i for i in range(int(draft_length) + 1)))


def lines(axes, look):
    """The lines of a look, as arrays of x and y."""
    wanted = {name: look[name] for name in ("color", "linestyle") if name in look}
    found = [line for line in axes.lines if all(getattr(line, f"get_{k}")() == v for k, v in wanted.items())]
    return [line.get_xydata() for line in found if line.get_marker() in ("None", "", None)]


def marks(axes, marker, color):
    """The points that are drawn with one marker in one color."""
    found = [line for line in axes.lines if line.get_marker() == marker and line.get_color() == color]
    return np.vstack([line.get_xydata() for line in found])


def dots(axes, color=style.BLUE):
    """Center, low and high end of the simulated intervals of one color."""
    found = [bar for bar in axes.containers if isinstance(bar, ErrorbarContainer) and bar.lines[0].get_color() == color]
    x, y = np.concatenate([bar.lines[0].get_xydata() for bar in found]).T
    ends = np.concatenate([np.array(bar.lines[2][0].get_segments())[:, :, 1] for bar in found])
    return x, y, ends[:, 0], ends[:, 1]


def bars(axes, index):
    _, _, bottom, top = boxes(axes)[index]
    return top - bottom


def misses(truth, low, high):
    """How many 99 % intervals miss the truth, beyond the last digit."""
    return int(((truth < low - 1e-9) | (truth > high + 1e-9)).sum())


# --- rounds --------------------------------------------------------------------------------------------------------


def test_the_bars_are_the_capped_geometric_law_and_the_dots_agree():
    missed = drawn = 0
    for acceptance in (0.1, 0.3, 0.5, 0.7, 0.9):
        for length in (1, 4, 9):
            axes = plots.speculative_rounds(acceptance, length).axes[1]
            alpha = Fraction(acceptance)
            law = [float(alpha**k * (1 - alpha)) for k in range(length)] + [float(alpha**length)]
            np.testing.assert_allclose(bars(axes, 0), law, rtol=1e-12)
            _, _, low, high = dots(axes)
            missed, drawn = missed + misses(np.array(law), low, high), drawn + len(law)
    assert missed <= 4, f"{missed} of {drawn} intervals of 99 % miss; more than 4 would happen once in 400 runs"


def test_every_round_shows_its_kept_drafts_one_own_token_and_no_more_cells_than_drafts_and_one():
    axes = plots.speculative_rounds(0.6, 5).axes[0]
    kept, own, thrown = (len(left) for left, _, _, _ in boxes(axes))
    assert own == speculative.SHOWN_ROUNDS
    # A rejected draft shares its cell with the token that replaces it.
    full = len(marks(axes, "$T$", style.INK)[marks(axes, "$T$", style.INK)[:, 0] == 6])
    assert kept + own + thrown == 5 * speculative.SHOWN_ROUNDS + full
    assert kept == len(marks(axes, "$d$", style.INK))


def test_tokens_per_round_are_the_geometric_sum_under_its_ceiling():
    figure = plots.speculative_tokens(0.7, 4)
    [curve] = lines(figure.axes[0], style.FORMULA)
    np.testing.assert_allclose(curve[:, 1], [expected_tokens(0.7, n) for n in curve[:, 0]], rtol=1e-12)
    assert (curve[:, 1] < 1 / 0.3).all()
    assert "2.77 tokens per round, of which 1.77 were drafted" in figure.alt_text


def test_simulated_tokens_agree_with_the_sum_and_not_with_one_plus_alpha_gamma():
    missed = drawn = caught = 0
    for acceptance in (0.1, 0.3, 0.5, 0.7, 0.9, 0.97):
        x, _, low, high = dots(plots.speculative_tokens(acceptance).axes[0])
        missed += misses(np.array([expected_tokens(acceptance, n) for n in x]), low, high)
        caught += misses(1 + acceptance * x[x > 1], low[x > 1], high[x > 1])
        drawn += len(x)
    assert missed <= 4, f"{missed} of {drawn} intervals of 99 % miss"
    assert caught >= 0.9 * (drawn - 6)


# --- acceptance ----------------------------------------------------------------------------------------------------

weight_lists = st.lists(st.integers(0, 10), min_size=4, max_size=4).filter(any)


@settings(deadline=None, max_examples=15)
@given(weight_lists, weight_lists)
def test_kept_and_replaced_stack_up_to_the_target_whatever_the_draft(target, draft):
    before, after = plots.acceptance_overlap(*target, *draft).axes
    p, q, overlap = (bars(before, index) for index in range(3))
    np.testing.assert_allclose(p, np.array(target) / sum(target), atol=1e-12)
    np.testing.assert_allclose(overlap, np.minimum(p, q), atol=1e-12)
    np.testing.assert_allclose(bars(after, 0) + bars(after, 1), p, atol=1e-12)


def test_the_simulated_token_follows_the_target_and_with_the_wrong_replacement_it_does_not():
    _, _, low, high = dots(plots.acceptance_overlap().axes[1])
    p = bars(plots.acceptance_overlap().axes[0], 0)
    assert misses(p, low, high) == 0
    wrong = plots.acceptance_overlap(replace_from="target")
    _, _, low, high = dots(wrong.axes[1])
    assert misses(p, low, high) >= 2
    assert "off the target" in wrong.alt_text


def test_the_overlap_is_the_acceptance_of_the_exercise():
    assert "overlap by 0.700" in plots.acceptance_overlap(5, 3, 2, 0, 2, 6, 2, 0).alt_text


# --- texts ---------------------------------------------------------------------------------------------------------


def red_words(figure):
    left, _, _, _ = boxes(figure.axes[0])[-1]
    return len(left)


def test_the_same_seed_writes_another_text_but_at_temperature_zero_the_same():
    different = [red_words(plots.lossless_text(seed)) > 0 for seed in range(1, 11)]
    assert sum(different) >= 9
    assert all(red_words(plots.lossless_text(seed, temperature=0.0)) == 0 for seed in range(1, 6))


def test_the_word_has_its_exact_distribution_with_and_without_speculation():
    missed = drawn = 0
    for temperature in (0.5, 1.0, 2.0):
        target, _ = speculative.word_models(temperature)
        for draft_length in (1, 4, 8):
            axes = plots.lossless_text(1, draft_length, temperature).axes[1]
            exact = np.linalg.matrix_power(target, speculative.SAMPLE_LENGTH)[0]
            np.testing.assert_allclose(bars(axes, 0), exact, rtol=1e-12)
            for color in (style.RED, style.BLUE):
                _, _, low, high = dots(axes, color)
                missed, drawn = missed + misses(exact, low, high), drawn + len(exact)
    assert missed <= 5, f"{missed} of {drawn} intervals of 99 % miss"


def test_the_draft_of_the_text_would_not_pass_for_the_target():
    target, draft = speculative.word_models()
    alone, other = (np.linalg.matrix_power(chain, speculative.SAMPLE_LENGTH)[0] for chain in (target, draft))
    _, _, low, high = dots(plots.lossless_text().axes[1])
    assert misses(other, low, high) >= 3
    assert abs(alone - other).max() > 0.05


# --- speed-up ------------------------------------------------------------------------------------------------------


def speedup(acceptance, draft_length, cost):
    return expected_tokens(acceptance, draft_length) / (draft_length * cost + 1)


@pytest.mark.parametrize(
    ("acceptance", "cost", "best", "value"), [(0.8, 0.05, 8, 3.092), (0.8, 0.2, 4, 1.868), (0.6, 0.1, 3, 1.674)]
)
def test_the_best_draft_length_is_marked_on_the_surface_and_on_the_cut(acceptance, cost, best, value):
    figure = plots.speculative_speedup(acceptance, cost)
    plane, cut = (marks(axes, "D", style.AMBER)[0] for axes in figure.axes)
    assert plane.tolist() == [best, acceptance]
    assert cut == pytest.approx([best, value], abs=5e-4)
    [curve] = lines(figure.axes[1], style.FORMULA)
    assert curve[:, 1].max() == pytest.approx(cut[1], rel=1e-12)


@settings(deadline=None, max_examples=10)
@given(costs)
def test_the_dashed_line_is_the_best_length_of_each_acceptance(cost):
    [best] = lines(plots.speculative_speedup(0.5, cost).axes[0], {"color": style.BLUE, "linestyle": "--"})
    for length, acceptance in best[::57]:
        values = [speedup(acceptance, n, cost) for n in range(21)]
        assert values[int(length)] >= max(values) * (1 - 1e-12)


@settings(deadline=None, max_examples=10)
@given(costs)
def test_on_the_line_of_no_gain_a_round_takes_as_long_as_its_tokens(cost):
    figure = plots.speculative_speedup(0.5, cost)
    [even] = lines(figure.axes[0], {"color": style.GREY})
    for length, acceptance in even[np.isfinite(even[:, 1])][::5]:
        assert speedup(acceptance, length, cost) == pytest.approx(1, abs=2e-3)


# --- the paper -----------------------------------------------------------------------------------------------------


def test_table_1_is_printed_as_in_the_paper_and_all_twelve_values_reproduce():
    for number, row in enumerate(published.LEVIATHAN_TABLE_1, start=6):
        inputs, output = FACTS[f"F{number:03}"]["inputs"], FACTS[f"F{number:03}"]["output"]
        assert (row.acceptance, row.draft_length) == (inputs["alpha"], inputs["gamma"])
        assert (row.operations, row.speed) == (output["operations"], output["speed"])
        tokens = expected_tokens(row.acceptance, row.draft_length)
        assert (round(tokens, 2), round((row.draft_length + 1) / tokens, 2)) == (row.speed, row.operations)


def test_table_4_is_printed_as_in_the_paper():
    for number, row in enumerate(published.LEVIATHAN_TABLE_4, start=12):
        inputs, output = FACTS[f"F{number:03}"]["inputs"], FACTS[f"F{number:03}"]["output"]
        assert (row.task, row.draft_model, row.temperature) == (inputs["task"], inputs["draft"], inputs["temp"])
        assert (row.draft_length, row.acceptance, row.draft_cost_ratio) == (
            inputs["gamma"],
            inputs["alpha"],
            inputs["c"],
        )
        assert (row.expected, row.measured) == (output["expected"], output["empirical"])


def test_the_picture_of_table_4_says_nine_and_twelve_and_shows_the_golden_bands():
    figure = plots.leviathan_table_4()
    assert "9 agree with the formula at the printed inputs and 12 once" in figure.alt_text
    axes = figure.axes[0]
    container = next(bar for bar in axes.containers if isinstance(bar, ErrorbarContainer))
    points = container.lines[0].get_xdata()
    bands = np.array(container.lines[2][0].get_segments())[:, :, 0]
    for number, point, band in zip(range(12, 24), points, bands, strict=True):
        fact = FACTS[f"F{number:03}"]
        assert point == pytest.approx(fact["our_value"], abs=5e-4)
        printed = re.search(r"band \[([\d.]+),([\d.]+)\]", fact["regression"])
        assert band == pytest.approx([float(end) for end in printed.groups()], abs=5e-3 + 1e-9)


def test_at_face_value_three_predictions_are_not_reproduced():
    figure = plots.leviathan_table_4(input_rounding=0.0)
    assert "9 agree with the formula at the printed inputs and 9 once" in figure.alt_text
    assert sum(text.get_text() == "not reproduced" for text in figure.axes[0].texts) == 3


# --- operations and batches ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=10)
@given(acceptances, costs)
def test_operations_are_what_theorem_3_11_says_and_never_fall(acceptance, cost):
    axes = plots.speculative_operations(acceptance, cost).axes[0]
    [work] = lines(axes, speculative.WRONG)
    theorem = [(n * cost + n + 1) / expected_tokens(acceptance, n) for n in work[:, 0]]
    np.testing.assert_allclose(work[:, 1], theorem, rtol=1e-9)
    assert (np.diff(work[:, 1]) > -1e-9).all()


def test_simulated_operations_and_speed_agree_with_their_formulas():
    missed = drawn = 0
    for acceptance in (0.2, 0.5, 0.7, 0.9):
        axes = plots.speculative_operations(acceptance, 0.1).axes[0]
        for color, truth in (
            (style.BLUE, lambda n, a=acceptance: speedup(a, n, 0.1)),
            (style.RED, lambda n, a=acceptance: (1.1 * n + 1) / expected_tokens(a, n)),
        ):
            x, _, low, high = dots(axes, color)
            missed, drawn = missed + misses(np.array([truth(n) for n in x]), low, high), drawn + len(x)
    assert missed <= 4, f"{missed} of {drawn} intervals of 99 % miss"


def test_the_break_even_batches_of_the_lecture():
    figure = plots.speculative_batch(acceptance=0.7, draft_length=4, draft_cost_ratio=0.05)
    assert "151.9 on H100 and 78.7 on A100-80" in figure.alt_text


@settings(deadline=None, max_examples=20)
@given(acceptances, lengths, st.floats(0.01, 0.3))
def test_the_speedup_crosses_one_at_the_diamond_and_stays_below(acceptance, draft_length, cost):
    axes = plots.speculative_batch(acceptance, draft_length, cost).axes[0]
    curves = [
        line.get_xydata()
        for line in axes.lines
        if line.get_color() in style.PALETTE[:2] and len(line.get_xdata()) > 100
    ]
    evens = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert len(curves) == 2
    assert len(evens) == (2 if speedup(acceptance, draft_length, cost) >= 1 else 0)
    for curve, even in zip(curves, evens, strict=False):
        assert np.interp(np.log(even), np.log(curve[:, 0]), curve[:, 1]) == pytest.approx(1, abs=0.02)
        assert (curve[curve[:, 0] > even, 1] < 1).all()
        assert (curve[curve[:, 0] < even, 1] >= 1 - 1e-9).all()
    assert (curves[0][-1, 1], curves[1][-1, 1]) < (1, 1)


# --- acceptance that varies ----------------------------------------------------------------------------------------


def levels(figure):
    """The truth, and what the formula says at the average over rounds, over tokens, and over tested drafts."""
    axes = figure.axes[0]
    [truth] = {line[0, 1] for line in lines(axes, style.CHOSEN)}
    return truth, *(marks(axes, marker, style.RED)[0, 1] for marker in speculative.MARKS)


@settings(deadline=None, max_examples=40)
@given(acceptances, acceptances, st.floats(0, 1), lengths)
def test_averaged_over_rounds_the_formula_promises_too_little_and_over_tokens_or_tested_drafts_too_much(
    easy, hard, share, draft_length
):
    truth, rounds, tokens, tested = levels(plots.varying_acceptance(easy, hard, share, draft_length))
    assert rounds <= truth + 1e-9
    assert tokens >= truth - 1e-9
    assert tested >= truth - 1e-9


def test_the_simulation_rules_out_the_formula_at_each_average():
    for easy, hard, draft_length in ((0.95, 0.5, 8), (0.9, 0.3, 4), (0.98, 0.1, 16)):
        figure = plots.varying_acceptance(easy, hard, 0.5, draft_length)
        truth, *said = levels(figure)
        _, _, [low], [high] = dots(figure.axes[0])
        assert low <= truth <= high
        assert said[0] < low
        assert min(said[1:]) > high


@settings(deadline=None, max_examples=10)
@given(acceptances, acceptances, st.floats(0, 1), lengths)
def test_variation_afresh_from_token_to_token_leaves_the_formula_exact(easy, hard, share, draft_length):
    figure = plots.varying_acceptance(easy, hard, share, draft_length, "from token to token")
    [truth] = {line[0, 1] for line in lines(figure.axes[0], style.CHOSEN)}
    assert marks(figure.axes[0], "^", style.RED)[0, 1] == truth
    assert truth == pytest.approx(expected_tokens(share * easy + (1 - share) * hard, draft_length), rel=1e-9)


def test_the_simulation_agrees_that_fresh_variation_is_harmless():
    missed = 0
    for easy, hard in ((0.95, 0.5), (0.98, 0.0), (0.7, 0.2), (0.9, 0.6)):
        figure = plots.varying_acceptance(easy, hard, 0.5, 8, "from token to token")
        _, _, low, high = dots(figure.axes[0])
        missed += misses(np.array([expected_tokens((easy + hard) / 2, 8)]), low, high)
    assert missed == 0


def test_one_drafted_token_knows_no_jensen():
    truth, rounds, tokens, tested = levels(plots.varying_acceptance(0.95, 0.5, 0.5, 1))
    assert rounds == pytest.approx(truth, rel=1e-12)
    assert tested == pytest.approx(truth, rel=1e-12)
    assert tokens > truth


# --- all -----------------------------------------------------------------------------------------------------------

EXTREMES = [
    (plots.speculative_rounds, {"acceptance": 0.0, "draft_length": 0}),
    (plots.speculative_rounds, {"acceptance": 0.98, "draft_length": 12}),
    (plots.speculative_tokens, {"acceptance": 0.05, "draft_length": 20}),
    (plots.speculative_tokens, {"acceptance": 0.98, "draft_length": 0}),
    (plots.acceptance_overlap, dict.fromkeys(("target_a", "target_b", "target_c"), 0)),
    (plots.lossless_text, {"seed": 50, "draft_length": 8, "temperature": 2.0}),
    (plots.speculative_speedup, {"acceptance": 0.98, "draft_cost_ratio": 0.01}),
    (plots.speculative_speedup, {"acceptance": 0.05, "draft_cost_ratio": 1.0}),
    (plots.speculative_operations, {"acceptance": 0.05, "draft_cost_ratio": 0.5}),
    (plots.speculative_batch, {"acceptance": 0.05, "draft_length": 12, "draft_cost_ratio": 0.5}),
    (plots.varying_acceptance, {"easy": 0.98, "hard": 0.0, "easy_share": 0.0, "draft_length": 16}),
]


@pytest.mark.parametrize(("plot", "parameters"), EXTREMES)
def test_at_the_ends_of_the_sliders_every_word_stays_on_the_picture(plot, parameters):
    figure = plot(**parameters)
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    for axes in figure.axes:
        for text in [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]:
            if text.get_text() and text.get_visible():
                box = text.get_window_extent()
                assert box.x0 >= 0, text
                assert box.y0 >= 0, text
                assert box.x1 <= width, text
                assert box.y1 <= height, text


@pytest.mark.parametrize(
    ("plot", "parameters", "words"),
    [
        (plots.speculative_rounds, {"acceptance": 1.5}, "acceptance must be in"),
        (plots.acceptance_overlap, dict.fromkeys(("target_a", "target_b", "target_c", "target_d"), 0), "not all zero"),
        (plots.acceptance_overlap, {"replace_from": "draft"}, "replace_from must be"),
        (plots.lossless_text, {"temperature": -1.0}, "temperature must be nonnegative"),
        (plots.varying_acceptance, {"varies": "never"}, "varies must be"),
    ],
)
def test_a_bad_parameter_is_named(plot, parameters, words):
    with pytest.raises(ValueError, match=words):
        plot(**parameters)

"""The pictures of lecture 02 draw what formulas, the engine, an independent oracle and published numbers say."""

import json
from pathlib import Path

import numpy as np
import pytest

from serving_lib import plots
from serving_lib.batching import affine_batch_chain
from serving_lib.engine import Policy, Server, StepTime, simulate
from serving_lib.metrics import e2e
from serving_lib.models import GPUS, MODELS
from serving_lib.plots import style
from serving_lib.queue_simulator import mean_interval
from serving_lib.units import ureg
from serving_lib.workload import Workload, poisson
from tests.drawn import boxes

FACTS = {
    fact["id"]: fact for fact in json.loads((Path(__file__).parent / "golden" / "paper_facts.json").read_text("utf-8"))
}


def line(axes, look):
    """The x and y of the first line with a look."""
    wanted = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": look["linewidth"]}
    return next(
        drawn.get_xydata().T
        for drawn in axes.lines
        if all(getattr(drawn, f"get_{name}")() == value for name, value in wanted.items())
    )


def dots(axes):
    """The x and y of the simulated dots that have no interval."""
    return next(
        drawn.get_xydata().T
        for drawn in axes.lines
        if drawn.get_color() == style.BLUE and drawn.get_marker() == "o" and drawn.get_linestyle() == "None"
    )


def intervals(axes):
    """The x, mean, low and high of the simulated dots with their intervals."""
    points, _, (bars,) = axes.containers[0]
    x, mean = points.get_xydata().T
    low, high = np.array([segment[:, 1] for segment in bars.get_segments()]).T
    return x, mean, low, high


def share_of_intervals_that_hold(axes, look=style.FORMULA):
    x, _, low, high = intervals(axes)
    expected = np.interp(x, *line(axes, look))
    return np.mean((low <= expected) & (expected <= high))


# --- the knee


@pytest.mark.parametrize(("fixed", "each"), [(8, 0.25), (20, 1), (0.5, 0.05)])
def test_the_engine_takes_the_time_and_brings_the_tokens_of_the_affine_step(fixed, each):
    cost, gain = plots.batch_knee(fixed_time=fixed * ureg.ms, per_request_time=each * ureg.ms).axes
    size, step = dots(cost)
    np.testing.assert_allclose(step, fixed + size * each, rtol=1e-12)
    np.testing.assert_allclose(dots(gain)[1], 1000 * size / (fixed + size * each), rtol=1e-12)
    for axes in (cost, gain):
        np.testing.assert_allclose(np.interp(size, *line(axes, style.FORMULA)), dots(axes)[1], rtol=1e-12)


def test_the_knee_reaches_half_of_the_dotted_ceiling():
    _, gain = plots.batch_knee(batch_size=32).axes
    size, tokens = line(gain, style.FORMULA)
    assert tokens[size == 32] == pytest.approx(4000 / 2)


# --- formation


@pytest.mark.parametrize("rate", [5, 40, 400, 1500, 3000])
def test_the_parts_of_a_formed_batch_add_up_to_what_is_simulated(rate):
    (axes,) = plots.batch_formation(arrival_rate=rate / ureg.s).axes
    x, mean, low, high = intervals(axes)
    expected = np.interp(x, *line(axes, style.FORMULA))
    # Kingman's wait is an approximation for batches; it is worst for small batches of a busy server.
    assert np.all((low <= expected) & (expected <= high) | (np.abs(mean / expected - 1) < 0.06))


def test_the_best_batch_size_moves_with_the_load():
    sizes = [
        int(plots.batch_formation(arrival_rate=rate / ureg.s).alt_text.split("size is ")[1].split(":")[0])
        for rate in (10, 400, 1000, 3500)
    ]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 3.5 * 8 / (1 - 3.5 * 0.25)  # the smallest batch whose throughput is the arrival rate


def test_a_load_beyond_the_ceiling_is_said_to_be_hopeless():
    assert "no batch size" in plots.batch_formation(arrival_rate=4001 / ureg.s).alt_text


# --- padding


@pytest.mark.parametrize(("batch", "share"), [(8, 0.564), (32, 0.518)])
def test_uniform_lengths_use_the_share_of_the_slots_that_the_lecture_says(batch, share):
    _, many = plots.padding_waste(batch_size=batch).axes
    size, busy = line(many, style.FORMULA)
    assert busy[size == batch] == pytest.approx(share, abs=5e-4)


def test_the_mean_longest_is_that_of_a_million_draws():
    _, many = plots.padding_waste(lengths="geometric, mean 64").axes
    size, busy = line(many, style.FORMULA)
    drawn = np.random.default_rng(7).geometric(1 / 64, (60_000, 16))
    assert busy[size == 16] == pytest.approx(drawn.mean() / drawn.max(axis=1).mean(), rel=0.01)


@pytest.mark.parametrize("lengths", ["uniform 1 to 128", "geometric, mean 64", "Azure conversation"])
def test_static_batches_of_the_engine_waste_what_the_formula_says(lengths):
    _, many = plots.padding_waste(lengths=lengths).axes
    x, mean, low, high = intervals(many)
    expected = np.interp(x, *line(many, style.FORMULA))
    inside = (low <= expected) & (expected <= high) | np.isclose(mean, expected)
    assert inside.sum() >= len(x) - 1  # eight intervals of 99 %


# --- slots


def bars(axes):
    """The start, end and slot of each drawn request; the requests take the four looks in turns."""
    looks = boxes(axes)
    drawn = np.empty((sum(len(left) for left, _, _, _ in looks), 3))
    for number, (left, right, bottom, _) in enumerate(looks):
        drawn[number::4] = np.column_stack([left, right, bottom.round()])
    return drawn


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_slot_holds_two_requests_and_every_bar_is_as_long_as_its_answer(slots, seed):
    lengths = np.random.default_rng(seed).integers(1, 21, 12)
    for axes in plots.slot_by_slot(slots=slots, requests=12, longest=20, seed=seed).axes:
        drawn = bars(axes)
        np.testing.assert_array_equal(drawn[:, 1] - drawn[:, 0], lengths)
        assert set(drawn[:, 2]) <= set(range(slots))
        for slot in range(slots):
            of_slot = drawn[drawn[:, 2] == slot]
            of_slot = of_slot[np.argsort(of_slot[:, 0])]
            assert np.all(of_slot[1:, 0] >= of_slot[:-1, 1])


def test_a_static_batch_starts_when_all_of_the_one_before_are_done_and_continuous_refills_at_once():
    static, continuous = (bars(axes) for axes in plots.slot_by_slot(slots=4, requests=12).axes)
    for batch in (static[4:8], static[8:]):
        assert len(set(batch[:, 0])) == 1
    assert static[4, 0] == static[:4, 1].max()
    assert static[8, 0] == static[4:8, 1].max()
    # List scheduling, from nothing but the lengths: each request takes the first slot that falls free.
    free = np.zeros(4)
    for start, end, _ in continuous:
        assert start == free.min()
        free[free.argmin()] = end


# --- roofline


@pytest.mark.parametrize("gpu", ["A100-80", "H100", "H200"])
@pytest.mark.parametrize("model", ["Llama-3-8B", "Llama-2-13B", "Qwen2.5-7B"])
def test_the_engine_takes_the_step_of_the_roofline_below_the_arithmetic_knee(model, gpu):
    (axes,) = plots.roofline(model, gpu, context_tokens=1024).axes
    size, step = dots(axes)
    shape, limits = MODELS[model], GPUS[gpu]
    read = 2 * shape.parameters + size * 1024 * 2 * shape.layers * shape.kv_heads * shape.head_dim * 2
    np.testing.assert_allclose(step, 1e3 * read / limits.bandwidth.m_as("byte/s"), rtol=1e-12)
    np.testing.assert_allclose(np.interp(size, *line(axes, style.FORMULA)), step, rtol=1e-3)


def test_a_long_context_is_bound_by_kv_bytes_and_a_short_one_by_weights_and_neither_by_arithmetic():
    assert "into KV bytes" in plots.roofline(context_tokens=16_384, batch_size=32).alt_text
    assert "into weight bytes" in plots.roofline(context_tokens=512, batch_size=32).alt_text
    assert "into arithmetic" in plots.roofline(context_tokens=128, batch_size=512).alt_text


@pytest.mark.parametrize("fact", ["F170", "F171"])
def test_the_markers_are_the_published_numbers_and_the_lines_run_through_them(fact):
    (axes,) = plots.scaling_book().axes
    published = FACTS[fact]
    look = style.series(["F170", "F171"].index(fact))
    batch, tokens = next(
        drawn.get_xydata().T
        for drawn in axes.lines
        if drawn.get_color() == look["color"] and drawn.get_marker() == look["marker"]
    )
    assert batch.tolist() == published["inputs"]["batch"]
    assert tokens.tolist() == published["output"]["tok_s"]
    np.testing.assert_allclose(np.interp(batch, *line(axes, look)), tokens, rtol=2e-3)


# --- the chain


@pytest.mark.parametrize("slots", [4, 32, 256])
def test_the_engine_agrees_with_the_affine_batch_chain_within_its_intervals(slots):
    (axes,) = plots.batch_chain(slots=slots).axes
    x, _, low, high = intervals(axes)
    expected = np.interp(x, *line(axes, style.FORMULA))
    assert np.sum((low <= expected) & (expected <= high)) >= len(x) - 1  # five intervals of 99 %


def test_slots_that_cannot_carry_the_load_are_said_to_queue_without_end():
    assert "without end" in plots.batch_chain(arrival_rate=11 / ureg.s, slots=32).alt_text
    assert "without end" not in plots.batch_chain(arrival_rate=11 / ureg.s, slots=64).alt_text


# --- prefill


def gaps_of(axes, label):
    drawn = next(drawn for drawn in axes.lines if drawn.get_label().startswith(label))
    return np.diff(drawn.get_xdata())


def test_a_prompt_in_one_piece_freezes_the_readers_for_its_whole_prefill_and_chunks_do_not():
    (axes,) = plots.prefill_stall(prompt_tokens=8192, prefill_budget=512).axes
    model, gpu = MODELS["Mistral-7B"], GPUS["A100-80"]
    per_token = 2 * model.parameters / (0.5 * gpu.flops_per_second.m_as("flop/s"))
    base = 2 * model.parameters / gpu.bandwidth.m_as("byte/s")
    assert gaps_of(axes, "in one piece").max() == pytest.approx(base + 8192 * per_token, rel=1e-3)
    assert gaps_of(axes, "in chunks").max() == pytest.approx(base + (512 - 16) * per_token, rel=0.02)


def test_the_tail_of_the_gaps_is_a_step_filled_to_its_budget():
    gaps, _ = plots.token_budget(arrival_rate=6 / ureg.s).axes
    x, mean, _, _ = intervals(gaps)
    expected = np.interp(x[:5], *line(gaps, style.FORMULA))
    np.testing.assert_allclose(mean[:5], expected, rtol=0.03)  # to a budget of 2,048


def test_a_token_budget_trades_the_time_to_first_token_for_the_gap():
    gaps, first = plots.token_budget(arrival_rate=6 / ureg.s).axes
    _, gap, gap_low, gap_high = intervals(gaps)
    _, ttft, ttft_low, ttft_high = intervals(first)
    assert gap_high[0] < gap_low[2] < gap_high[2] < gap_low[4]  # budgets of 128, 512 and 2,048
    assert ttft_low[0] > ttft_high[4]
    assert gap[0] < gap[-1]
    assert ttft[0] > 5 * ttft[-1]


def test_chunked_prefill_loses_no_token():
    requests = Workload(["a", "b"], [0.0, 0.0], [5_000, 3_000], [50, 70])
    for budget in (None, 256):
        result = simulate(requests, Server(16, 10_000, 2), Policy(prefill_budget=budget))
        assert result.generated.tolist() == [50, 70]


def test_with_slots_for_all_only_the_mean_length_matters():
    chain = affine_batch_chain(15.0, 1.6, 0.05, max_batch=1_000, capacity=1_500)
    for lengths in (200, lambda rng, count: np.where(rng.random(count) < 0.9, 100, 1_100)):
        requests = poisson(15, 30_000, seed=5, prompt_tokens=1, new_tokens=lengths)
        server = Server(16, 10**9, 1_000, StepTime(base=0.008, per_request=0.00025))
        run = simulate(requests, server)
        assert chain.time_in_system in mean_interval(e2e(run)[:-3_000])

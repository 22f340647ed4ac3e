"""Pictures of lecture 03: rounds of speculative decoding, what they emit, and what they cost."""

from functools import lru_cache

import numpy as np

from serving_lib.models import GPUS
from serving_lib.plots import style
from serving_lib.published import LEVIATHAN_TABLE_4
from serving_lib.queue_simulator import mean_interval
from serving_lib.speculative import (
    calc_acceptance_rate,
    calc_speculative_best_draft_length,
    calc_speculative_break_even_batch,
    calc_speculative_expected_tokens,
    calc_speculative_round_speedup,
)
from serving_lib.speculative_simulator import (
    decode,
    decode_speculatively,
    residual_distribution,
    simulate_speculative_rounds,
    simulate_speculative_token,
)

ROUNDS = 10_000  # of every simulated mean
SHOWN_ROUNDS = 10
NORMAL_99 = 2.5758  # the 99.5th percentile of the standard normal distribution
BLUE_CELL, AMBER_CELL = (style.fill(index) | {"hatch": ""} for index in (2, 3))
OUTLINE = {"facecolor": "none", "edgecolor": style.AMBER, "linewidth": 2.2}
EMPTY = {"facecolor": "white", "edgecolor": style.GREY}  # a cell without meaning of its own
OTHER = style.SIMULATION | {"color": style.RED, "marker": "s", "markersize": 4}  # simulated beside a simulation
WRONG = {"color": style.RED, "linestyle": "--", "linewidth": 1.8}  # a formula that is often used and is wrong


def speculative_rounds(acceptance=0.7, draft_length=4):
    """Draw ten rounds coin by coin, and the law of the tokens per round: formula, and simulation with its intervals.

    Parameters
    ----------
    acceptance : float
        Probability that a drafted token is accepted, in [0, 1).
    draft_length : int
        Drafted tokens per round.

    Returns
    -------
    matplotlib.figure.Figure
    """
    mean = calc_speculative_expected_tokens(acceptance, draft_length)
    accepted = _simulated_rounds(acceptance, draft_length)
    emitted = np.arange(1, draft_length + 2)
    law = acceptance ** (emitted - 1) * np.where(emitted <= draft_length, 1 - acceptance, 1)
    low, share, high = _share_interval(np.bincount(accepted, minlength=draft_length + 1), len(accepted))

    figure, (coins, bars) = _two_panels()
    _draw_rounds(coins, accepted[:SHOWN_ROUNDS], draft_length)
    style.boxes(bars, emitted - 0.35, 0, 0.7, law, style.fill(0))
    bars.errorbar(emitted, share, (share - low, high - share), **style.SIMULATION)
    bars.axvline(mean, ymax=0.75, **style.CHOSEN)
    bars.set(xlim=(0.3, draft_length + 1.7), ylim=(0, 1.35 * max(law.max(), high.max())))
    bars.set(xlabel="Emitted in a round (tokens)", ylabel="Probability (share of rounds)")
    bars.set_title("Ten thousand rounds", **style.TITLE)
    bars.set_xticks(_few(emitted))
    _key(
        bars,
        ("bars: formula", style.INK),
        ("dots: simulated, 99 %", style.BLUE),
        (f"line: mean {mean:.2f}", style.AMBER),
    )

    run = mean_interval(accepted + 1, warmup=0)
    return style.finish(
        figure,
        f"With acceptance {acceptance:g} and {draft_length} drafted tokens a round emits {mean:.3f} tokens on average; "
        f"{ROUNDS:,} simulated rounds emitted {run.mean:.3f} ± {run.half_width:.3f} (99 % interval). All drafts are "
        f"accepted in {100 * law[-1]:.1f} % of rounds, none in {100 * (1 - acceptance) if draft_length else 0:.1f} %.",
    )


def _draw_rounds(axes, accepted, draft_length):
    """Draw one row of cells per round: accepted drafts, the target's own token, drafts thrown away."""
    place, kept = np.arange(1, draft_length + 2), accepted[:, None]
    thrown = (place > kept + 1) & (place <= draft_length)
    for mask, look, mark in (
        (place <= kept, BLUE_CELL, "$d$"),
        (place == kept + 1, AMBER_CELL, "$T$"),
        (thrown, EMPTY, "None"),
    ):
        row, column = np.nonzero(mask)
        _draw_cells(axes, column + 1, row + 1, look)
        axes.plot(
            column + 1, row + 1, marker=mark, markersize=6, color=style.INK, linestyle="none", markeredgewidth=0.3
        )
    axes.set(xlim=(0.3, draft_length + 1.7), ylim=(len(accepted) + 2.4, 0.4))
    axes.set(xlabel="Position in the round (token)", ylabel="Round (number)")
    axes.set_title("Ten rounds, coin by coin", **style.TITLE)
    axes.grid(False)
    axes.set_yticks((1, 5, len(accepted)))
    axes.set_xticks(_few(np.arange(1, draft_length + 2)))
    axes.text(0.03, 0.10, "d: draft kept   T: target's own", transform=axes.transAxes, fontsize=9, va="center")
    axes.text(0.03, 0.035, "empty: drafted, thrown away", transform=axes.transAxes, fontsize=9, va="center")


def speculative_tokens(acceptance=0.7, draft_length=4):
    """Draw the tokens per round against the draft length: formula, simulation, ceiling, and a wrong formula.

    Parameters
    ----------
    acceptance : float
        Probability that a drafted token is accepted, in [0, 1).
    draft_length : int
        The draft length to mark, up to 20.

    Returns
    -------
    matplotlib.figure.Figure
    """
    lengths = np.arange(0, 21)
    tokens = calc_speculative_expected_tokens(acceptance, lengths)
    chosen, ceiling = tokens[draft_length], 1 / (1 - acceptance)
    top = 1.5 * max(2.0, tokens[-1])

    figure, axes = style.new_figure()
    axes.plot(lengths, 1 + acceptance * lengths, **WRONG)
    axes.axhline(ceiling, **style.LIMIT)
    axes.plot(lengths, tokens, **style.FORMULA)
    dots = _simulated_tokens(acceptance)
    axes.errorbar(dots[:, 0], dots[:, 1], dots[:, 2], **style.SIMULATION)
    axes.axvline(draft_length, **style.CHOSEN)
    axes.plot(draft_length, chosen, marker="D", markersize=10, color=style.AMBER, fillstyle="none")
    axes.set(xlim=(0, 20.4), ylim=(0, top), xlabel="Draft length (tokens)", ylabel="Emitted per round (tokens)")
    axes.set_title("Tokens per round", **style.TITLE)
    axes.locator_params(axis="x", nbins=6, integer=True)
    _key(
        axes,
        ("line: formula", style.INK),
        (f"dots: {ROUNDS:,} simulated rounds, 99 %", style.BLUE),
        ("dotted: ceiling 1 / (1 − α)", style.GREY),
        ("dashed: 1 + αγ, wrong: a rejection ends the round", style.RED),
        at=(0.985, 0.28),
    )
    return style.finish(
        figure,
        f"With acceptance {acceptance:g}, {draft_length} drafted tokens give {chosen:.2f} tokens per round, of which "
        f"{chosen - 1:.2f} were drafted; no draft length gives more than {ceiling:.2f}.",
    )


def acceptance_overlap(
    target_a=4, target_b=1, target_c=3, target_d=2, draft_a=2, draft_b=4, draft_c=3, draft_d=1, replace_from="residual"
):
    """Draw two distributions, their overlap, and what accepting and replacing emits: formula and simulation.

    Parameters
    ----------
    target_a, target_b, target_c, target_d : int
        Weights of the target's next token; they are scaled to the sum one.
    draft_a, draft_b, draft_c, draft_d : int
        Weights of the draft's next token.
    replace_from : str
        What replaces a rejected token: "residual", which is right, or "target", a common mistake.

    Returns
    -------
    matplotlib.figure.Figure
    """
    names = ("a", "b", "c", "d")
    target = _from_weights("target", (target_a, target_b, target_c, target_d))
    draft = _from_weights("draft", (draft_a, draft_b, draft_c, draft_d))
    if replace_from not in ("residual", "target"):
        raise ValueError(f'replace_from must be "residual" or "target", got {replace_from!r}')
    overlap = np.minimum(target, draft)
    alpha = calc_acceptance_rate(target, draft)
    replacement = residual_distribution(target, draft) if replace_from == "residual" else target
    emitted = overlap + (1 - alpha) * replacement
    tokens, accepted = _simulated_token(tuple(target), tuple(draft), tuple(replacement))
    low, share, high = _share_interval(np.bincount(tokens, minlength=4), ROUNDS)
    top = 1.5 * max(target.max(), draft.max(), emitted.max())
    place = np.arange(4)

    figure, (before, after) = _two_panels()
    style.boxes(before, place - 0.39, 0, 0.38, target, style.fill(0))
    style.boxes(before, place + 0.01, 0, 0.38, draft, style.fill(1))
    style.boxes(before, place - 0.39, 0, 0.78, overlap, OUTLINE)
    before.set(xticks=place, xlim=(-0.6, 3.6), ylim=(0, top), xlabel="Next token (name)", ylabel="Probability (share)")
    before.set_xticklabels(names)
    before.set_title("Target and draft", **style.TITLE)
    outline = f"outlined: min(p, q), sum {alpha:.2f}"
    _key(before, ("plain: target p", style.INK), ("hatched: draft q", style.RED), (outline, style.AMBER))

    style.boxes(after, place - 0.3, 0, 0.6, overlap, AMBER_CELL)
    style.boxes(after, place - 0.3, overlap, 0.6, (1 - alpha) * replacement, BLUE_CELL)
    after.errorbar(place, share, (share - low, high - share), **style.SIMULATION)
    after.hlines(target, place - 0.42, place + 0.42, **style.FORMULA)
    after.set(
        xticks=place, xlim=(-0.6, 3.6), ylim=(0, top), xlabel="Emitted token (name)", ylabel="Probability (share)"
    )
    after.set_xticklabels(names)
    after.set_title("What is emitted", **style.TITLE)
    _key(
        after,
        ("line: target p", style.INK),
        ("lower part: kept drafts", style.AMBER),
        ("upper part: replaced", style.BLUE),
        ("dots: simulated, 99 %", style.BLUE),
    )

    difference = np.abs(emitted - target).max()
    verdict = "exactly the target" if difference < 1e-9 else f"off the target by up to {difference:.3f}"
    kept = ", ".join(f"{name} {value:.2f}" for name, value in zip(names, replacement, strict=True))
    return style.finish(
        figure,
        f"The two overlap by {alpha:.3f}: that is the acceptance. A rejected token is replaced from {kept}. "
        f"The emitted token is distributed {verdict}; "
        f"of {ROUNDS:,} simulated drafts {accepted.mean():.3f} were accepted.",
    )


def _from_weights(name, weights):
    weights = np.array(weights, dtype=float)
    if (weights < 0).any() or weights.sum() == 0:
        raise ValueError(f"the {name} weights must be nonnegative and not all zero, got {weights.tolist()}")
    return weights / weights.sum()


# A target and a draft model of six words: the logit of each next word (column) after each word (row).
WORDS = ("the", "cat", "dog", "sleeps", "sings", ".")
TARGET_LOGITS = np.array(
    [
        [-9.0, 1.6, 1.4, -4.0, -4.0, -6.0],
        [-4.0, -9.0, -6.0, 1.8, 1.2, -1.0],
        [-4.0, -6.0, -9.0, 1.0, 1.5, -1.0],
        [-1.0, -5.0, -5.0, -9.0, -1.5, 1.5],
        [0.2, -5.0, -5.0, -2.0, -9.0, 1.5],
        [2.0, 0.6, 0.3, -5.0, -3.0, -9.0],
    ]
)
DRAFT_LOGITS = 0.6 * TARGET_LOGITS + np.array([0.0, 0.6, 0.0, 0.0, 0.4, 0.0])  # vaguer, and fond of cats that sing
SAMPLE_TEXTS, SAMPLE_LENGTH, TEXT_LENGTH = 4_000, 6, 10


def lossless_text(seed=1, draft_length=4, temperature=1.0):
    """Draw one text written by a target alone and one written with speculation, and both distributions of a word.

    Parameters
    ----------
    seed : int
        Seed of the two texts.
    draft_length : int
        Drafted tokens per round.
    temperature : float
        Of the target and the draft; 0 takes the most probable word.

    Returns
    -------
    matplotlib.figure.Figure
    """
    target, draft = word_models(temperature)
    alone = decode(target, TEXT_LENGTH, seed=seed)[0]
    together, rounds = decode_speculatively(target, draft, TEXT_LENGTH, draft_length, seed=seed)
    exact = np.linalg.matrix_power(target, SAMPLE_LENGTH)[0]
    last_alone, last_together = _simulated_last_words(temperature, draft_length)

    figure, (texts, words) = style.new_figure(2, 1, height=4.2, height_ratios=(1, 1.6))
    figure.subplots_adjust(hspace=0.35)
    different = alone != together[0]
    place = np.arange(TEXT_LENGTH)
    for row, text in enumerate((alone, together[0])):
        _draw_cells(texts, place, np.full(TEXT_LENGTH, row), EMPTY)
        for column, word in enumerate(text):
            texts.text(column, row, WORDS[word], ha="center", va="center", fontsize=9)
    _draw_cells(texts, place[different], np.ones(different.sum()), style.fill(1) | {"hatch": ""})
    texts.set(xlim=(-0.5, TEXT_LENGTH - 0.5), ylim=(1.5, -0.5))
    texts.set_axis_off()
    texts.text(-0.5, -0.62, f"Seed {seed}, target alone: {TEXT_LENGTH} target steps", fontweight="bold")
    steps = f"{rounds[0]} target steps" if rounds[0] > 1 else "one target step"
    texts.text(-0.5, 1.75, f"Same seed, with speculation: {steps}; red words differ", fontweight="bold")

    place = np.arange(len(WORDS))
    style.boxes(words, place - 0.35, 0, 0.7, exact, style.fill(0))
    for shift, tokens, look in ((-0.15, last_alone, OTHER), (0.15, last_together, style.SIMULATION)):
        low, share, high = _share_interval(np.bincount(tokens, minlength=len(WORDS)), SAMPLE_TEXTS)
        words.errorbar(place + shift, share, (share - low, high - share), **look)
    words.set(
        xticks=place,
        xlim=(-0.6, len(WORDS) - 0.4),
        ylim=(0, 1.65 * exact.max()),
        xlabel=f"Word {SAMPLE_LENGTH} of the text (name)",
    )
    words.set_ylabel("Probability (share)")
    words.set_xticklabels(WORDS)
    _key(
        words,
        ("bars: exact", style.INK),
        (f"squares: target alone, {SAMPLE_TEXTS:,} texts, 99 %", style.RED),
        (f"dots: with speculation, {SAMPLE_TEXTS:,} texts, 99 %", style.BLUE),
        row=0.1,
    )
    return style.finish(
        figure,
        f"With seed {seed} and temperature {temperature:g} the two texts differ in {different.sum()} of {TEXT_LENGTH} "
        f"words; speculation took {rounds[0]} target steps, the target alone {TEXT_LENGTH}. The most frequent word "
        f"{SAMPLE_LENGTH} is '{WORDS[exact.argmax()]}': exact probability {exact.max():.3f}, share of {SAMPLE_TEXTS:,} "
        f"texts {(last_alone == exact.argmax()).mean():.3f} by the target alone and "
        f"{(last_together == exact.argmax()).mean():.3f} with speculation.",
    )


def word_models(temperature=1.0):
    """Return the chain of words that a target writes, and its draft's, at a temperature.

    Parameters
    ----------
    temperature : float
        Nonnegative; 0 takes the most probable word.

    Returns
    -------
    tuple of ndarray, shape (6, 6)
        Probabilities of the next word (columns) after each word (rows), for the target and the draft.

    Examples
    --------
    >>> target, draft = word_models()
    >>> target.sum(axis=1).round(12).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    if not temperature >= 0:
        raise ValueError(f"temperature must be nonnegative, got {temperature}")
    return _softmax(TARGET_LOGITS, temperature), _softmax(DRAFT_LOGITS, temperature)


def _softmax(logits, temperature):
    if temperature == 0:
        return np.eye(logits.shape[1])[logits.argmax(axis=1)]
    weights = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


def speculative_speedup(acceptance=0.7, draft_cost_ratio=0.1):
    """Draw the speed-up over acceptance and draft length, with the best length marked, and a cut at one acceptance.

    Parameters
    ----------
    acceptance : float
        The acceptance of the cut, in [0, 1).
    draft_cost_ratio : float
        Time of a draft step over that of a target step, positive.

    Returns
    -------
    matplotlib.figure.Figure
    """
    lengths = np.arange(0, 21)
    grid = np.linspace(0, 0.999, 400)
    surface = _speedup(grid[:, None], lengths[None, :], draft_cost_ratio)
    best = calc_speculative_best_draft_length(acceptance, draft_cost_ratio)
    at_best = _speedup(acceptance, best, draft_cost_ratio)
    cut = _speedup(acceptance, lengths, draft_cost_ratio)

    figure, (plane, slice_) = _two_panels()
    for level in (1, 1.5, 2, 3, 5, 8):
        needed = np.array([_first_reaching(grid, column, level) for column in surface.T[1:]])
        seen = np.flatnonzero(np.isfinite(needed))
        look = style.LIMIT if level == 1 else style.FORMULA | {"linewidth": 1.1}
        plane.plot(lengths[1:], needed, **look)
        if level == 1:
            slower = np.where(np.isfinite(needed), needed, 1.0)
            plane.fill_between(lengths[1:], 0, slower, color=style.PALE, zorder=0.5)
        if len(seen):
            place = {"at": seen[-1], "offset": (-1, -7 if level == 1 else 6), "ha": "right", "fontsize": 8}
            style.label_line(plane, lengths[1:], needed, f"{level:g}×", style.FORMULA, **place)
    winner = surface.argmax(axis=1)
    inside = winner < lengths[-1]
    plane.plot(winner[inside], grid[inside], color=style.BLUE, linestyle="--", linewidth=2.2)
    plane.axhline(acceptance, **style.CHOSEN)
    if best <= lengths[-1]:
        plane.plot(best, acceptance, marker="D", markersize=10, color=style.AMBER, fillstyle="none", clip_on=False)
    plane.set(xlim=(0, 20.4), ylim=(0, 1), xlabel="Draft length (tokens)", ylabel="Acceptance (probability)")
    plane.set_title("Speed-up, best length dashed", **style.TITLE)
    plane.locator_params(axis="x", integer=True)
    plane.text(19.6, 0.03, "gray: slower", ha="right", fontsize=9)

    slice_.axhline(1, **style.LIMIT)
    slice_.plot(lengths, cut, **style.FORMULA)
    dots = _simulated_tokens(acceptance)
    gain = 1 / (dots[:, 0] * draft_cost_ratio + 1)
    slice_.errorbar(dots[:, 0], dots[:, 1] * gain, dots[:, 2] * gain, **style.SIMULATION)
    if best <= lengths[-1]:
        slice_.axvline(best, ymax=0.8, **style.CHOSEN)
        slice_.plot(best, at_best, marker="D", markersize=10, color=style.AMBER, fillstyle="none", clip_on=False)
    slice_.set(xlim=(0, 20.4), ylim=(0, 1.3 * max(1.6, cut.max())))
    slice_.set(xlabel="Draft length (tokens)", ylabel="Speed-up (times)")
    slice_.set_title(f"Cut at acceptance {acceptance:g}", **style.TITLE)
    slice_.locator_params(axis="x", integer=True)
    _key(slice_, ("line: formula", style.INK), (f"dots: {ROUNDS:,} rounds, 99 %", style.BLUE), at=(0.985, 0.94))
    return style.finish(
        figure,
        f"With acceptance {acceptance:g} and a draft step of {draft_cost_ratio:g} target steps, the best draft length "
        f"is {best}, with a speed-up of {at_best:.3f}; twenty drafted tokens give {cut[-1]:.3f}.",
    )


def _first_reaching(grid, values, level):
    """Return where increasing values reach a level, or NaN."""
    return np.interp(level, values, grid) if values[0] <= level <= values[-1] else np.nan


def leviathan_table_4(input_rounding=0.005):
    """Draw the twelve speed-ups of Leviathan et al. (2023), Table 4: printed, computed, and measured.

    Parameters
    ----------
    input_rounding : float
        By how much the printed acceptance and cost may be off, in either direction.

    Returns
    -------
    matplotlib.figure.Figure
    """
    rows = LEVIATHAN_TABLE_4
    alpha, length, cost = (np.array([getattr(row, name) for row in rows]) for name in ROW_INPUTS)
    printed, measured = (np.array([getattr(row, name) for row in rows]) for name in ("expected", "measured"))
    point = _speedup(alpha, length, cost)
    low = _speedup(alpha - input_rounding, length, cost + input_rounding)
    high = _speedup(alpha + input_rounding, length, np.maximum(cost - input_rounding, 0))
    # Printed figures are compared as what they are, tenths: binary fractions would lose 0.05 at the edges.
    matches = np.abs(point - printed) <= HALF_TENTH
    reachable = (low <= printed + HALF_TENTH) & (high >= printed - HALF_TENTH)

    figure, axes = style.new_figure(height=4.8, right_margin=0.2)
    figure.subplots_adjust(left=0.27)
    y = np.arange(len(rows))
    axes.barh(y, 0.1, left=printed - 0.05, height=0.62, **style.fill(3) | {"hatch": ""})
    axes.errorbar(point, y, xerr=(point - low, high - point), **style.SIMULATION | {"color": style.INK})
    axes.plot(measured, y, color=style.RED, linestyle="none", marker="s", fillstyle="none", markersize=7)
    axes.set(ylim=(len(rows) + 1.4, -0.7), xlim=(1.2, 3.6), xlabel="Speed-up (times)", yticks=())
    axes.hlines(y, 1.2, 3.6, color=style.PALE, linewidth=0.8, zorder=0.5)
    for row, place in zip(rows, y, strict=True):
        words = f"{row.task}, {row.draft_model}, {row.temperature}"
        axes.text(1.17, place, words, ha="right", va="center", fontsize=9)
    axes.set_ylabel("Task, draft model, temperature (0 or 1)")
    axes.yaxis.set_label_coords(-0.34, 0.5)
    axes.set_title("Table 4 of Leviathan et al. (2023)", **style.TITLE)
    for mark in y[~matches]:
        verdict = "only within the rounding" if reachable[mark] else "not reproduced"
        axes.text(3.58, mark, verdict, ha="right", va="center", fontsize=9)
    axes.text(1.22, len(rows) + 0.05, "tinted: printed prediction, ± 0.05", va="center", color=style.AMBER_TEXT)
    axes.text(1.22, len(rows) + 0.85, "dot: computed; bar: inputs as rounded", va="center")
    axes.text(3.58, len(rows) + 0.05, "square: measured", va="center", ha="right", color=style.RED)
    return style.finish(
        figure,
        f"Of {len(rows)} printed predictions, {matches.sum()} agree with the formula at the printed inputs and "
        f"{reachable.sum()} once each input may be off by {input_rounding:g}. The measured speed-up is above the "
        f"prediction in {(measured > printed + 1e-9).sum()} rows and below it in {(measured < printed - 1e-9).sum()}.",
    )


ROW_INPUTS = ("acceptance", "draft_length", "draft_cost_ratio")
HALF_TENTH = 0.05 + 1e-12


def speculative_operations(acceptance=0.7, draft_cost_ratio=0.1):
    """Draw speed-up and operations per token against the draft length: formulas, and simulation with its intervals.

    Parameters
    ----------
    acceptance : float
        Probability that a drafted token is accepted, in [0, 1).
    draft_cost_ratio : float
        A draft step over a target step, in time and in operations.

    Returns
    -------
    matplotlib.figure.Figure
    """
    lengths = np.arange(0, 21)
    tokens = calc_speculative_expected_tokens(acceptance, lengths)
    speed = _speedup(acceptance, lengths, draft_cost_ratio)
    operations = (lengths * draft_cost_ratio + lengths + 1) / tokens
    best = int(speed.argmax())
    top = 1.3 * max(speed.max(), operations.max())

    figure, axes = style.new_figure(right_margin=1.5)
    axes.axhline(1, **style.LIMIT)
    axes.plot(lengths, speed, **style.FORMULA)
    axes.plot(lengths, operations, **WRONG)
    n, mean, half = _simulated_tokens(acceptance).T
    gain, work = 1 / (n * draft_cost_ratio + 1), n * draft_cost_ratio + n + 1
    axes.errorbar(n, mean * gain, half * gain, **style.SIMULATION)
    low, high = work / (mean + half), work / (mean - half)
    axes.errorbar(n, work / mean, (work / mean - low, high - work / mean), **OTHER)
    axes.axvline(best, ymax=0.82, **style.CHOSEN)
    axes.set(
        xlim=(0, 20.4), ylim=(0, top), xlabel="Draft length (tokens)", ylabel="Relative to the target alone (times)"
    )
    axes.set_title("Time falls, work grows", **style.TITLE)
    axes.locator_params(axis="x", nbins=6, integer=True)
    ends = {"speed-up": (speed[-1], style.FORMULA), "operations\nper token": (operations[-1], WRONG)}
    apart = np.sign(operations[-1] - speed[-1]) * max(0, 12 - 120 * abs(operations[-1] - speed[-1]) / top)
    for label, (end, look) in ends.items():
        shift = apart if look is WRONG else -apart
        style.label_line(axes, (0, 20), (end, end), label, look, offset=(6, shift))
    _key(axes, ("lines: formulas", style.INK), (f"dots, squares: {ROUNDS:,} rounds, 99 %", style.BLUE))
    return style.finish(
        figure,
        f"With acceptance {acceptance:g} the fastest draft length up to 20 is {best}: {speed[best]:.2f} times as fast "
        f"for {operations[best]:.2f} times the operations per token. Twenty drafted tokens need "
        f"{operations[-1]:.2f} times the operations.",
    )


def speculative_batch(acceptance=0.7, draft_length=4, draft_cost_ratio=0.1):
    """Draw the speed-up against the batch size on two GPUs, with the break-even marked: formula and simulation.

    Parameters
    ----------
    acceptance : float
        Probability that a drafted token is accepted, in [0, 1).
    draft_length : int
        Drafted tokens per round.
    draft_cost_ratio : float
        Time of a draft step over that of a target step.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    A forward pass takes the longer of reading the weights and computing its tokens. The KV cache is left out.
    """
    batch = np.geomspace(1, 1024, 201)
    tokens = calc_speculative_expected_tokens(acceptance, draft_length)
    run = mean_interval(_simulated_rounds(acceptance, draft_length) + 1, warmup=0)
    dots = 2.0 ** np.arange(11)
    top = 1.45 * max(1.2, tokens / (1 + draft_length * draft_cost_ratio))

    figure, axes = style.new_figure()
    axes.axhline(1, **style.LIMIT)
    said = []
    for index, name in enumerate(("H100", "A100-80")):
        knee, look = GPUS[name].flops_per_byte, style.series(index) | {"marker": ""}
        gain = _gain_per_token(batch, draft_length, draft_cost_ratio, knee)
        axes.plot(batch, tokens * gain, **look)
        at_dots = _gain_per_token(dots, draft_length, draft_cost_ratio, knee)
        mark = {"color": look["color"], "marker": ("o", "s")[index], "linestyle": "none"}
        axes.errorbar(dots, run.mean * at_dots, run.half_width * at_dots, **style.SIMULATION | mark)
        even = calc_speculative_break_even_batch(acceptance, draft_length, draft_cost_ratio, knee)
        if even >= 1:
            axes.plot(even, 1, marker="D", markersize=10, color=style.AMBER, fillstyle="none")
            said.append(f"{even:.1f} on {name}")
    axes.set(xscale="log", xlim=(0.95, 1078), ylim=(0, top), xlabel="Batch (requests)", ylabel="Speed-up (times)")
    axes.set_xticks(dots[::2], [f"{dot:,.0f}" for dot in dots[::2]])
    axes.set_title("Speculation in a batch", **style.TITLE)
    _key(
        axes,
        ("solid line: H100", style.INK),
        ("dashed line: A100-80", style.RED),
        (f"dots, squares: {ROUNDS:,} rounds, 99 %", style.INK),
        ("diamonds: break-even", style.AMBER),
        at=(0.985, 0.94),
    )
    at_one = tokens / (1 + draft_length * draft_cost_ratio)
    even = f"Break-even is at a batch of {' and '.join(said)}" if said else "No batch breaks even"
    return style.finish(
        figure,
        f"With acceptance {acceptance:g}, {draft_length} drafted tokens and a draft step of {draft_cost_ratio:g} "
        f"target steps, one request alone decodes {at_one:.2f} times as fast. {even}; far beyond the knee the speed-up "
        f"is {tokens * gain[-1]:.2f}.",
    )


def _gain_per_token(batch, draft_length, draft_cost_ratio, knee):
    """Return the time of a step without speculation over that of a round, which emits several tokens."""
    alone = np.maximum(1, batch / knee)
    verify = np.maximum(1, batch * (draft_length + 1) / knee)
    # A draft reads fewer weights and computes less by the same factor, so that its knee is the target's.
    return alone / (draft_length * draft_cost_ratio * alone + verify)


def varying_acceptance(easy=0.95, hard=0.5, easy_share=0.5, draft_length=8, varies="from round to round"):
    """Draw tokens per round against acceptance, and where three averages of a varying acceptance lead the formula.

    Parameters
    ----------
    easy, hard : float
        Acceptance in an easy and in a hard context, in [0, 1).
    easy_share : float
        Share of rounds (or of tokens) that are in an easy context.
    draft_length : int
        Drafted tokens per round.
    varies : str
        "from round to round": a round is easy or hard as a whole; "from token to token": each drafted token anew.

    Returns
    -------
    matplotlib.figure.Figure
    """
    share = np.array([easy_share, 1 - easy_share])
    alphas = np.array([easy, hard])
    by_round = calc_speculative_expected_tokens(alphas, draft_length)
    mean = float(share @ alphas)
    rounds = varies == "from round to round"
    if rounds:
        truth = float(share @ by_round)
        tested = calc_speculative_expected_tokens(alphas, draft_length - 1) if draft_length else np.ones(2)
        averages = {
            "the mean over rounds": mean,
            "the mean over tokens": float(share * by_round @ alphas / truth),
            "accepted / tested": float(share * tested @ alphas / (share @ tested)),
        }
    elif varies == "from token to token":
        truth = float(calc_speculative_expected_tokens(mean, draft_length))
        averages = {"the mean": mean}
    else:
        raise ValueError(f'varies must be "from round to round" or "from token to token", got {varies!r}')
    run = _simulated_varying(easy, hard, easy_share, draft_length, rounds)

    figure, axes = style.new_figure()
    grid = np.linspace(0, 0.995, 200)
    axes.plot(grid, calc_speculative_expected_tokens(grid, draft_length), **style.FORMULA)
    if rounds:
        axes.plot(alphas, by_round, color=style.GREY, linestyle="-", linewidth=1.2)
    axes.axhline(truth, xmin=0.5, **style.CHOSEN)
    low, high = run.mean - run.half_width, run.mean + run.half_width
    axes.errorbar([mean], [run.mean], [[run.mean - low], [high - run.mean]], **style.SIMULATION)
    said = {}
    for index, (name, alpha) in enumerate(averages.items()):
        said[name] = float(calc_speculative_expected_tokens(alpha, draft_length))
        axes.plot(
            alpha, said[name], marker=MARKS[index], markersize=8, color=style.RED, fillstyle="none", linestyle="none"
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.55 * (draft_length + 1)), xlabel="Acceptance (probability)")
    axes.set(ylabel="Emitted per round (tokens)")
    axes.set_title(f"Acceptance that varies {varies}", **style.TITLE)
    _key(
        axes,
        ("line: formula", style.INK),
        (f"dot: {ROUNDS:,} rounds, 99 %", style.BLUE),
        ("level: the truth", style.AMBER),
        *((f"{SHAPES[index]}: formula at {name}", style.RED) for index, name in enumerate(averages)),
    )
    error = "; ".join(f"at {name}, {value:.2f} ({100 * (value / truth - 1):+.1f} %)" for name, value in said.items())
    return style.finish(
        figure,
        f"Rounds emit {truth:.2f} tokens on average, simulated {run.mean:.2f} ± {run.half_width:.2f} (99 % interval). "
        f"The formula says, {error}.",
    )


MARKS, SHAPES = ("^", "D", "s"), ("triangle", "diamond", "square")


def _two_panels():
    """Return a figure with two axes of few ticks: each tick costs half a millisecond, and the panels are small."""
    figure, panels = style.new_figure(1, 2)
    for axes in panels:
        axes.locator_params(nbins=5)
    return figure, panels


def _draw_cells(axes, columns, rows, look):
    """Draw boxes around whole numbers."""
    style.boxes(axes, columns - 0.46, rows - 0.4, 0.92, 0.8, look)


def _key(axes, *lines, at=(0.03, 0.94), row=0.07):
    """Write what the marks mean, line by line, each in the color of its mark; right of the middle, right-aligned."""
    x, y = at
    side = "right" if x > 0.5 else "left"
    for index, (words, color) in enumerate(lines):
        color = style.AMBER_TEXT if color == style.AMBER else color
        axes.text(x, y - row * index, words, transform=axes.transAxes, ha=side, va="center", color=color)


def _few(numbers):
    """Return at most five of some whole numbers to write at an axis: ticks are most of the cost of a small picture."""
    return numbers[:: -(-len(numbers) // 5)]


def _speedup(acceptance, draft_length, draft_cost_ratio):
    # Rounding can leave one token of an empty draft a last bit short of one.
    accepted = np.maximum(calc_speculative_expected_tokens(acceptance, draft_length) - 1, 0)
    return calc_speculative_round_speedup(accepted, draft_length, draft_cost_ratio)


def _share_interval(counts, total):
    """Return the low end, the share and the high end of 99 % intervals of shares (Wilson, which holds at 0 and 1)."""
    share = counts / total
    square = NORMAL_99**2
    middle = (counts + square / 2) / (total + square)
    half = NORMAL_99 / (total + square) * np.sqrt(counts * (1 - share) + square / 4)
    return np.minimum(middle - half, share), share, np.maximum(middle + half, share)


@lru_cache(maxsize=256)
def _simulated_rounds(acceptance, draft_length):
    return simulate_speculative_rounds(acceptance, draft_length, ROUNDS, seed=1)


@lru_cache(maxsize=256)
def _simulated_tokens(acceptance):
    """Return draft length, mean tokens per round and half width of its interval, each length with its own coins."""
    rows = []
    for length in (1, 2, 3, 4, 6, 8, 12, 16, 20):
        run = mean_interval(simulate_speculative_rounds(acceptance, length, ROUNDS, seed=length) + 1, warmup=0)
        rows.append((length, run.mean, run.half_width))
    return np.array(rows)


@lru_cache(maxsize=256)
def _simulated_token(target, draft, replacement):
    return simulate_speculative_token(target, draft, ROUNDS, seed=1, replacement=replacement)


@lru_cache(maxsize=64)
def _simulated_last_words(temperature, draft_length):
    target, draft = word_models(temperature)
    together, _ = decode_speculatively(target, draft, SAMPLE_LENGTH, draft_length, SAMPLE_TEXTS, seed=2)
    return decode(target, SAMPLE_LENGTH, SAMPLE_TEXTS, seed=1)[:, -1], together[:, -1]


@lru_cache(maxsize=256)
def _simulated_varying(easy, hard, easy_share, draft_length, by_round):
    shape = (ROUNDS, 1) if by_round else (ROUNDS, draft_length)
    is_easy = np.random.default_rng(1).random(shape) < easy_share
    accepted = simulate_speculative_rounds(np.where(is_easy, easy, hard), draft_length, ROUNDS, seed=2)
    return mean_interval(accepted + 1, warmup=0)

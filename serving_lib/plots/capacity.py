"""Pictures of lecture 05: the demand of an hour, what a plan makes of it, and what plans cost.

Each takes the name of a shipped profile, or a `Workload` that the reader has read from a file. Runs are kept, so that
a slider that only moves a price or a limit draws at once.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from serving_lib.capacity import Plan, judge, p99_ttft, pareto_front
from serving_lib.metrics import ttft
from serving_lib.models import GPUS
from serving_lib.plots import style
from serving_lib.plots.queueing import key, percent
from serving_lib.units import ureg
from serving_lib.workload import Workload, profile

CONVERSATION = "azure-conv-2023"
PLANS = (("A100-80", 1), ("A100-80", 2), ("A100-80", 3), ("H100", 1), ("H100", 2))
A100_PRICE, H100_PRICE = GPUS["A100-80"].price, GPUS["H100"].price
MAX_TTFT, MAX_TBT = 1 * ureg.s, 100 * ureg.ms
WORD = {
    "yes": "meets both limits",
    "unsure": "meets both limits in this hour, but not surely in another",
    "no": "does not meet both limits",
}


def token_demand(trace=CONVERSATION, gpu="A100-80", replicas=1, prefill_budget=768, seed=0):
    """Draw the tokens that arrive in each minute of an hour against what some GPUs can compute.

    Parameters
    ----------
    trace : str or Workload
        The name of a profile, as `serving_lib.profile` knows it, or a workload.
    gpu : str
        A GPU of `serving_lib.models.GPUS`; the model is Llama-3-8B, at half of the peak arithmetic.
    replicas : int
        How many of them, at least 1.
    prefill_budget : int
        Token budget of a step, at least 256.
    seed : int
        Seed of the profile's draw.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> token_demand().alt_text.split(";")[0]
    'On average 7,560 tokens arrive per second, 85.5 % of what 1 A100-80 can compute in full steps of 768 tokens'
    """
    workload, plan = _workload(trace, seed), Plan(gpu, replicas, prefill_budget)
    minutes = max(int((workload.arrival[-1] - workload.arrival[0]) // 60), 1)
    edges = workload.arrival[0] + 60.0 * np.arange(minutes + 1)
    prompts, outputs = (
        np.histogram(workload.arrival, edges, weights=tokens)[0] / 60
        for tokens in (workload.prompt_tokens, workload.new_tokens)
    )
    total, busy = prompts + outputs, plan.utilization(workload)
    mean = (workload.prompt_tokens + workload.new_tokens).sum() / (workload.arrival[-1] - workload.arrival[0])
    capacity = mean / busy
    over = int((total > capacity).sum())

    figure, axes = style.new_figure()
    for tokens, look in ((total, style.TRACE), (outputs, style.series(3))):
        axes.stairs(
            tokens / 1e3, np.arange(minutes + 1), color=look["color"], linestyle=look["linestyle"], baseline=None
        )
    axes.axhline(mean / 1e3, color=style.INK, linewidth=1.2)
    axes.axhline(capacity / 1e3, **style.LIMIT)
    top = 1.75 * max(total.max(), min(capacity, 2 * total.max())) / 1e3
    axes.set(xlim=(0, minutes), ylim=(0, top), xlabel="Time (min)", ylabel="Tokens (thousands / s)")
    axes.set_title(f"What each minute brings to {replicas} {gpu}", **style.TITLE)
    key(
        axes,
        (f"dotted: capacity, {style.say(capacity / 1e3)} thousand / s", style.GREY),
        ("dashed: tokens of the requests that arrive", style.RED),
        (f"line: their mean, {style.say(mean / 1e3)}", style.INK),
        ("lowest: output tokens among them", style.AMBER_TEXT),
    )
    return style.finish(
        figure,
        f"On average {style.say(mean)} tokens arrive per second, {percent(busy)} of what {replicas} {gpu} can compute "
        f"in full steps of {prefill_budget:,} tokens; {over} of {minutes} minutes bring more.",
    )


def hour_on_a_plan(
    trace=CONVERSATION, gpu="H100", replicas=1, prefill_budget=768, dispatch="least_loaded", shuffled=False, seed=0
):
    """Draw what users of a plan feel: the longest wait for a first token over time, and the gaps between tokens.

    Parameters
    ----------
    trace : str or Workload
        The name of a profile or a workload.
    gpu : str
        A GPU of `serving_lib.models.GPUS`; the model is Llama-3-8B, at half of the peak arithmetic.
    replicas : int
        How many of them, at least 1.
    prefill_budget : int
        Token budget of a step, at least 256.
    dispatch : str
        How requests are dealt out to the replicas: "round_robin" or "least_loaded".
    shuffled : bool
        Whether the gaps between arrivals come in random order.
    seed : int
        Seed of the profile's draw and of the shuffle.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> hour_on_a_plan().alt_text.split(" (")[0]
    'On 1 H100, budget 768, 99 % of the requests have their first token within 0.336 s'
    """
    plan = Plan(gpu, replicas, prefill_budget, dispatch=dispatch)
    outcome, (time, worst), (gaps, share) = _hour(trace, plan, shuffled, seed)
    figure, (above, below) = style.new_figure(2, 1, height=5.0)
    above.plot(time / 60, worst, color=style.RED, linewidth=1.4)
    above.axhline(MAX_TTFT.m_as("s"), **style.LIMIT)
    above.set_yscale("log")
    top = 20 * max(np.nanmax(worst), 1)
    above.set(xlim=(0, time[-1] / 60), ylim=(0.02, top), xlabel="Time of arrival (min)", ylabel="Longest TTFT (s)")
    above.set_title(f"{plan}: {style.say(outcome.cost.m_as('USD'))} USD per million output tokens", **style.TITLE)
    order = "shuffled" if shuffled else "in their order"
    key(above, (f"red: the longest of every 10 s, arrivals {order}", style.RED), ("dotted: limit", style.GREY))
    below.plot(1e3 * gaps, share, color=style.BLUE, linewidth=1.8)
    below.axvline(MAX_TBT.m_as("ms"), **style.LIMIT)
    below.axhline(0.01, color=style.INK, linewidth=1)
    below.plot(1e3 * outcome.tbt, 0.01, marker="D", markersize=7, color=style.BLUE)
    below.set(xscale="log", yscale="log", xlim=(2, 500), ylim=(1e-4, 30))
    below.set(xlabel="Time between tokens (ms)", ylabel="Gaps longer (share)")
    key(below, ("blue: share of the gaps that are longer", style.BLUE), ("line: one in a hundred", style.INK))
    return style.finish(
        figure,
        f"On {plan}, 99 % of the requests have their first token within {style.say(outcome.ttft.value)} s (99 % "
        f"interval {style.say(outcome.ttft.low)} to {style.say(outcome.ttft.high)} s) and 99 % of the gaps between "
        f"tokens are at most {style.say(1e3 * outcome.tbt)} ms: it {WORD[outcome.meets(MAX_TTFT, MAX_TBT)]}.",
    )


def formula_and_plans(trace=CONVERSATION, prefill_budget=768, dispatch="least_loaded", seed=0):
    """Draw the p99 time to first token of five plans three ways: by formula, simulated shuffled, and in order.

    Parameters
    ----------
    trace : str or Workload
        The name of a profile or a workload.
    prefill_budget : int
        Token budget of a step, at least 256.
    dispatch : str
        How requests are dealt out to the replicas: "round_robin" or "least_loaded".
    seed : int
        Seed of the profile's draw and of the shuffle.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    Llama-3-8B at half of the peak arithmetic. The formula is `Plan.formula_ttft`.

    Examples
    --------
    >>> formula_and_plans().alt_text.split(";")[0]
    '1 A100-80: formula 4.63 s, shuffled 49.6 s, in order 273 s'
    """
    workload = _workload(trace, seed)
    plans = [Plan(gpu, replicas, prefill_budget, dispatch=dispatch) for gpu, replicas in PLANS]
    formula = [plan.formula_ttft(workload) for plan in plans]
    shuffled, ordered = ([_ttft(trace, plan, order, seed) for plan in plans] for order in (True, False))
    places = np.arange(len(plans))

    figure, axes = style.new_figure()
    axes.hlines(formula, places - 0.35, places + 0.35, color=style.INK, linewidth=2.5)
    for shift, estimates, look in ((-0.12, shuffled, style.SIMULATION), (0.12, ordered, style.TRACE)):
        value, low, high = np.array([(one.value, one.low, one.high) for one in estimates]).T
        look = style.SIMULATION | {"color": look["color"], "marker": look["marker"]}
        axes.errorbar(places + shift, value, (value - low, high - value), **look)
    axes.axhline(MAX_TTFT.m_as("s"), **style.LIMIT)
    top = 100 * max(one.high for one in ordered + shuffled)
    axes.set(yscale="log", xlim=(-0.6, len(plans) - 0.4), ylim=(0.05, top), ylabel="TTFT, 99th percentile (s)")
    names = [f"{plan.replicas} {plan.gpu}\n{plan.cost(workload).m_as('USD'):.2f}" for plan in plans]
    axes.set_xticks(places, names)
    axes.set_xlabel("Plan, and its cost (USD per million output tokens)")
    axes.set_title(f"Three answers for each plan, token budget {prefill_budget:,}", **style.TITLE)
    figure.subplots_adjust(bottom=0.24)
    axes.xaxis.set_label_coords(0.5, -0.23)
    key(
        axes,
        ("squares: arrivals in their order, 99 % interval", style.RED),
        ("dots: the same gaps shuffled", style.BLUE),
        ("bars: formula", style.INK),
    )
    said = (
        f"{plan.replicas} {plan.gpu}: formula {style.say(one)} s, shuffled {style.say(two.value)} s, in order "
        f"{style.say(three.value)} s"
        for plan, one, two, three in zip(plans, formula, shuffled, ordered, strict=True)
    )
    return style.finish(figure, "; ".join(said) + ".")


def cost_front(result=None, mine=None, a100_price=A100_PRICE, h100_price=H100_PRICE, seed=0):
    """Draw cost against the p99 time to first token, and the front of the plans that no other plan beats in both.

    Parameters
    ----------
    result : serving_lib.sweep.Sweep, optional
        A sweep of `serving_lib.capacity.evaluate`. By default five plans for the Azure conversation hour.
    mine : serving_lib.capacity.Outcome, optional
        A plan to mark.
    a100_price : Quantity
        Price of an A100-80.
    h100_price : Quantity
        Price of an H100.
    seed : int
        Seed of the profile's draw, for the default plans.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> cost_front().alt_text.split(",")[0]
    'The cheapest of 5 plans that meets both limits is 1 H100'
    """
    if result is None:
        outcomes = [_hour(CONVERSATION, Plan(gpu, replicas), False, seed)[0] for gpu, replicas in PLANS]
    else:
        outcomes = result.values
    prices = {"A100-80": a100_price, "H100": h100_price}
    outcomes = [_at_price(outcome, prices) for outcome in outcomes]
    front = pareto_front(outcomes)
    good = [one for one in outcomes if one.meets(MAX_TTFT, MAX_TBT) == "yes"]

    figure, axes = style.new_figure()
    axes.plot(*_points(front), drawstyle="steps-post", color=style.INK, linewidth=1.4)
    groups = (
        ("yes", style.BLUE, style.BLUE, "o"),
        ("unsure", style.AMBER, "white", "D"),
        ("no", style.RED, "white", "s"),
    )
    for verdict, color, face, marker in groups:
        of_group = [one for one in outcomes if one.meets(MAX_TTFT, MAX_TBT) == verdict]
        cost, value = _points(of_group)
        low = [one.ttft.value - one.ttft.low for one in of_group]
        high = [one.ttft.high - one.ttft.value for one in of_group]
        look = {"color": color, "marker": marker, "markerfacecolor": face}
        axes.errorbar(cost, value, (low, high), **style.SIMULATION | look)
    if mine is not None:
        mine = _at_price(mine, prices)
        axes.plot(*_points([mine]), marker="*", markersize=16, color=style.AMBER, markeredgecolor=style.INK)
    for number, one in enumerate(front):
        (x,), (y,) = _points([one])
        below = number % 2  # neighbors on the front are close: every other name stands below its point
        offset = {"xytext": (-7, -6), "ha": "right", "va": "top"} if below else {"xytext": (7, 6)}
        axes.annotate(f"{one.plan.replicas} {one.plan.gpu}", (x, y), textcoords="offset points", **offset)
    axes.axhline(MAX_TTFT.m_as("s"), **style.LIMIT)
    every = [*outcomes, *([mine] if mine else [])]
    cost, value = _points(every)
    low, high = 0.6 * min(cost), 1.5 * max(cost)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(0.3 * min(value), 100 * max(value)))
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="Cost of a million output tokens (USD)", ylabel="TTFT, 99th percentile (s)")
    axes.set_title("Every plan has a price and a tail", **style.TITLE)
    key(
        axes,
        ("filled: meets both limits, interval and all", style.BLUE),
        ("diamonds: meets them, but the interval does not", style.AMBER_TEXT),
        ("open squares: does not meet them", style.RED),
        ("line: the front", style.INK),
        *((("star: your plan", style.AMBER_TEXT),) if mine else ()),
        right=True,
    )
    if good:
        best = min(good, key=lambda one: (one.cost.m_as("USD"), one.ttft.value))
        said = (
            f"The cheapest of {len(outcomes)} plans that meets both limits is {best.plan}, at "
            f"{style.say(best.cost.m_as('USD'))} USD per million output tokens and {style.say(best.ttft.value)} s"
        )
    else:
        said = f"None of {len(outcomes)} plans meets both limits"
    own = f" Yours, {mine.plan}, {WORD[mine.meets(MAX_TTFT, MAX_TBT)]}." if mine else ""
    return style.finish(figure, f"{said}; {len(front)} plans are on the front.{own}")


# --- simulations -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _workload(trace, seed):
    return trace if isinstance(trace, Workload) else profile(trace, seed)


def _run(trace, plan, shuffled, seed):
    workload = _workload(trace, seed)
    return plan.simulate(workload.shuffled_gaps(seed) if shuffled else workload)


@lru_cache(maxsize=256)
def _ttft(trace, plan, shuffled, seed):
    return p99_ttft(_run(trace, plan, shuffled, seed), seed)


@lru_cache(maxsize=256)
def _hour(trace, plan, shuffled, seed):
    """Return the outcome of a plan, its longest TTFT of every ten seconds, and the distribution of its gaps."""
    run = _run(trace, plan, shuffled, seed)
    return judge(plan, run, seed), _longest_of_each_bin(run), _share_of_longer_gaps(run)


def _longest_of_each_bin(run, width=10.0):
    """Return the middles of bins of the arrivals (s), and the longest time to first token in each, or NaN."""
    arrival = run.workload.arrival - run.workload.arrival[0]
    bins = (arrival // width).astype(int)
    longest = np.full(bins[-1] + 1, np.nan)
    np.fmax.at(longest, bins, ttft(run))
    return (np.arange(len(longest)) + 0.5) * width, longest


def _share_of_longer_gaps(run, points=300):
    """Return gaps between tokens (s) from short to long, and the share of all gaps that are longer than each."""
    gaps, counts = run.itl_runs()
    grid = np.geomspace(1e-3, 1.0, points)
    upto = np.concatenate([[0], np.cumsum(counts)])
    share = 1 - upto[np.searchsorted(gaps, grid, side="right")] / max(upto[-1], 1)
    return grid, np.where(share > 0, share, np.nan)


def _at_price(outcome, prices):
    """Return an outcome with its cost at other prices of its GPU."""
    if outcome.plan.gpu not in prices:
        return outcome
    plan = replace(outcome.plan, price=prices[outcome.plan.gpu])
    return replace(outcome, plan=plan, cost=outcome.cost * (plan.price_per_hour / outcome.plan.price_per_hour).m_as(""))


def _points(outcomes):
    """Return costs (USD) and 99th percentiles (s)."""
    return [one.cost.m_as("USD") for one in outcomes], [one.ttft.value for one in outcomes]

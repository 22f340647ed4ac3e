"""Pictures of lecture 02, section 7: prefills stall decodes, and what a token budget trades."""

from functools import lru_cache

import numpy as np

from serving_lib.engine import Policy, Server, StepTime, simulate
from serving_lib.metrics import itl_percentile, ttft
from serving_lib.models import GPUS, MODELS
from serving_lib.plots import style
from serving_lib.plots.batching import UNLIMITED, key
from serving_lib.queue_simulator import student_t_factor
from serving_lib.units import ureg
from serving_lib.workload import Workload, poisson, profile

READERS = 16
UTILIZED = 0.5  # of peak arithmetic in a prefill; a common measurement


@lru_cache
def _mistral_on_a100():
    """Return the step time of Mistral-7B on an A100: memory at full bandwidth, prefill at half of peak arithmetic."""
    model, gpu = MODELS["Mistral-7B"], GPUS["A100-80"]
    return StepTime(
        base=(model.weight_bytes / gpu.bandwidth).to("s"),
        per_kv_token=(model.kv_bytes_per_token / gpu.bandwidth).to("s"),
        per_prefill_token=(model.flops_per_token / (UTILIZED * gpu.flops_per_second)).to("s"),
    )


def prefill_stall(prompt_tokens=8192, prefill_budget=512):
    """Draw what a reader sees when somebody else's long prompt is prefilled, in one piece and in chunks.

    Parameters
    ----------
    prompt_tokens : int
        Tokens of the long prompt, which arrives after 0.2 s.
    prefill_budget : int
        Tokens of a step when the prompt is cut into chunks, at least 32.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    Sixteen readers decode on Mistral-7B and an A100 at half of its peak arithmetic; the engine runs both policies.

    Examples
    --------
    >>> prefill_stall().alt_text.split(",")[1]
    ' a reader waits up to 768 ms for a token'
    """
    arrival = 0.2
    requests = Workload(
        [str(i) for i in range(READERS + 1)],
        [0.0] * READERS + [arrival],
        [16] * READERS + [prompt_tokens],
        [2_000] * READERS + [10],
    )
    server = Server(16, UNLIMITED, READERS + 1, _mistral_on_a100())
    figure, axes = style.new_figure(right_margin=1.75)
    runs = {
        "in one piece": simulate(requests, server),
        f"in chunks of {prefill_budget - READERS:,}": simulate(requests, server, Policy(prefill_budget=prefill_budget)),
    }
    end = 1.15 * max(result.first_token[-1] for result in runs.values())
    said = []
    for (label, result), look in zip(
        runs.items(), (style.series(1), style.series(2) | {"linestyle": "-"}), strict=True
    ):
        times = result.start_of(np.arange(1, result.steps))  # a reader gets a token at the end of each step
        times = times[times <= end]
        first = result.first_token_step[-1]
        axes.step(times, np.arange(1, len(times) + 1), where="post", label=label, **look | {"marker": ""})
        axes.plot(times[first], first + 1, **look | {"linestyle": "none", "markersize": 8})
        said.append(
            f"{label}, a reader waits up to {style.say(1e3 * np.diff(times).max())} ms for a token, and the prompt "
            f"{style.say(times[first] - arrival)} s for its first"
        )
    axes.axvline(arrival, **style.LIMIT)
    axes.set(xlim=(0, end), ylim=(0, None), xlabel="Time (s)", ylabel="Tokens that a reader has (tokens)")
    axes.set_title(f"A prompt of {prompt_tokens:,} tokens arrives among {READERS} readers", **style.TITLE)
    whole, chunks = runs
    key(axes, (f"╌ {whole}", style.RED), (f"━ {chunks}", style.BLUE))
    return style.finish(figure, f"Prefilled {said[0]}; {said[1]}.")


BUDGETS = (128, 256, 512, 1024, 2048, 4096, None)
BUDGET_SLOTS = 128
BUDGET_REQUESTS = 200
BUDGET_RUNS = 6


def token_budget(arrival_rate=4 / ureg.s, prefill_budget=512):
    """Draw what a token budget trades: the slowest gaps between tokens against the time to the first token.

    Parameters
    ----------
    arrival_rate : Quantity
        Poisson arrival rate of requests with the prompts and outputs of the Azure conversation trace.
    prefill_budget : int
        The budget to mark, in tokens.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    Mistral-7B on an A100 at half of its peak arithmetic, in the engine. Each dot is the mean of some independent runs,
    with the Student t interval of that mean.

    Examples
    --------
    >>> token_budget().alt_text.split(";")[0].split(",")[1]
    ' where decoding alone would take 7.62 ms'
    """
    rate = arrival_rate.m_as("1/s")
    conversation = _conversation()
    base, _, per_kv, per_prefill = (1e3 * time for time in _mistral_on_a100().in_clock_units())
    # Little's law: rate x tokens x step requests decode, and each step reads what they hold.
    tokens = conversation.new_tokens.mean()
    held = conversation.prompt_tokens.mean() + tokens / 2
    decode = base / (1 - rate * tokens * held * per_kv / 1e3)
    runs = np.array([_simulated_budget(budget, rate) for budget in BUDGETS])
    mean = runs.mean(axis=1)
    half_width = student_t_factor(0.99, BUDGET_RUNS - 1) * runs.std(axis=1, ddof=1) / np.sqrt(BUDGET_RUNS)
    budgets = np.array(BUDGETS[:-1])
    places = np.arange(len(BUDGETS))
    marked = BUDGETS.index(prefill_budget)

    figure, panels = style.new_figure(columns=2)
    panels[0].plot(places[:-1], base + budgets * per_prefill, **style.FORMULA)
    panels[0].axhline(decode, **style.LIMIT)
    panels[0].text(0, 1.1 * decode, "a decoding step alone", color=style.GREY)
    panels[0].set(ylim=(5, 1000), ylabel="Gap at the 99th percentile (ms)")
    panels[1].set(ylim=(50, 20_000), ylabel="Mean time to first token (ms)")
    for column, (axes, title) in enumerate(zip(panels, ("Between tokens", "Before the first"), strict=True)):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.errorbar(places, mean[:, column], half_width[:, column], **style.SIMULATION)
        axes.axvline(marked, **style.CHOSEN)
        axes.plot(marked, mean[marked, column], marker="D", markersize=10, color=style.AMBER, fillstyle="none")
        axes.set_xticks(places, [f"{budget}" if budget else "none" for budget in BUDGETS], fontsize=8)
        axes.set_xlabel("Token budget of a step (tokens)")
        axes.set_title(title, **style.TITLE)
    (gap, first), (gap_width, first_width) = mean[marked], half_width[marked]
    said = f"a budget of {prefill_budget:,} tokens" if prefill_budget else "no budget"
    return style.finish(
        figure,
        f"At {style.say(arrival_rate)} and with {said} the slowest percent of the gaps between tokens exceed "
        f"{style.say(gap)} ± {style.say(gap_width, 2)} ms, where decoding alone would take {style.say(decode)} ms; the "
        f"first token takes {style.say(first)} ± {style.say(first_width, 2)} ms on average (99 % intervals of "
        f"{BUDGET_RUNS} runs).",
    )


@lru_cache
def _conversation():
    return profile("azure-conv-2023", seed=0)


@lru_cache(maxsize=256)
def _simulated_budget(budget, rate):
    """Return, for each of some independent runs, the p99 of the gaps between tokens and the mean TTFT, in ms."""
    conversation = _conversation()
    outcomes = []
    for seed in range(BUDGET_RUNS):
        rows = np.random.default_rng(seed).integers(len(conversation), size=BUDGET_REQUESTS)
        tokens = {"prompt_tokens": conversation.prompt_tokens[rows], "new_tokens": conversation.new_tokens[rows]}
        requests = poisson(rate, BUDGET_REQUESTS, seed, **tokens)
        server = Server(16, UNLIMITED, BUDGET_SLOTS, _mistral_on_a100())
        result = simulate(requests, server, Policy(prefill_budget=budget))
        outcomes.append((1e3 * itl_percentile(result, 99), 1e3 * ttft(result).mean()))
    return outcomes

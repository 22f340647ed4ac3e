"""Pictures of lecture 04: what a KV cache takes, what reservations waste, how pages run out, and who then pays.

Real traffic is that of the Azure conversation hour, dealt out to equal servers in turn: each runs Llama-2-13B on an
A100 of 40 GB, with the KV cache of the paging paper's Table 1 (12 GiB, 15,728 tokens).
"""

from functools import lru_cache

import numpy as np

from serving_lib import metrics
from serving_lib.engine import Policy, Server, StepTime, simulate
from serving_lib.invariants import check_invariants
from serving_lib.kvcache import calc_kv_bytes_per_token, calc_kv_pages, calc_last_page_waste
from serving_lib.models import GPUS, MODELS
from serving_lib.plots import style
from serving_lib.plots.queueing import DIAMOND, key, percent, say_interval
from serving_lib.published import KWON_FIGURE_2, KWON_FIGURE_11, KWON_FIGURE_13
from serving_lib.queue_simulator import mean_interval
from serving_lib.reservations import RESERVATIONS, MemoryUse, calc_reserved_tokens, simulate_reservations
from serving_lib.simulator import paged_continuous_batching
from serving_lib.units import ureg
from serving_lib.workload import Workload, profile

SLOTS = 15_728  # whole tokens of 819,200 bytes in 12 GiB
PAGE_SIZE = 16
PAGE_SIZES = 2 ** np.arange(9)
MAX_MODEL_LEN = 2048  # of OPT
MAX_REQUESTS = 256
SCHEMES = {
    "reserve_max": "Max",
    "reserve_pow2": "Pow2",
    "reserve_exact": "exact",
    "paged": "pages",
}
SLO = {"max_ttft": 5 * ureg.s, "max_tpot": 100 * ureg.ms}
SLO_WORDS = "TTFT within 5 s, TPOT within 100 ms"


# --- bytes -----------------------------------------------------------------------------------------------------------


def kv_size(model="Llama-2-70B", context=131_072, value_bits=16):
    """Draw the size of the KV cache of one sequence against its length, counted by KV heads and by query heads.

    Parameters
    ----------
    model : str
        A name in `serving_lib.models.MODELS`.
    context : int
        Tokens of the sequence to mark, at least 1.
    value_bits : int
        Bits of one stored number; those of the cache, which need not be those of the weights.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "42.9 GB (40 GiB)" in kv_size().alt_text
    True
    """
    shape, memory = MODELS[model], GPUS["A100-80"].memory
    right, wrong = (
        calc_kv_bytes_per_token(shape.layers, heads, shape.head_dim, value_bits / 8)
        for heads in (shape.kv_heads, shape.query_heads)
    )
    size, mistaken = ((context * ureg.token * each).to("GB") for each in (right, wrong))
    longest = 131_072
    ends = np.array([0, longest]) / 1000
    tops = [longest * each.m_as("GB/token") for each in (right, wrong)]
    grouped = shape.kv_heads < shape.query_heads

    figure, axes = style.new_figure()
    axes.plot(ends, [0, tops[0]], **style.FORMULA)
    if grouped:
        axes.plot(ends, [0, tops[1]], **style.series(1) | {"marker": "none"})
        axes.plot(context / 1000, mistaken.magnitude, "s", color=style.RED, fillstyle="none", markersize=9)
    axes.plot(context / 1000, size.magnitude, **DIAMOND | {"clip_on": False, "zorder": 3})
    axes.axhline(memory.m_as("GB"), **style.LIMIT)
    axes.axvline(context / 1000, **style.CHOSEN)
    axes.set(xlim=(0, ends[1]), ylim=(0, 1.5 * max(*tops, memory.m_as("GB"))))
    axes.set(xlabel="Length of the sequence (thousand tokens)", ylabel="KV cache (GB)")
    axes.set_title(f"One sequence of {model}, {value_bits} bit", **style.TITLE)
    lines = [(f"line: {shape.kv_heads} key-value heads, {style.say(size)}", style.INK)]
    if grouped:
        lines.append((f"dashed: if one counts {shape.query_heads} query heads, {style.say(mistaken)}", style.RED))
    key(axes, *lines, (f"dotted: all the memory of an A100, {style.say(memory)}", style.GREY))
    sentence = (
        f"{context:,} tokens of {model} take {style.say(size)} ({style.say(size.to('GiB'))}) with its {shape.kv_heads} "
        f"key-value heads at {value_bits} bit."
    )
    if grouped:
        sentence += f" Counting its {shape.query_heads} query heads would give {style.say(mistaken)}."
    else:
        sentence += " It has as many query heads, so here the two ways to count agree."
    return style.finish(figure, sentence)


# --- reservations and pages ------------------------------------------------------------------------------------------


def page_growth(prompt_tokens=100, new_tokens=300, page_size=16):
    """Draw the slots that one request holds as it generates: reserved at once by three rules, or page by page.

    Parameters
    ----------
    prompt_tokens : int
        Tokens of the prompt, at least 1.
    new_tokens : int
        Tokens that are generated, at least 1; with the prompt at most 2,048.
    page_size : int
        Tokens that a page holds, at least 1.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "holds 400 slots in 25 pages" in page_growth().alt_text
    True
    """
    generated = np.arange(new_tokens + 1)
    used = prompt_tokens + generated
    paged = page_size * calc_kv_pages(used, page_size)
    reserved = {r: calc_reserved_tokens(prompt_tokens, new_tokens, r, MAX_MODEL_LEN) for r in RESERVATIONS}
    mean = used[1:].mean()

    figure, axes = style.new_figure()
    axes.fill_between(generated, used, color=style.TINTS[0])
    axes.step(generated, paged, where="post", color=style.BLUE, linewidth=1.8)
    for scheme, look in zip(RESERVATIONS, ((0, (1, 1)), "-.", "--"), strict=True):
        axes.axhline(reserved[scheme], color=style.RED, linestyle=look, linewidth=1.6)
    axes.set(xlim=(0, new_tokens), ylim=(0, 1.45 * MAX_MODEL_LEN))
    axes.set(xlabel="Generated so far (tokens)", ylabel="Slots held (tokens)")
    axes.set_title("One request: reserved at once, or page by page", **style.TITLE)
    key(
        axes,
        (f"dotted: Max, {reserved['reserve_max']:,}", style.RED),
        (f"dash-dot: Pow2, {reserved['reserve_pow2']:,}    dashed: exact, {reserved['reserve_exact']:,}", style.RED),
        (f"steps: pages of {page_size}, {paged[-1]:,} at the end    area: tokens that are there", style.BLUE),
        top=0.96,
    )
    shares = ", ".join(f"{SCHEMES[r]} {percent(mean / reserved[r])}" for r in RESERVATIONS)
    return style.finish(
        figure,
        f"A request of {prompt_tokens:,} prompt and {new_tokens:,} new tokens holds {paged[-1]:,} slots in "
        f"{paged[-1] // page_size:,} pages at its end. Averaged over its life, of its slots hold a token: "
        f"{shares}, pages {percent(mean / paged[1:].mean())}.",
    )


def memory_shares(dataset="ShareGPT", output_cv=0.89):
    """Draw where the memory of a KV cache is under four schemes, by our allocators, beside what the paper prints.

    Parameters
    ----------
    dataset : str
        "ShareGPT" or "Alpaca": the mean lengths are those of the paging paper's Fig. 11.
    output_cv : float
        Coefficient of variation of the output lengths (gamma), which the paper does not print; positive.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    0.89 is what the paper's first bar implies, see `implied_output_cv`.

    Examples
    --------
    >>> "pages 97" in memory_shares().alt_text
    True
    """
    parts = ("token_states", "reservation", "internal", "external")
    words = ("tokens that are there", "kept for later", "never used", "outside every reservation")
    figure, axes = style.new_figure(height=4.1, right_margin=1.35)
    box = axes.get_position()
    axes.set_position((0.15, box.y0, box.x1 - 0.15, box.height))
    uses = {scheme: mean_memory_use(dataset, scheme, output_cv) for scheme in SCHEMES}
    rows = np.arange(len(SCHEMES))
    ours = 100 * np.array([[getattr(use, part) for part in parts] for use in uses.values()])
    for index, (widths, left) in enumerate(zip(ours.T, np.cumsum(ours, axis=1).T - ours.T, strict=True)):
        style.boxes(axes, left, rows - 0.22, widths, 0.44, style.fill(index))
    half = [100 * memory_use_interval(dataset, scheme, output_cv).half_width for scheme in SCHEMES]
    axes.errorbar(ours[:, 0], rows, xerr=half, linestyle="none", color=style.INK, capsize=3, elinewidth=1.6)
    if dataset == "ShareGPT":
        printed = np.array([[getattr(KWON_FIGURE_2[scheme], part) or 0 for part in parts] for scheme in SCHEMES])
        for index, (widths, left) in enumerate(zip(printed.T, np.cumsum(printed, axis=1).T - printed.T, strict=True)):
            style.boxes(axes, left, rows + 0.27, widths, 0.18, style.fill(index) | {"hatch": ""})
    for row, (scheme, use) in enumerate(uses.items()):
        axes.text(102, row, f"{use.requests:.2f}", va="center", weight="bold")
        axes.text(118, row, f"{KWON_FIGURE_13[dataset][scheme]:.2f}", va="center", color=style.GREY)
    axes.text(102, -0.62, "running at a time:", fontsize=9)
    axes.text(102, -0.4, "here", fontsize=9, weight="bold")
    axes.text(118, -0.4, "printed", fontsize=9, color=style.GREY)
    axes.set(xlim=(0, 100), ylim=(3.6, -0.72), xlabel="Share of the KV cache (%)")
    axes.set_yticks(range(4), SCHEMES.values())
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("Scheme (name)", labelpad=1)
    axes.yaxis.set_label_coords(-0.185, 0.5)
    axes.grid(False, axis="y")
    for index, (word, x) in enumerate(zip(words, (-14, 22, 48, 71), strict=True)):
        style.boxes(axes, x, -1.08, 3, 0.16, style.fill(index) | {"clip_on": False})
        axes.text(x + 4, -1.0, word, va="center", fontsize=9)
    held = ", ".join(f"{SCHEMES[scheme]} {percent(round(use.token_states, 3))}" for scheme, use in uses.items())
    thin = " The thin bars are the printed values." if dataset == "ShareGPT" else ""
    return style.finish(
        figure,
        f"{dataset} lengths, output CV {output_cv:.3g}; share of the KV cache with tokens in it: {held}. "
        f"Requests that run at a time: {', '.join(f'{use.requests:.2f}' for use in uses.values())}.{thin}",
    )


@lru_cache(maxsize=32)
def lengths_like(dataset, output_cv, requests=3000, seed=0):
    """Draw prompt and output lengths with the means of a data set of the paging paper.

    Parameters
    ----------
    dataset : str
        "ShareGPT" or "Alpaca".
    output_cv : float
        Coefficient of variation of the outputs; that of the prompts is 1. Both are gamma distributed and cut so that
        no request is longer than 2,048 tokens.
    requests, seed : int

    Returns
    -------
    tuple of ndarray of int
        Prompt and new tokens. Stratified: every draw has the same quantiles, in a different order.

    Examples
    --------
    >>> prompt, new = lengths_like("ShareGPT", 0.89)
    >>> round(prompt.mean()), round(new.mean())
    (161, 337)
    """
    means = KWON_FIGURE_11[dataset]
    rng = np.random.default_rng(seed)
    prompt = np.minimum(_gamma_lengths(rng, means.prompt_tokens, 1.0, requests), MAX_MODEL_LEN // 2)
    new = np.minimum(_gamma_lengths(rng, means.new_tokens, output_cv, requests), MAX_MODEL_LEN - prompt)
    return prompt, new


def _gamma_lengths(rng, mean, cv, requests):
    # Sorted draws of a hundred times as many, thinned: nearly the quantiles, without an inverse of the gamma.
    fine = np.sort(rng.gamma(cv**-2, cv**2 * mean, 100 * requests))[50::100]
    fine *= mean / fine.mean()
    return np.maximum(1, np.rint(rng.permutation(fine))).astype(np.int64)


def implied_output_cv():
    """Return the CV of the output lengths that the first bar of the paging paper's Fig. 2 implies.

    While a request generates n tokens after a prompt of p, it holds p + n/2 tokens on average and keeps n/2 for later.
    Long requests are seen for longer, so that over time ``kept / there = m / (p + m)`` with
    ``m = E[n^2] / (2 E[n]) = E[n] (1 + CV^2) / 2``. The printed 13.3 and 20.4 give m, and m the CV.

    Examples
    --------
    >>> round(implied_output_cv(), 2)
    0.89
    """
    row, means = KWON_FIGURE_2["reserve_max"], KWON_FIGURE_11["ShareGPT"]
    ratio = row.reservation / row.token_states
    kept = ratio / (1 - ratio) * means.prompt_tokens
    return float(np.sqrt(2 * kept / means.new_tokens - 1))


@lru_cache(maxsize=128)
def _memory_uses(dataset, scheme, output_cv):
    """Return the use of the memory in each of ten stretches of a run in which a queue always waits."""
    prompt, new = lengths_like(dataset, output_cv)
    if scheme != "paged":
        return simulate_reservations(prompt, new, SLOTS, scheme, MAX_MODEL_LEN, MAX_REQUESTS)
    workload = Workload([str(i) for i in range(len(new))], np.zeros(len(new)), prompt, new)
    server = Server(PAGE_SIZE, SLOTS // PAGE_SIZE, MAX_REQUESTS)
    result = simulate(workload, server, Policy(preemption="recompute"))
    first = np.sort(result.finished_step)[np.sum(result.admitted_step == 0)]
    steps = np.arange(first, result.admitted_step.max())
    columns = result.tokens_at(steps), PAGE_SIZE * result.pages_at(steps), result.running_at(steps)
    means = [[part.mean() for part in np.array_split(column, 10)] for column in columns]
    return [
        MemoryUse(tokens / SLOTS, 0.0, (held - tokens) / SLOTS, 0.0, 1 - held / SLOTS, running)
        for tokens, held, running in zip(*means, strict=True)
    ]


def mean_memory_use(dataset, scheme, output_cv=0.89):
    """Return where the memory is on average under a scheme of `SCHEMES`, when a queue always waits."""
    uses = _memory_uses(dataset, scheme, output_cv)
    return MemoryUse(*(float(np.mean([getattr(use, name) for use in uses])) for name in MemoryUse.__dataclass_fields__))


def memory_use_interval(dataset, scheme, output_cv=0.89):
    """Return the 99 % interval of the share of the memory that holds tokens, from ten stretches of the run."""
    shares = [use.token_states for use in _memory_uses(dataset, scheme, output_cv)]
    return mean_interval(shares, batches=10, warmup=0)


def last_page_waste(page_size=16):
    """Draw the share of memory that lies empty in last pages, and the length of a block table, by page size.

    Parameters
    ----------
    page_size : int
        The page size to mark, in tokens, at least 1.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "ShareGPT 1.48 %, Alpaca 8.8 %" in last_page_waste().alt_text
    True
    """
    sizes = PAGE_SIZES
    figure, (waste, table) = style.new_figure(1, 2, right_margin=0.3)
    names, said = _length_samples(), []
    for index, (name, lengths) in enumerate(names.items()):
        look = style.series(index)
        mean = _published_mean(name) or lengths.mean()
        waste.plot(sizes, 100 * calc_last_page_waste(mean, sizes), **look | {"marker": "none"})
        counted, pages = _counted_waste(name)
        waste.plot(sizes, 100 * counted, **look | {"linestyle": "none"})
        table.plot(sizes, pages, **look)
        said.append(f"{name} {percent(calc_last_page_waste(mean, page_size))}")
    for axes in (waste, table):
        _log(axes.xaxis, sizes[::2])
        axes.axvline(page_size, **style.CHOSEN)
        axes.set(xlim=(0.9, 290), xlabel="Page size (tokens)")
    waste.set(ylim=(0, 80), ylabel="Empty, of what is allocated (%)")
    waste.set_title("Large pages waste", **style.TITLE)
    entries = [
        (f"{mark}: {name}", style.AMBER_TEXT if color == style.AMBER else color)
        for mark, name, color in zip(("dot", "square", "triangle", "diamond"), names, style.PALETTE, strict=True)
    ]
    key(waste, *entries, ("lines: formula   marks: counted", style.GREY), top=0.94)
    _log(table.yaxis, (1, 10, 100, 1000))
    table.set(ylim=(0.8, 5000), ylabel="Block table (pages per request)")
    table.set_title("Small pages need long tables", **style.TITLE)
    return style.finish(
        figure,
        f"With pages of {page_size} tokens the last pages leave empty, of what is allocated: {', '.join(said)}. Block "
        f"tables have {', '.join(style.say(calc_kv_pages(n, page_size).mean()) for n in names.values())} entries.",
    )


def _log(axis, ticks):
    """Make an axis logarithmic, with a few plain numbers at it: the ticks of its own take longer than the picture."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(ticks, [style.say(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def _published_mean(name):
    means = KWON_FIGURE_11.get(name)
    return means and means.prompt_tokens + means.new_tokens


@lru_cache(maxsize=4)
def _counted_waste(name):
    """Return the empty share and the mean number of pages of the requests of a data set, for each of `PAGE_SIZES`."""
    lengths = _length_samples()[name]
    pages = [calc_kv_pages(lengths, size) for size in PAGE_SIZES]
    waste = [1 - lengths.sum() / (size * held.sum()) for size, held in zip(PAGE_SIZES, pages, strict=True)]
    return np.array(waste), np.array([held.mean() for held in pages])


@lru_cache(maxsize=1)
def _length_samples():
    """Return final lengths of the requests of four data sets."""
    samples = {name: sum(lengths_like(name, 0.89)) for name in KWON_FIGURE_11}
    for name, trace in (("Azure conversation", "azure-conv-2023"), ("Azure code", "azure-code-2023")):
        workload = profile(trace, seed=0)
        samples[name] = workload.prompt_tokens + workload.new_tokens
    return samples


# --- stalls and deadlock ---------------------------------------------------------------------------------------------


def pool_and_slots(total_pages=10, slots=5, prompt_tokens=8, new_tokens=4):
    """Draw for which pools and slots five requests that come together run through, stall, or hang for ever.

    Pages hold 4 tokens, and nobody is preempted.

    Parameters
    ----------
    total_pages : int
        The pool to mark, at least 1.
    slots : int
        The slots to mark, from 1 to 5.
    prompt_tokens : int
        Prompt of each request, at least 1.
    new_tokens : int
        Tokens that each is to generate, at least 1.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "hang" in pool_and_slots().alt_text and "11 pages" in pool_and_slots().alt_text
    True
    """
    most = max(total_pages, 5 * calc_kv_pages(prompt_tokens + new_tokens, 4) + 1, 17)
    fates = {
        (pool, s): five_together(pool, s, prompt_tokens, new_tokens) for pool in range(1, most + 1) for s in range(1, 6)
    }
    looks = {
        "runs through": {"marker": "o", "color": style.BLUE, "fillstyle": "none"},
        "stalls": {"marker": "^", "color": style.AMBER},
        "hangs": {"marker": "X", "color": style.RED},
        "never starts": {"marker": "_", "color": style.GREY},
    }
    figure, axes = style.new_figure(height=3.4, right_margin=1.75)
    for fate, look in looks.items():
        points = [place for place, found in fates.items() if found == fate]
        axes.plot(
            *zip(*points, strict=True) if points else ([], []),
            linestyle="none",
            markersize=8 if most <= 24 else 5,
            **look,
        )
    pools = np.arange(0, most + 2)
    safe_slots = pools // calc_kv_pages(prompt_tokens + new_tokens, 4)
    axes.step(pools - 0.5, safe_slots + 0.5, where="post", color=style.INK, linewidth=1.6)
    axes.plot(total_pages, slots, "s", markersize=17, color=style.INK, fillstyle="none")
    axes.set(xlim=(0.3, most + 0.7), ylim=(0.4, 5.6), xlabel="Pool (pages)", ylabel="Slots (requests at a time)")
    axes.set_yticks(range(1, 6))
    axes.set_title("Five requests at once", **style.TITLE)
    words = ("circle: no stall", "triangle: stalls, finishes", "cross: hangs for ever", "dash: never starts")
    for row, (text, color) in enumerate(zip(words, (style.BLUE, style.AMBER_TEXT, style.RED, style.GREY), strict=True)):
        axes.annotate(text, (1.02, 0.9 - 0.12 * row), xycoords="axes fraction", color=color, fontsize=9)
    axes.annotate("square: yours", (1.02, 0.38), xycoords="axes fraction", fontsize=9)
    axes.annotate("line: formula; below it\nnobody ever stalls", (1.02, 0.16), xycoords="axes fraction", fontsize=9)

    fate = fates[total_pages, slots]
    verdict = {
        "runs through": "run through without a stall",
        "stalls": "all finish, but some stall on the way",
        "hangs": "hang for ever",
        "never starts": "never start, as a prompt does not fit",
    }[fate]
    sentence = (
        f"Five requests of {prompt_tokens} prompt and {new_tokens} new tokens, {slots} at a time in a pool of "
        f"{total_pages} pages of 4: they {verdict}."
    )
    safe = max((s for s in range(1, 6) if fates[total_pages, s] == "runs through"), default=0)
    alive = max((s for s in range(1, 6) if fates[total_pages, s] in ("runs through", "stalls")), default=0)
    sentence += f" In this pool at most {safe} at a time never stall, and at most {alive} at a time finish."
    if fate == "hangs":
        result = simulate(_five(prompt_tokens, new_tokens), Server(4, total_pages, slots))
        sentence += (
            f" The certificate: {len(result.deadlock.stalled)} are stalled, {result.deadlock.missing_pages} pages are "
            "missing for all to take a step, and the smallest pool that finishes has "
            f"{result.deadlock.smallest_pool} pages."
        )
    return style.finish(figure, sentence)


def _five(prompt_tokens, new_tokens):
    return Workload(list("abcde"), [0] * 5, [prompt_tokens] * 5, [new_tokens] * 5)


@lru_cache(maxsize=4096)
def five_together(total_pages, slots, prompt_tokens=8, new_tokens=4):
    """Return the fate of five requests that arrive together, by the contract simulator, in pages of 4 tokens."""
    requests = _five(prompt_tokens, new_tokens).requests()
    result = paged_continuous_batching(requests, 4, total_pages, slots, max_ticks=5 * new_tokens + 1)
    if len(result["waiting"]) == 5:
        return "never starts"
    if result["active"] or result["waiting"]:
        return "hangs"
    running, decoded = 0, 0
    for step in result["steps"]:
        running += len(step["admitted"])
        if len(step["decoded"]) < running:
            return "stalls"
        running -= len(step["completed"])
        decoded += len(step["decoded"])
    return "runs through"


# --- real traffic ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def dealt_traffic(servers=6, minutes=(0, 60)):
    """Return what one of some servers gets of the Azure conversation hour, dealt out to them in turn.

    Parameters
    ----------
    servers : int
        How many servers there are, at least 1.
    minutes : tuple of float
        The stretch of the hour.

    Returns
    -------
    Workload

    Examples
    --------
    >>> len(dealt_traffic(servers=6))
    3228
    """
    hour = profile("azure-conv-2023", seed=0)
    first, last = np.searchsorted(hour.arrival, 60.0 * np.array(minutes))
    mine = slice(first, last, servers)
    return Workload(
        hour.id[mine], hour.arrival[mine] - 60.0 * minutes[0], hour.prompt_tokens[mine], hour.new_tokens[mine]
    )


def real_server(slots=MAX_REQUESTS, total_pages=SLOTS // PAGE_SIZE, free_prefill=False):
    """Return a server: Llama-2-13B on an A100 of 40 GB, with step times from the roofline.

    Parameters
    ----------
    slots : int
        Requests that may run at a time.
    total_pages : int
        Pages of 16 tokens; 983 are 12 GiB.
    free_prefill : bool
        Whether a prefill takes no time, as in the contract simulator.

    Returns
    -------
    Server

    Notes
    -----
    A step reads the weights once and every token of the cache once; prefill runs at half of the peak.
    """
    model, gpu = MODELS["Llama-2-13B"], GPUS["A100-40"]
    step_time = StepTime(
        base=(model.weight_bytes / gpu.bandwidth).to("ms"),
        per_kv_token=(model.kv_bytes_per_token * ureg.token / gpu.bandwidth).to("ms"),
        per_prefill_token=0
        if free_prefill
        else (model.flops_per_token * ureg.flop / (gpu.flops_per_second / 2)).to("ms"),
    )
    return Server(PAGE_SIZE, total_pages, slots, step_time, max_model_len=10_240)


@lru_cache(maxsize=256)
def real_run(servers=6, slots=MAX_REQUESTS, minutes=(0, 60), free_prefill=False, **rules):
    """Return the run of `real_server` on `dealt_traffic` under some rules of `Policy`."""
    return simulate(dealt_traffic(servers, minutes), real_server(slots, free_prefill=free_prefill), Policy(**rules))


@lru_cache(maxsize=256)
def recompute_tax(result):
    """Return the tokens that are computed a second time, per token of all requests, with its 99 % interval."""
    tokens = result.workload.prompt_tokens + result.workload.new_tokens
    return mean_interval(result.recomputed_tokens / tokens.mean(), warmup=0)


def real_tax(servers=5, watermark=0.0):
    """Return the mean recompute tax of `real_run` with pages, preemption and a watermark, as a plain number."""
    return recompute_tax(real_run(servers, preemption="recompute", watermark=watermark)).mean


@lru_cache(maxsize=256)
def good_share(result):
    """Return the share of all requests that met the SLO, with its 99 % interval."""
    return mean_interval(metrics.meets_slo(result, **SLO), warmup=0)


def from_first_stall(result):
    """Return how many steps, and how much time, lie between the first step with a stall and the end of a run.

    Returns
    -------
    tuple of int and float
        (0, 0.0) if nobody ever stalled.
    """
    active = set()
    for step in result.window(0, result.steps):
        active.update(step["admitted"])
        if len(step["decoded"]) < len(active):
            return result.steps - step["tick"], result.duration - float(result.start_of(step["tick"]))
        active.difference_update(step["completed"])
    return 0, 0.0


@lru_cache(maxsize=256)
def gained_share(result, other):
    """Return by how much one run serves a larger share of the same requests well than another, request by request.

    The difference of each request varies far less than the requests do, so this interval tells two rules apart where
    those of the two shares overlap.
    """
    well, other_well = (metrics.meets_slo(run, **SLO).astype(float) for run in (result, other))
    return mean_interval(well - other_well, warmup=0)


def watermark_gain(watermark, servers=5):
    """Return the `gained_share` of a watermark against none, with pages and preemption."""
    runs = (real_run(servers, preemption="recompute", watermark=mark) for mark in (watermark, 0.0))
    return gained_share(*runs)


@lru_cache(maxsize=256)
def stalled_share(result):
    """Return the share of the steps of running requests in which they got no token, of those that finished."""
    done = result.finished_step >= 0
    steps = (result.finished_step - result.admitted_step + 1)[done].sum()
    return 1 - result.workload.new_tokens[done].sum() / max(steps, 1)


def pool_over_time(allocation="paged", watermark=0.0, servers=6):
    """Draw the pages that are taken and the tokens that are in them, over an hour of real traffic.

    Parameters
    ----------
    allocation : str
        "paged", "reserve_exact", "reserve_pow2" or "reserve_max", as in `Policy`.
    watermark : float
        Share of the pool that an admission leaves free while something runs, in [0, 1).
    servers : int
        Over how many equal servers the traffic is dealt out.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "evictions" in pool_over_time().alt_text
    True
    """
    rules = {"allocation": allocation, "watermark": watermark}
    result = real_run(servers, preemption="recompute" if allocation == "paged" else "none", **rules)
    minute, held, there, waiting = _hour(result)
    figure, (top, bottom) = style.new_figure(2, 1, height=4.8)
    top.fill_between(minute, 100 * there, color=style.TINTS[0])
    top.plot(minute, 100 * held, color=style.BLUE, linewidth=1.4)
    evicted = result.preemptions.sum()
    top.set(xlim=(0, 60), ylim=(0, 128), ylabel="Share of the pool (%)", xlabel="Time (minutes)")
    top.set_yticks([0, 25, 50, 75, 100])
    top.set_title(f"{SCHEMES[allocation]}, watermark {percent(watermark)}", **style.TITLE)
    key(top, ("line: taken      area: tokens that are there", style.BLUE), top=0.93)
    bottom.plot(minute, waiting, color=style.RED, linewidth=1.6)
    bottom.set(xlim=(0, 60), ylim=(0, max(10, 1.2 * waiting.max())), xlabel="Time (minutes)")
    bottom.set_ylabel("Queue (requests)")
    bottom.set_title("Who waits for the first admission", **style.TITLE)
    ttft = metrics.percentile(metrics.ttft(result), 99)
    return style.finish(
        figure,
        f"{SCHEMES[allocation]}, watermark {percent(watermark)}, a {_ordinal(servers)} of the Azure conversation hour: "
        f"{percent(held.mean())} of the pool is taken on average and {percent(there.mean())} holds tokens; "
        f"{evicted:,} evictions; at most {waiting.max():.0f} requests wait; p99 TTFT {style.say(ttft)} s; "
        f"{say_interval(good_share(result), 100)} % of requests are served well ({SLO_WORDS}).",
    )


def _ordinal(servers):
    return {1: "whole", 2: "half", 3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 8: "eighth", 10: "tenth"}.get(
        servers, f"1/{servers}"
    )


@lru_cache(maxsize=64)
def _hour(result):
    """Return quarters of a minute, and in each the mean shares of the pool taken and filled, and the mean queue."""
    steps = np.linspace(0, result.steps - 1, 6000).astype(np.int64)
    time = result.start_of(steps + 1)
    steps, time = steps[time <= 3600], time[time <= 3600]
    pool = result.server.total_pages
    queue = np.searchsorted(result.workload.arrival, time, side="right")
    queue -= np.searchsorted(np.sort(result.admitted), time, side="right")
    quarter = (time / 15).astype(np.int64)
    counts = np.bincount(quarter)
    full = counts > 0
    columns = result.pages_at(steps) / pool, result.tokens_at(steps) / (pool * PAGE_SIZE), queue
    means = [np.bincount(quarter, column)[full] / counts[full] for column in columns]
    return ((np.flatnonzero(full) + 0.5) / 4, *means)


def slots_and_goodput(slots=12, servers=5):
    """Draw which share of requests is served well, and what work is lost, against the slots of a server.

    Parameters
    ----------
    slots : int
        The slots to mark, at least 1.
    servers : int
        Over how many equal servers the traffic is dealt out.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "hangs" in slots_and_goodput().alt_text
    True
    """
    grid = (2, 4, 6, 8, 12, 16, 24)
    waiting = [real_run(servers, n) for n in grid]
    evicting = [real_run(servers, n, preemption="recompute") for n in grid]
    figure, (left, right) = style.new_figure(1, 2)
    _share_line(left, grid, [good_share(result) for result in evicting], style.BLUE, "o")
    good = [100 * good_share(result).mean for result in waiting]
    hung = np.array([result.deadlock is not None for result in waiting])
    left.plot(grid, good, "--", color=style.RED, linewidth=1.4)
    left.plot(np.array(grid)[~hung], np.array(good)[~hung], "s", color=style.RED, markersize=5)
    left.plot(np.array(grid)[hung], np.array(good)[hung], "X", color=style.RED, markersize=9)
    left.axvline(slots, **style.CHOSEN)
    left.set(xlim=(0, 25), ylim=(0, 135), xlabel="Slots (requests at a time)", ylabel="Served well (% of requests)")
    left.set_title("More slots", **style.TITLE)
    key(left, ("dots: evict and recompute, 99 %", style.BLUE), ("squares: wait; crosses: hang", style.RED), top=0.94)

    lost = [100 * stalled_share(result) for result in evicting]
    good = [100 * good_share(result).mean for result in evicting]
    right.plot(lost, good, color=style.BLUE, marker="o", markersize=5)
    last = -np.inf
    for n, x, y in zip(grid, lost, good, strict=True):
        if n >= 6 and x - last > 0.06 * max(lost):
            right.annotate(f"{n}", (x, y), xytext=(-5, 5), textcoords="offset points", ha="right")
            last = x
    right.set(ylim=(0, 135), xlabel="Steps without a token (%)", ylabel="Served well (% of requests)")
    right.set_xlim(-0.12 * max(lost), 1.15 * max(lost))
    right.set_title("against what they lose", **style.TITLE)
    key(right, ("numbers: slots", style.BLUE), top=0.94)
    for axes in (left, right):
        axes.set_yticks([0, 25, 50, 75, 100])
    one, other = real_run(servers, slots, preemption="recompute"), real_run(servers, slots)
    waits = (
        f"hangs after {style.say(other.duration / 60)} minutes with {len(other.deadlock.stalled)} requests that wait "
        "for each other"
        if other.deadlock
        else f"serves {percent(good_share(other).mean)} of requests well"
    )
    return style.finish(
        figure,
        f"{slots} slots, a {_ordinal(servers)} of the Azure conversation hour, {SLO_WORDS}: without preemption the "
        f"server {waits}; with recompute it serves {say_interval(good_share(one), 100)} % of requests well, computes "
        f"{percent(recompute_tax(one).mean)} of all tokens a second time, and running requests get no token in "
        f"{percent(stalled_share(one))} of their steps.",
    )


def _share_line(axes, x, intervals, color, marker, linestyle="-"):
    mean, half = ([100 * getattr(i, name) for i in intervals] for name in ("mean", "half_width"))
    axes.errorbar(
        x, mean, half, color=color, marker=marker, linestyle=linestyle, markersize=5, capsize=3, elinewidth=1.2
    )


def watermark_tax(watermark=0.0, servers=5):
    """Draw what is computed twice, and how many requests are served well, against the watermark of admission.

    Parameters
    ----------
    watermark : float
        Share of the pool that an admission leaves free while something runs, to mark; in [0, 1).
    servers : int
        Over how many equal servers the traffic is dealt out.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "computed a second time" in watermark_tax().alt_text
    True
    """
    grid = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
    runs = [real_run(servers, preemption="recompute", watermark=mark) for mark in grid]
    exact = real_run(servers, allocation="reserve_exact")
    chosen = real_run(servers, preemption="recompute", watermark=watermark)
    figure, (tax, good) = style.new_figure(1, 2)
    x = 100 * np.array(grid)
    _share_line(tax, x, [recompute_tax(result) for result in runs], style.BLUE, "o")
    _share_line(good, x, [good_share(result) for result in runs], style.BLUE, "o")
    good.axhline(100 * good_share(exact).mean, **style.LIMIT)
    tax.plot(100 * watermark, 100 * recompute_tax(chosen).mean, **DIAMOND)
    good.plot(100 * watermark, 100 * good_share(chosen).mean, **DIAMOND)
    for axes in (tax, good):
        axes.set(xlim=(-1, 31), xlabel="Watermark (% of the pool)")
        axes.axvline(100 * watermark, **style.CHOSEN)
    tax.set(ylabel="Computed again (% of tokens)")
    tax.set_ylim(0, 1.3 * tax.get_ylim()[1])
    tax.set_title("The recompute tax", **style.TITLE)
    good.set(ylim=(0, 110), ylabel="Served well (% of requests)")
    good.set_title("and its price", **style.TITLE)
    key(good, ("dots: pages, 99 %", style.BLUE), ("dotted: exact reservation", style.GREY), top=0.16)
    gained = watermark_gain(watermark, servers)
    difference = f" Request by request, {say_interval(gained, 100)} points more than without." if watermark else ""
    return style.finish(
        figure,
        f"Watermark {percent(watermark)}, a {_ordinal(servers)} of the Azure conversation hour: "
        f"{chosen.preemptions.sum():,} evictions, {say_interval(recompute_tax(chosen), 100)} % of all tokens are "
        f"computed a second time, and {say_interval(good_share(chosen), 100)} % of requests are served well "
        f"({SLO_WORDS}; 99 % intervals).{difference} A reservation of the exact length, which takes an oracle, serves "
        f"{percent(good_share(exact).mean)} well.",
    )


def own_rules(admission="shortest_first", victim="latest", servers=6):
    """Draw what a rule of one's own does to each request, against first come first served and latest-first eviction.

    Parameters
    ----------
    admission, victim : str or callable
        As in `Policy`: a name, or a function from a list of `RequestView` to one of them.
    servers : int
        Over how many equal servers the busiest 15 minutes of the Azure conversation hour are dealt out.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "no invariant is broken" in own_rules().alt_text
    True
    """
    setting = {"servers": servers, "minutes": (20, 35), "preemption": "recompute"}
    usual, yours = real_run(**setting), real_run(**setting, admission=admission, victim=victim)
    before, after = metrics.ttft(usual), metrics.ttft(yours)
    low, high = 0.03, 1.6 * max(np.nanmax(before), np.nanmax(after))
    better, worse = after < before / 1.01, after > before * 1.01

    figure, (each, tail) = style.new_figure(1, 2)
    for axes in (each, tail):
        _log(axes.xaxis, (0.1, 1, 10, 100))
    _log(each.yaxis, (0.1, 1, 10, 100))
    _log(tail.yaxis, (0.1, 1, 10, 100))
    each.plot([low, high], [low, high], color=style.GREY, linewidth=1)
    each.plot(before[better], after[better], "o", color=style.BLUE, markersize=3, markeredgewidth=0)
    each.plot(before[worse], after[worse], "s", color=style.RED, markersize=3, markeredgewidth=0)
    each.set(
        xlim=(low, high), ylim=(low, high), xlabel="TTFT, FIFO and latest-first (s)", ylabel="TTFT, your rules (s)"
    )
    each.set_title("One dot a request", **style.TITLE)
    key(each, (f"squares: {worse.sum():,} later", style.RED), top=0.93)
    key(each, (f"dots: {better.sum():,} sooner", style.BLUE), right=True, top=0.06)
    share = np.logspace(0, -2.9, 60)
    for values, look in ((before, style.FORMULA), (after, style.series(2) | {"marker": "none"})):
        tail.plot(np.nanquantile(values, 1 - share), 100 * share, **look)
    tail.set(xlim=(low, high), ylim=(0.1, 130), xlabel="TTFT (s)", ylabel="Requests that wait longer (%)")
    tail.set_title("The tail", **style.TITLE)
    key(tail, ("line: FIFO, latest-first", style.INK), ("dash-dot: yours", style.BLUE), top=0.14)

    broken = _broken(yours)
    verdict = "no invariant is broken" if not broken else f"broken: {'; '.join(broken)}"
    return style.finish(
        figure,
        f"Your rules serve {percent(good_share(yours).mean)} of requests well; FIFO and latest-first serve "
        f"{percent(good_share(usual).mean)}. Request by request the difference is "
        f"{say_interval(gained_share(yours, usual), 100)} points (99 % interval). p99 TTFT "
        f"{style.say(metrics.percentile(after, 99))} s (was {style.say(metrics.percentile(before, 99))} s), "
        f"evictions {yours.preemptions.sum():,} (was "
        f"{usual.preemptions.sum():,}), computed again {say_interval(recompute_tax(yours), 100)} % of "
        f"tokens (was {say_interval(recompute_tax(usual), 100)} %); {verdict}.",
    )


@lru_cache(maxsize=64)
def _broken(result):
    return tuple(check_invariants(result))


# --- when this model lies --------------------------------------------------------------------------------------------


def prefill_is_not_free(servers=6, prefill_budget=512):
    """Draw the gaps between tokens under real traffic: with prefill for free, at its cost, and in chunks.

    Parameters
    ----------
    servers : int
        Over how many equal servers the Azure conversation hour is dealt out.
    prefill_budget : int
        Tokens that a step computes at most where prefills are chunked, at least the 256 slots.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "99.9" in prefill_is_not_free().alt_text
    True
    """
    runs = {
        "free": real_run(servers, free_prefill=True, preemption="recompute"),
        "at its cost": real_run(servers, preemption="recompute"),
        f"chunks of {prefill_budget}": real_run(servers, preemption="recompute", prefill_budget=prefill_budget),
    }
    figure, axes = style.new_figure()
    looks = (
        style.LIMIT | {"color": style.INK},
        style.series(1) | {"marker": "none"},
        style.series(2) | {"marker": "none"},
    )
    _log(axes.xaxis, (10, 100, 1000, 10_000))
    _log(axes.yaxis, (0.01, 0.1, 1, 10, 100))
    for result, look in zip(runs.values(), looks, strict=True):
        axes.plot(*_longer_gaps(result), **look)
    axes.set(xlim=(10, 2e4), ylim=(1e-2, 300), xlabel="Gap between two tokens (ms)", ylabel="Gaps that are longer (%)")
    axes.set_title("Instantaneous prefill hides the stalls of decoding", **style.TITLE)
    key(
        axes,
        ("dotted: prefill for free", style.INK),
        ("dashed: prefill at its cost", style.RED),
        (f"dash-dot: in chunks of {prefill_budget}", style.BLUE),
        right=True,
    )
    said = ", ".join(f"{name} {style.say(1000 * _p999(result))} ms" for name, result in runs.items())
    return style.finish(
        figure,
        f"99.9th percentile of the gap between two tokens, a {_ordinal(servers)} of the Azure conversation hour; "
        f"prefill is: {said}. The contract simulator is the first of them.",
    )


@lru_cache(maxsize=64)
def _longer_gaps(result):
    """Return gaps in ms, and how many percent of all gaps between tokens are longer."""
    gaps, counts = result.itl_runs()
    longer = 100 * (1 - np.cumsum(counts) / counts.sum())
    some = np.unique(np.searchsorted(-longer, -np.logspace(2, -2.2, 160)).clip(max=len(gaps) - 1))
    return 1000 * gaps[some], np.maximum(longer[some], 1e-3)


@lru_cache(maxsize=64)
def _p999(result):
    return metrics.itl_percentile(result, 99.9)


def shared_prompt(samples=4, prompt_tokens=100, new_tokens=60, page_size=16):
    """Draw the pages of several answers to one prompt: each with its own copy, or sharing the prompt's full pages.

    Parameters
    ----------
    samples : int
        Answers to the prompt, at least 1.
    prompt_tokens : int
        Tokens of the prompt, at least 1.
    new_tokens : int
        Tokens of each answer, at least 1.
    page_size : int
        Tokens that a page holds, at least 1.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "40 pages" in shared_prompt().alt_text and "22" in shared_prompt().alt_text
    True
    """
    counts = np.arange(1, 17)
    each = calc_kv_pages(prompt_tokens + new_tokens, page_size)
    shared = prompt_tokens // page_size
    apart, together = counts * each, shared + counts * (each - shared)
    figure, axes = style.new_figure()
    axes.plot(counts, apart, **style.series(1) | {"markersize": 3})
    axes.plot(counts, together, **style.series(0) | {"markersize": 3})
    axes.axvline(samples, **style.CHOSEN)
    axes.set(xlim=(0.5, 16.5), ylim=(0, 1.1 * apart[-1]), xlabel="Answers to one prompt (count)", ylabel="Pool (pages)")
    axes.set_title("Pages can be shared, if they are full and alike", **style.TITLE)
    key(axes, ("squares: each with its own copy", style.RED), ("dots: shared where alike and full", style.INK))
    one, other = samples * each, shared + samples * (each - shared)
    return style.finish(
        figure,
        f"{samples} answers of {new_tokens} tokens to a prompt of {prompt_tokens} take {one} pages of {page_size} with "
        f"their own copies and {other} if they share the {shared} full pages of the prompt: {percent(1 - other / one)} "
        "less. The model of this lecture counts the first.",
    )


def sliding_window(context=32_768, window=4096):
    """Draw the KV cache of Mistral-7B with a window of attention, beside what the formula without one says.

    Parameters
    ----------
    context : int
        Tokens of the sequence to mark, at least 1.
    window : int
        Tokens that a layer looks back on, at least 1: older keys and values can be dropped.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "8 times" in sliding_window().alt_text
    True
    """
    each = MODELS["Mistral-7B"].kv_bytes_per_token.m_as("GB/token")
    lengths = np.array([0, min(window, 65_536), 65_536])
    figure, axes = style.new_figure(right_margin=1.5)
    whole, kept = each * lengths, each * np.minimum(lengths, window)
    axes.plot(lengths / 1000, whole, **style.series(1) | {"marker": "none"})
    axes.plot(lengths / 1000, kept, **style.FORMULA)
    axes.axvline(context / 1000, **style.CHOSEN)
    axes.set(xlim=(0, 65.536), ylim=(0, 1.1 * whole[-1]), ylabel="KV cache (GB)")
    axes.set_xlabel("Length of the sequence (thousand tokens)")
    axes.set_title("A window puts a ceiling on the cache", **style.TITLE)
    style.label_line(axes, lengths / 1000, whole, "the formula", style.series(1))
    style.label_line(axes, lengths / 1000, kept, f"window {window:,}", style.FORMULA)
    ratio = max(context / window, 1.0)
    return style.finish(
        figure,
        f"At {context:,} tokens Mistral-7B with a window of {window:,} keeps "
        f"{style.say(each * min(context, window))} GB; the formula says {style.say(each * context)} GB, "
        f"{style.say(ratio)} times as much.",
    )

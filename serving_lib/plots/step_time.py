"""Pictures of lecture 02, section 5: where the two times of a step come from."""

from functools import lru_cache

import numpy as np

from serving_lib.batching import calc_roofline_step_time
from serving_lib.engine import Server, StepTime, simulate
from serving_lib.metrics import itl_percentile
from serving_lib.models import GPUS, MODELS
from serving_lib.plots import style
from serving_lib.plots.batching import BATCH_SIZES, DOTS, UNLIMITED, log2_batch_axis
from serving_lib.published import SCALING_BOOK_DECODE
from serving_lib.units import ureg
from serving_lib.workload import Workload


def roofline(model="Llama-3-8B", gpu="A100-80", context_tokens=4096, batch_size=32):
    """Draw the least time of a decoding step against the batch size, and what it is made of.

    Parameters
    ----------
    model : str
        A name of `serving_lib.models.MODELS`.
    gpu : str
        A name of `serving_lib.models.GPUS`.
    context_tokens : int
        Tokens that each request has in the cache.
    batch_size : int
        The batch size to mark.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    Weights and arithmetic overlap, so the longer of the two counts; the KV cache comes on top. The dots are one step
    of the engine at these costs, up to where arithmetic takes over, which the engine's affine step does not know.

    Examples
    --------
    >>> roofline(batch_size=256).alt_text.split(".")[-2]
    ' The memory holds 119 such requests'
    """
    shape, limits = MODELS[model], GPUS[gpu]
    bandwidth = limits.bandwidth.m_as("byte/ms")
    weights, kv = shape.weight_bytes.m_as("byte") / bandwidth, shape.kv_bytes_per_token.m_as("byte") / bandwidth
    kv *= context_tokens
    arithmetic = shape.flops_per_token / limits.flops_per_second.m_as("flop/ms")
    fits = (limits.memory - shape.weight_bytes).m_as("byte") / (shape.kv_bytes_per_token.m_as("byte") * context_tokens)
    fits = max(0, int(fits))
    size = np.unique(np.round(2 ** np.linspace(0, 9, 91)))
    step = _roofline_step(shape, limits, context_tokens, size)
    chosen = _roofline_step(shape, limits, context_tokens, batch_size)
    parts = {
        "weights": (np.full(len(size), weights), style.series(1)),
        "arithmetic": (size * arithmetic, style.series(3)),
        "KV cache": (size * kv, style.series(2)),
        "step": (step, style.FORMULA),
    }

    figure, axes = style.new_figure(right_margin=1.0)
    log2_batch_axis(axes, BATCH_SIZES[-1])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    low, high = 0.5 * weights, 3 * step[-1]
    axes.set(ylim=(low, high), xlabel="Batch size (requests)", ylabel="Time of one step (ms)")
    axes.set_title(f"One decoding step of {model} on {gpu}, {context_tokens:,} tokens each", **style.TITLE)
    if fits < BATCH_SIZES[-1]:
        axes.axvspan(max(fits, 0.9), 1.1 * BATCH_SIZES[-1], facecolor=style.PALE, edgecolor="none")
        axes.text(BATCH_SIZES[-1], high / 1.1, "does not fit in memory", ha="right", va="top", color=style.GREY)
    for (label, (part, look)), y in zip(
        parts.items(), _apart([part[-1] for part, _ in parts.values()], low, high), strict=True
    ):
        axes.plot(size, part, **look | {"marker": ""})
        style.label_line(axes, size, np.full(len(size), y), label, look)
    tried = BATCH_SIZES[(limits.flops_per_byte >= BATCH_SIZES) & (fits >= BATCH_SIZES)]
    axes.plot(tried, [_simulated_step(int(number), weights, kv, context_tokens) for number in tried], **DOTS)
    axes.axvline(batch_size, **style.CHOSEN)
    axes.plot(batch_size, chosen, marker="D", markersize=10, color=style.AMBER, fillstyle="none")
    taken = {"weight bytes": weights, "arithmetic": batch_size * arithmetic, "KV bytes": batch_size * kv}
    return style.finish(
        figure,
        f"At batch {batch_size} a step takes {style.say(chosen)} ms: reading the weights {style.say(weights)} ms, "
        f"arithmetic {style.say(batch_size * arithmetic)} ms, of which the longer counts, and reading the KV cache "
        f"{style.say(batch_size * kv)} ms. Most of it goes into {max(taken, key=taken.get)}. "
        f"The memory holds {fits:,} such requests.",
    )


def _roofline_step(model, gpu, context_tokens, batch_size):
    """Return the time of a step, in ms."""
    time = calc_roofline_step_time(
        batch_size,
        model.weight_bytes,
        model.kv_bytes_per_token * context_tokens,
        model.flops_per_token,
        gpu.bandwidth,
        gpu.flops_per_second,
    )
    return time.m_as("ms")


def _apart(values, low, high):
    """Return where labels of lines stand on a logarithmic axis, so that they do not touch."""
    place = np.log(np.array(values) / low) / np.log(high / low)
    order = np.argsort(place)
    gaps = np.maximum(np.diff(place[order]), 0.065)
    place[order] = place[order][0] + np.concatenate([[0], np.cumsum(gaps)])
    place -= max(0, place.max() - 0.99)
    return low * (high / low) ** place


@lru_cache(maxsize=4096)
def _simulated_step(size, weights, kv, context_tokens):
    """Return the time in ms of the engine's step in which `size` requests hold `context_tokens` each."""
    prompt = np.full(size, context_tokens - 1)  # the second of two tokens is made from a full context
    requests = Workload([str(i) for i in range(size)], np.zeros(size), prompt, np.full(size, 2))
    cost = StepTime(base=weights, per_kv_token=kv / context_tokens)
    result = simulate(requests, Server(16, UNLIMITED, size, cost))
    return itl_percentile(result, 50)


def scaling_book(batch_size=240, weights=26 * ureg.GB, bandwidth=6.56 * ureg.TB / ureg.s):
    """Draw the throughput of Llama-2-13B on eight TPU v5e against the batch size, beside the values a book prints.

    Parameters
    ----------
    batch_size : int
        The batch size to mark.
    weights : Quantity
        Size of the weights.
    bandwidth : Quantity
        Memory bandwidth of the eight chips together.

    Returns
    -------
    matplotlib.figure.Figure

    References
    ----------
    Austin et al. (2025), How to Scale Your Model, part 7. https://jax-ml.github.io/scaling-book/inference/

    Examples
    --------
    >>> scaling_book(batch_size=240).alt_text.split(";")[0]
    'A batch of 240 instead of 1 brings 4.8 times the tokens per second with 6.7 GB of KV cache per sequence'
    """
    size = np.unique(np.round(2 ** np.linspace(0, 8, 81)))
    peak = 8 * 197e12 * ureg.flop / ureg.s
    figure, axes = style.new_figure(right_margin=1.5)
    log2_batch_axis(axes, 256)
    said, top = [], 0
    for index, (kv, printed) in enumerate(SCALING_BOOK_DECODE.items()):

        def throughput(batch, kv=kv):
            return batch / calc_roofline_step_time(batch, weights, kv * ureg.GB, 26e9, bandwidth, peak).m_as("s")

        gain = throughput(batch_size) / throughput(1)
        look = style.series(index)
        axes.plot(size, throughput(size), **look | {"marker": ""})
        axes.plot(
            [row.batch for row in printed],
            [row.tokens_per_second for row in printed],
            **look | {"linestyle": "none", "markersize": 6},
        )
        axes.plot(batch_size, throughput(batch_size), marker="D", markersize=10, color=style.AMBER, fillstyle="none")
        label = f"{kv:g} GB of KV\neach: {gain:.1f}x"
        style.label_line(axes, size, throughput(size), label, look)
        said.append(f"{gain:.1f} times the tokens per second with {kv:g} GB of KV cache per sequence")
        top = max(top, throughput(256))
    axes.axvline(batch_size, **style.CHOSEN)
    axes.set(ylim=(0, 1.15 * top), xlabel="Batch size (sequences)", ylabel="Throughput (tokens/s)")
    axes.set_title("Lines: computed; markers: printed in the book", **style.TITLE)
    return style.finish(
        figure, f"A batch of {batch_size} instead of 1 brings {said[0]}; with a fifth of it, {said[1]}."
    )

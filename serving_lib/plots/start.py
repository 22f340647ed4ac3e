"""Pictures of lecture 00: what a server does with requests, and where the five metrics lie on one of them."""

import numpy as np

from serving_lib import metrics
from serving_lib.engine import Server, StepTime, simulate
from serving_lib.plots import style
from serving_lib.plots.queueing import key
from serving_lib.units import ureg
from serving_lib.workload import Workload

STEP = StepTime(base=20 * ureg.ms, per_request=1 * ureg.ms, per_prefill_token=0.2 * ureg.ms)
PAGE = 16  # tokens


def life_of_requests(slots=3, cache_tokens=2400):
    """Draw eight requests on one server: queue, prefill, decode; and below, the tokens in the KV cache.

    Parameters
    ----------
    slots : int
        Requests that the server works on at a time, at least 1.
    cache_tokens : int
        Tokens that the KV cache holds, at least the 1,220 of the longest request.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> life_of_requests().alt_text.startswith("8 requests on a server with 3 slots")
    True
    """
    workload = Workload(
        id=list("ABCDEFGH"),
        arrival=[0.0, 0.05, 0.2, 0.3, 0.4, 0.6, 0.9, 1.2],
        prompt_tokens=[600, 300, 500, 250, 1200, 150, 400, 700],
        new_tokens=[24, 40, 12, 30, 20, 36, 16, 24],
    )
    run = simulate(workload, Server(PAGE, cache_tokens // PAGE, slots, STEP))
    row = np.arange(len(workload))[::-1]
    steps = np.arange(run.steps)
    queued, most = run.admitted - workload.arrival, run.tokens_at(steps).max()

    figure, (above, below) = style.new_figure(2, 1, height=4.6, sharex=True)
    figure.subplots_adjust(hspace=0.15)
    low, prefill, decode = row - 0.31, run.first_token - run.admitted, run.finished - run.first_token
    style.boxes(above, workload.arrival, low, queued, 0.62, style.fill(3))
    style.boxes(above, run.admitted, low, prefill, 0.62, {"color": style.RED})
    style.boxes(above, run.first_token, low, decode, 0.62, style.fill(2) | {"hatch": ""})
    above.set(ylim=(-0.7, 9.2), yticks=row, yticklabels=list(workload.id), ylabel="Request (name)")
    above.grid(axis="y", visible=False)
    above.set_title("Eight requests on one server", **style.TITLE)
    key(above, ("hatched: queue   dark: prefill   light: decode", style.INK), top=0.92)
    below.step(run.start_of(steps), run.tokens_at(steps), where="post", color=style.INK, linewidth=1.8)
    below.axhline(cache_tokens, **style.LIMIT)
    below.set(xlim=(0, 1.02 * run.duration), ylim=(0, 1.3 * cache_tokens))
    below.set(xlabel="Time (s)", ylabel="KV cache (tokens)")
    key(below, (f"dotted: room for {cache_tokens:,} tokens", style.GREY), right=True, top=0.88)
    name = "1 slot" if slots == 1 else f"{slots} slots"
    return style.finish(
        figure,
        f"8 requests on a server with {name}: {np.sum(queued > 0.1)} of them wait for more than 0.1 s, the "
        f"longest for {style.say(queued.max(), 2)} s. The KV cache holds up to {most:,} of its {cache_tokens:,} "
        f"tokens, and the last answer is complete after {style.say(run.duration, 2)} s.",
    )


def request_metrics(prompt_tokens=600, new_tokens=16, neighbor_prompt=1200):
    """Draw one request with its TTFT, TPOT, ITL and E2E, and say whether it counts for the goodput.

    Parameters
    ----------
    prompt_tokens : int
        Length of the prompt of the request.
    new_tokens : int
        Tokens of the answer, at least 2.
    neighbor_prompt : int
        Length of a prompt that arrives while the request decodes, and whose prefill stalls it.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "so it counts for the goodput" in request_metrics(neighbor_prompt=100).alt_text
    True
    """
    workload = Workload(
        id=["before", "yours", "neighbor"],
        arrival=[0.0, 0.02, 0.45],
        prompt_tokens=[800, prompt_tokens, neighbor_prompt],
        new_tokens=[40, new_tokens, 10],
    )
    run = simulate(workload, Server(PAGE, 1000, slots=4, step_time=STEP))
    steps = [step["tick"] for step in run.window(0, run.steps) if "yours" in step["decoded"]]
    emitted = run.start_of(np.array(steps) + 1) - workload.arrival[1]
    admitted = run.admitted[1] - workload.arrival[1]
    ttft, tpot, e2e = (metric(run)[1] for metric in (metrics.ttft, metrics.tpot, metrics.e2e))
    gaps = np.diff(emitted)
    longest = int(np.argmax(gaps))
    good = metrics.meets_slo(run, **SLO)[1]

    figure, axes = style.new_figure(height=3.4)
    axes.barh(0, admitted, height=0.5, **style.fill(3))
    axes.barh(0, ttft - admitted, left=admitted, height=0.5, color=style.RED)
    axes.barh(0, e2e - ttft, left=ttft, height=0.5, **style.fill(2) | {"hatch": ""})
    axes.vlines(emitted, -0.25, 0.25, color=style.BLUE, linewidth=2)
    for y, start, end, text in (
        (0.75, 0.0, ttft, f"TTFT {_ms(ttft)}"),
        (0.75, ttft, e2e, f"{len(gaps)} gaps, TPOT {_ms(tpot)}"),
        (-0.7, emitted[longest], emitted[longest + 1], f"longest ITL {_ms(gaps[longest])}"),
        (-1.4, 0.0, e2e, f"E2E {_ms(e2e)}"),
    ):
        axes.annotate(
            "", (start, y), (end, y), arrowprops={"arrowstyle": "<->", "color": style.GREY, "shrinkA": 0, "shrinkB": 0}
        )
        axes.text((start + end) / 2, y + 0.12, text, ha="center", color=style.INK)
    axes.set(xlim=(-0.02 * e2e, 1.05 * e2e), ylim=(-1.8, 2.0), xlabel="Time since the request arrived (s)")
    axes.set_yticks([])
    axes.tick_params(labelleft=False)
    axes.spines["left"].set_visible(False)
    axes.set_title("One request, timed", **style.TITLE)
    key(axes, ("hatched: queue   dark: prefill   strokes: tokens", style.INK), top=0.93)
    return style.finish(
        figure,
        f"TTFT {_ms(ttft)}, of which {_ms(admitted)} in the queue; {len(gaps)} gaps between {new_tokens} tokens, mean "
        f"(TPOT) {_ms(tpot)}, longest ITL {_ms(gaps[longest])}; E2E {_ms(e2e)}. The promise is a TTFT within "
        f"{style.say(SLO['max_ttft'])} and a TPOT within {style.say(SLO['max_tpot'])}, so it "
        f"{'counts' if good else 'does not count'} for the goodput.",
    )


SLO = {"max_ttft": 400 * ureg.ms, "max_tpot": 30 * ureg.ms}


def _ms(seconds):
    return f"{1000 * seconds:.0f} ms"

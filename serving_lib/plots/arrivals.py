"""Pictures of lecture 01, section 7: what the order of real arrivals does to a queue, and to the formula for it.

Each takes the name of a shipped profile, or a `Workload` that the reader has read from a file. Service is constant, so
that arrivals alone make the difference.
"""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np

from serving_lib.plots import style
from serving_lib.plots.queueing import key, log_axis, percent, say_interval
from serving_lib.queue_simulator import mean_interval, simulate_queue
from serving_lib.queueing import calc_kingman_wait_ratio, calc_littles_law_occupancy
from serving_lib.units import ureg
from serving_lib.workload import Workload, index_of_dispersion, profile

SHUFFLES = 6
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SHUFFLED_LOADS = (0.3, 0.5, 0.7, 0.8, 0.9)


def real_arrivals(trace="azure-conv-2023", utilization=0.8, seed=0):
    """Draw the mean wait against the load three ways: Kingman, the same gaps shuffled, and the gaps in their order.

    Parameters
    ----------
    trace : str or Workload
        The name of a profile, as `serving_lib.profile` knows it, or a workload.
    utilization : float
        The load to mark, in (0, 1).
    seed : int
        Seed of the profile's draw and of the shuffles.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> real_arrivals().alt_text.startswith("At 80 % load Kingman gives a mean wait of 0.355 s")
    True
    """
    gap, scv = _gap_statistics(trace, seed)
    loads = np.linspace(0.05, 0.98, 94)
    kingman = calc_kingman_wait_ratio(loads, scv, 0) * loads * gap
    chosen = calc_kingman_wait_ratio(utilization, scv, 0) * utilization * gap
    real = [_real_wait(trace, seed, load) for load in LOADS]
    shuffled = [_shuffled_wait(trace, seed, load) for load in SHUFFLED_LOADS]
    at_chosen, shuffled_at_chosen = _real_wait(trace, seed, utilization), _shuffled_wait(trace, seed, utilization)
    means, widths = np.array([(one.mean, one.half_width) for one in shuffled]).T

    figure, axes = style.new_figure()
    most = max(*real, *means, calc_kingman_wait_ratio(LOADS[-1], scv, 0) * LOADS[-1] * gap, 1e-9)
    top = math.ceil(math.log10(most))
    log_axis(axes.yaxis, [10.0**power for power in range(top - 5, top + 1)])
    axes.plot(loads, kingman, **style.FORMULA)
    low = np.minimum(widths, 0.9 * means)  # an interval may reach below 0, where a logarithmic axis ends
    axes.errorbar(SHUFFLED_LOADS, means, (low, widths), **style.SIMULATION)
    axes.plot(LOADS, real, **style.TRACE)
    axes.axvline(utilization, **style.CHOSEN)
    axes.set(
        xlim=(0, 1),
        ylim=(10.0 ** (top - 5), 10.0 ** (top + 1)),
        xlabel="Utilization (busy fraction)",
        ylabel="Mean wait (s)",
    )
    axes.set_title("The same gaps, three answers", **style.TITLE)
    key(
        axes,
        ("dashed: the gaps in their order", style.RED),
        (f"dots: the same gaps shuffled, {SHUFFLES} times, 99 % interval", style.BLUE),
        (f"line: Kingman, squared CV of the gaps {style.say(scv)}", style.INK),
    )
    return style.finish(
        figure,
        f"At {percent(utilization)} load Kingman gives a mean wait of {style.say(chosen)} s for gaps of squared CV "
        f"{style.say(scv)}; the gaps shuffled give {say_interval(shuffled_at_chosen)} s, "
        f"and in their own order {style.say(at_chosen, 4)} s, "
        f"{style.say(at_chosen / chosen, 2)} times the formula.",
    )


def rush_hour(trace="azure-conv-2023", utilization=0.8, seed=0):
    """Draw the arrivals of each minute against the capacity, and below it the wait, in order and shuffled.

    Parameters
    ----------
    trace : str or Workload
        The name of a profile or a workload.
    utilization : float
        The mean load, in (0, 1).
    seed : int
        Seed of the profile's draw and of the shuffle.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "minutes bring more than the server can do" in rush_hour().alt_text
    True
    """
    gap, _ = _gap_statistics(trace, seed)
    service = utilization * gap
    run, shuffled = _real_run(trace, seed, utilization), _shuffled_run(trace, seed, utilization)
    minutes = max(1, int((run.arrival[-1] - run.arrival[0]) // 60))
    edges = run.arrival[0] + 60.0 * np.arange(minutes + 1)
    per_second = np.histogram(run.arrival, edges)[0] / 60
    over = int(np.sum(per_second > 1 / service))
    top = 1.35 * max(per_second.max(), 1 / service)

    figure, (above, below) = style.new_figure(2, 1, height=4.6, sharex=True)
    figure.subplots_adjust(hspace=0.22)
    above.step(np.arange(minutes + 1), np.append(per_second, per_second[-1]), where="post", color=style.RED)
    above.axhline(1 / service, **style.LIMIT)
    key(above, (f"dotted: capacity, {style.say(1 / service)} / s", style.GREY), right=True, top=0.86)
    above.set(xlim=(0, minutes), ylim=(0, top), ylabel="Arrivals (1/s)")
    above.set_title(f"What each minute brings, and what it costs, at {percent(utilization)} mean load", **style.TITLE)
    for one, look in ((run, style.TRACE), (shuffled, style.SIMULATION)):
        time, wait = _worst_of_each_bin(one, minutes)
        below.plot(time, wait, color=look["color"], linestyle="-", linewidth=1.4)
    worst = run.wait.max()
    below.set(ylim=(0, 1.35 * worst), xlabel="Time (min)", ylabel="Wait (s)")
    key(below, ("red: in their order", style.RED), ("blue: shuffled", style.BLUE), top=0.88)
    return style.finish(
        figure,
        f"At {percent(utilization)} mean load, {over} of {minutes} minutes bring more than the server can do. "
        f"In their order requests wait up to {style.say(worst)} s; with the same gaps shuffled, up to "
        f"{style.say(shuffled.wait.max())} s.",
    )


def dispersion(trace="azure-conv-2023", seed=0):
    """Draw the index of dispersion of the arrivals against the window in which they are counted.

    Parameters
    ----------
    trace : str or Workload
        The name of a profile or a workload.
    seed : int
        Seed of the profile's draw and of the shuffle.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> dispersion().alt_text.startswith("In windows of 1, 10 and 60 s the index of dispersion is")
    True
    """
    windows, real, shuffled = _dispersion(trace, seed)
    _, scv = _gap_statistics(trace, seed)

    figure, axes = style.new_figure()
    axes.plot(windows, real, **style.TRACE)
    axes.plot(windows, shuffled, color=style.BLUE, marker="o", markersize=5, linestyle=":")
    axes.axhline(1.0, **style.FORMULA)
    log_axis(axes.xaxis, (1, 10, 60))
    log_axis(axes.yaxis, (1, 10, 100))
    axes.set(xlim=(0.45, 140), ylim=(0.3, 3e3), xlabel="Window in which arrivals are counted (s)")
    axes.set_ylabel("Index of dispersion (variance / mean)")
    axes.set_title("What the CV of a gap cannot see", **style.TITLE)
    key(
        axes,
        ("dashed: the gaps in their order", style.RED),
        (f"dotted: shuffled (squared CV of the gaps {style.say(scv)})", style.BLUE),
        ("line: Poisson, 1 at every window", style.INK),
    )
    at_1, at_10, at_60 = (real[windows.index(window)] for window in (1, 10, 60))
    return style.finish(
        figure,
        f"In windows of 1, 10 and 60 s the index of dispersion is {style.say(at_1)}, {style.say(at_10)} and "
        f"{style.say(at_60)}; shuffled, at 60 s, it is {style.say(shuffled[windows.index(60)])}. "
        "Poisson arrivals have 1.",
    )


def resident_tokens(trace="azure-conv-2023", token_time=25 * ureg.ms, seed=0):
    """Draw the tokens that are resident in the KV cache over an hour, and their mean by Little's law.

    Parameters
    ----------
    trace : str or Workload
        The name of a profile or a workload.
    token_time : Quantity
        Time of one generated token; the cache is taken to be large enough that nobody waits.
    seed : int
        Seed of the profile's draw.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "29.2 requests" in resident_tokens().alt_text
    True
    """
    workload, step = _workload(trace, seed), token_time.m_as("s")
    time, tokens = _tokens_over_time(workload, step)
    hour = workload.arrival[-1] - workload.arrival[0]
    requests = calc_littles_law_occupancy(len(workload) / hour, workload.new_tokens.mean() * step)
    predicted = requests * (workload.prompt_tokens.mean() + workload.new_tokens.mean() / 2)
    measured = np.trapezoid(tokens, time) / hour
    peak = tokens.max()

    figure, axes = style.new_figure()
    drawn = _extremes(tokens)
    axes.plot(time[drawn] / 60, tokens[drawn] / 1e3, color=style.RED, linewidth=0.8)
    axes.axhline(predicted / 1e3, **style.FORMULA)
    top = 1.35 * peak / 1e3
    axes.set(xlim=(0, hour / 60), ylim=(0, top), xlabel="Time (min)", ylabel="Resident KV tokens (thousands)")
    axes.set_title("Little's law counts tokens too", **style.TITLE)
    key(axes, ("red: one hour, token by token", style.RED), ("line: rate x time x mean tokens held", style.INK))
    return style.finish(
        figure,
        f"{style.say(requests)} requests of {style.say(predicted / requests, 4)} tokens are resident on average, "
        f"{style.say(predicted)} tokens by Little's law; the hour holds {style.say(measured)} on average and "
        f"{style.say(peak)} at its peak.",
    )


# --- simulations -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _workload(trace, seed):
    return trace if isinstance(trace, Workload) else profile(trace, seed)


@lru_cache(maxsize=32)
def _shuffle(trace, seed, number):
    return _workload(trace, seed).shuffled_gaps(1000 * seed + number)


@lru_cache(maxsize=32)
def _gap_statistics(trace, seed):
    """Return the mean gap and the squared coefficient of variation of the gaps."""
    workload = _workload(trace, seed)
    mean = 1 / workload.rate  # refuses a workload that has none
    return mean, np.diff(workload.arrival).var() / mean**2


@lru_cache(maxsize=32)
def _real_run(trace, seed, utilization):
    return simulate_queue(_workload(trace, seed).arrival, utilization * _gap_statistics(trace, seed)[0])


@lru_cache(maxsize=32)
def _shuffled_run(trace, seed, utilization, number=0):
    return simulate_queue(_shuffle(trace, seed, number).arrival, utilization * _gap_statistics(trace, seed)[0])


@lru_cache(maxsize=2048)
def _real_wait(trace, seed, utilization):
    return float(_real_run(trace, seed, utilization).wait.mean())


@lru_cache(maxsize=1024)
def _shuffled_wait(trace, seed, utilization):
    means = [_shuffled_run(trace, seed, utilization, number).wait.mean() for number in range(SHUFFLES)]
    return mean_interval(means, batches=SHUFFLES, warmup=0.0)


def _worst_of_each_bin(run, minutes, per_minute=6):
    """Return times (min) and the longest wait of the requests that arrive in each ten seconds."""
    bins = np.floor((run.arrival - run.arrival[0]) / 60 * per_minute).astype(int)
    worst = np.zeros(minutes * per_minute)
    inside = bins < len(worst)
    np.maximum.at(worst, bins[inside], run.wait[inside])
    return (np.arange(len(worst)) + 0.5) / per_minute, worst


@lru_cache(maxsize=32)
def _dispersion(trace, seed):
    windows = (0.5, 1, 2, 5, 10, 20, 30, 60, 120)
    arrivals = _workload(trace, seed).arrival, _shuffle(trace, seed, 0).arrival
    return windows, *([index_of_dispersion(one, window) for window in windows] for one in arrivals)


def _tokens_over_time(workload, step):
    """Return the corners of the piecewise linear number of resident tokens: each request grows by one per step."""
    begin = workload.arrival - workload.arrival[0]
    end = begin + workload.new_tokens * step
    time = np.concatenate([begin, end])
    slope = np.repeat([1 / step, -1 / step], len(workload))
    jump = np.concatenate([workload.prompt_tokens, -(workload.prompt_tokens + workload.new_tokens)]).astype(float)
    order = np.argsort(time, kind="stable")
    time, slope, jump = time[order], np.cumsum(slope[order]), jump[order]
    grown = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(time))])
    after = np.cumsum(jump) + grown
    # Each event is two corners at one time: before its jump and after it.
    return np.repeat(time, 2), np.stack([after - jump, after], axis=1).ravel()


def _extremes(values, pieces=1000):
    """Return where the lowest and the highest of every piece lie: as few points as pixels, and the same peaks."""
    if len(values) <= 2 * pieces:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), pieces + 1).astype(int)
    return np.unique([low + find(values[low:high]) for low, high in pairwise(edges) for find in (np.argmin, np.argmax)])

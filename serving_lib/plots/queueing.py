"""Pictures of lecture 01: load, variability, pooling and waiting. Those of real arrivals are in `arrivals.py`.

Simulated marks come with 99 % intervals. Time scales, so the simulations count in mean service times, and one run
serves every service time that a reader may choose.
"""

import math
from functools import lru_cache

import numpy as np
from matplotlib.ticker import NullLocator

from serving_lib.plots import style
from serving_lib.queue_simulator import mean_interval, simulate_queue
from serving_lib.queueing import (
    calc_exponential_quantile_factor,
    calc_kingman_wait_ratio,
    calc_littles_law_occupancy,
    calc_littles_law_rate,
    calc_mg1_wait_ratio,
    calc_mm1_max_utilization,
    calc_mm1_time_in_system,
    calc_mmc_mean_wait,
    calc_mmc_response_quantile,
    calc_queue_latency_mmc,
    calc_residency_factor,
)
from serving_lib.units import ureg

REQUESTS = 20_000
RUNS = 10
SIMULATED_LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
FEWER_LOADS = (0.5, 0.7, 0.9)
LOADS = np.linspace(0.0, 0.98, 99)
SHARES = (0.001, 0.01, 0.1, 1)


# --- Little's law ----------------------------------------------------------------------------------------------------


def littles_law(utilization=0.7, requests=12, seed=3):
    """Draw the stay of each request as a bar of height one: the area, read by rows or by columns, is Little's law.

    Parameters
    ----------
    utilization : float
        The load of an M/M/1 queue, in (0, 1).
    requests : int
        How many requests, at least 2.
    seed : int
        Seed of the run.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> littles_law(requests=2).alt_text.startswith("2 requests arrive in")
    True
    """
    run = _mm1_run(utilization, requests, seed)
    start = run.arrival[0]
    arrival, finish = run.arrival - start, run.finish - start
    span, stay = finish[-1], (finish - arrival).mean()
    rate, inside = requests / span, np.sum(finish - arrival) / span

    figure, axes = style.new_figure()
    number = np.arange(1, requests + 1)
    served = run.start - start
    style.boxes(axes, arrival, number - 0.4, run.wait, 0.8, style.fill(3))
    style.boxes(axes, served, number - 0.4, finish - served, 0.8, style.fill(0))
    axes.step(np.append(arrival, span), np.append(number, requests) + 0.5, where="post", color=style.INK)
    axes.step(
        np.append(finish, span), np.append(number, requests) + 0.5, where="post", color=style.BLUE, linestyle="--"
    )
    axes.set(xlim=(0, 1.02 * span), ylim=(0.4, requests + 1), xlabel="Time (mean service times)")
    axes.set_ylabel("Number of the request (count)")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_title("Every stay is a bar of height one", **style.TITLE)
    key(
        axes,
        ("hatched: waits", style.AMBER_TEXT),
        ("plain: is served", style.INK),
        ("solid: arrived   dashed: left", style.BLUE),
        right=True,
        top=0.24,
    )
    return style.finish(
        figure,
        f"{requests} requests arrive in {style.say(span)} service times, {style.say(rate)} per service time, and stay "
        f"for {style.say(stay)} on average. The product is {style.say(calc_littles_law_occupancy(rate, stay))}; the "
        f"mean number inside, measured as area over time, is {style.say(inside)}.",
    )


def open_and_closed(clients=4):
    """Draw how long requests take under a fixed number of clients, and under users who do not wait for each other.

    Parameters
    ----------
    clients : int
        Clients of the closed load, each with one request at a time and no pause; at least 1. The open load is the one
        that keeps as many requests in the system on average.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "80 % load" in open_and_closed(4).alt_text
    True
    """
    utilization = clients / (clients + 1)  # an M/M/1 queue holds rho / (1 - rho) requests
    mean = calc_mm1_time_in_system(1.0, utilization)
    closed, opened = _closed_times(clients), _mm1_run(utilization, 2 * REQUESTS, seed=1).time_in_system
    share = np.logspace(0, -3, 31)
    formula = mean * calc_exponential_quantile_factor(1 - share)
    closed_p99, open_p99 = np.quantile(closed, 0.99), mean * calc_exponential_quantile_factor(0.99)

    figure, axes = style.new_figure()
    axes.plot(np.quantile(closed, 1 - share), share, **style.series(3) | {"markersize": 0, "linewidth": 2.2})
    axes.plot(formula, share, **style.FORMULA)
    axes.plot(np.quantile(opened, 1 - share[:26:5]), share[:26:5], **_without_caps(style.SIMULATION))
    axes.axhline(0.01, **style.LIMIT)
    log_axis(axes.yaxis, SHARES)
    axes.set(xlim=(0, formula[-1]), ylim=(1e-3, 1.3), xlabel="Time in system (mean service times)")
    axes.set_ylabel("Requests that take longer (share)")
    axes.set_title("Same number inside, not the same tail", **style.TITLE)
    axes.text(0.99 * formula[-1], 0.011, "1 % of requests take longer", ha="right", va="bottom", color=style.GREY)
    key(
        axes,
        (f"dotted: {clients} clients, server always busy", style.AMBER_TEXT),
        (f"line: users, {percent(utilization)} load, formula", style.INK),
        ("dots: users, simulated", style.BLUE),
        right=True,
    )
    return style.finish(
        figure,
        f"{clients} clients that wait for their answers: mean {style.say(closed.mean(), 2)} service times, p99 "
        f"{style.say(closed_p99, 2)}, and the server is always busy. Users who arrive on their own and keep as many "
        f"requests inside, {percent(utilization)} load: mean {style.say(mean, 2)}, p99 {style.say(open_p99, 2)} by the "
        f"formula and {style.say(np.quantile(opened, 0.99), 2)} in {len(opened):,} simulated requests.",
    )


# --- M/M/1: the knee and the tail ------------------------------------------------------------------------------------


def mm1_knee(utilization=0.8, service_time=200 * ureg.ms):
    """Draw the mean time in an M/M/1 system against its load: the formula, and simulations with their intervals.

    Parameters
    ----------
    utilization : float
        The load to mark, in [0, 1).
    service_time : Quantity
        Mean service time.

    Returns
    -------
    matplotlib.figure.Figure
    """
    chosen = calc_mm1_time_in_system(service_time, utilization)
    unit, service = f"{chosen.units:~P}", service_time.m_as(chosen.units)
    top = max(20 * service, 1.3 * chosen.magnitude)

    figure, axes = style.new_figure()
    axes.plot(LOADS, calc_mm1_time_in_system(service, LOADS), **style.FORMULA)
    _plot_intervals(axes, SIMULATED_LOADS, [_simulated_mm1(load) for load in SIMULATED_LOADS], scale=service)
    axes.axvline(utilization, **style.CHOSEN)
    axes.plot(utilization, chosen.magnitude, **DIAMOND)
    axes.set(xlim=(0, 1), ylim=(0, top), xlabel="Utilization (busy fraction)", ylabel=f"Mean time in system ({unit})")
    axes.set_title("The knee of M/M/1", **style.TITLE)
    key(
        axes,
        ("line: formula S / (1 − ρ)", style.INK),
        (f"dots: {REQUESTS:,} simulated requests, 99 % interval", style.BLUE),
        (f"diamond: {percent(utilization)} load, {style.say(chosen)}", style.AMBER_TEXT),
        top=0.42,
    )

    run = _simulated_mm1(utilization)
    return style.finish(
        figure,
        f"At {percent(utilization)} load the mean time in the system is {style.say(chosen)}, "
        f"{style.say(chosen.magnitude / service)} service times; the simulated mean of {REQUESTS:,} requests is "
        f"{say_interval(run, service)} {unit} (99 % interval).",
    )


def tail_budget(tail_budget=4 * ureg.s, service_time=500 * ureg.ms, quantile=0.99):
    """Draw a quantile of the M/M/1 response time against the load, and the load at which it meets a budget.

    Parameters
    ----------
    tail_budget : Quantity
        The promise: the quantile of the time in the system must be within it.
    service_time : Quantity
        Mean service time.
    quantile : float
        The share of requests that the promise covers, in (0, 1).

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "the load may be 42.4 %" in tail_budget().alt_text
    True
    """
    factor = calc_exponential_quantile_factor(quantile)
    ceiling = calc_mm1_max_utilization(service_time, tail_budget, factor)
    service, budget = service_time.m_as("s"), tail_budget.m_as("s")
    top = max(2 * budget, 20 * service)
    name = f"p{100 * quantile:g}"

    figure, axes = style.new_figure()
    axes.plot(LOADS, factor * calc_mm1_time_in_system(service, LOADS), **style.FORMULA)
    axes.plot(LOADS, calc_mm1_time_in_system(service, LOADS), color=style.GREY, linewidth=1.4)
    loads = [load for load in SIMULATED_LOADS[1::2] if factor * service / (1 - load) < top]
    _plot_intervals(axes, loads, [_simulated_mm1_quantile(load, quantile) for load in loads], scale=service)
    axes.axhline(budget, **style.LIMIT)
    if ceiling > 0:
        axes.axvspan(0, ceiling, color=style.TINTS[3], alpha=0.35, linewidth=0)
        axes.plot(ceiling, budget, **DIAMOND)
    axes.set(xlim=(0, 1), ylim=(0, top), xlabel="Utilization (busy fraction)", ylabel="Time in system (s)")
    axes.set_title("A promise about the tail is a ceiling on the load", **style.TITLE)
    axes.text(0.02, budget + 0.02 * top, f"budget {style.say(tail_budget)}", color=style.GREY)
    key(
        axes,
        (f"line: {name}, {factor:.3f} times the mean", style.INK),
        (f"dots: simulated {name}, {RUNS} runs, 99 % interval", style.BLUE),
        ("thin line: mean", style.GREY),
    )
    promise = f"{percent(quantile)} of requests within {style.say(tail_budget)}"
    if ceiling <= 0:
        sentence = (
            f"{promise}: even an idle server misses it, because its own {name} is {style.say(factor * service_time)}."
        )
    else:
        rate = (ceiling / service_time).to("1/s")
        sentence = (
            f"{promise} with a service time of {style.say(service_time)}: the load may be {percent(ceiling)}, "
            f"{style.say(rate)}, so {percent(1 - ceiling)} of the server is kept idle on purpose."
        )
    return style.finish(figure, sentence)


# --- variability -----------------------------------------------------------------------------------------------------


def variability(utilization=0.7, arrival_cv=1.0, service_cv=1.0):
    """Draw the mean wait against the load for gaps and service times of any variability: Kingman and simulation.

    Parameters
    ----------
    utilization : float
        The load to mark, in (0, 1).
    arrival_cv : float
        Coefficient of variation of the gaps between arrivals: 0 is a metronome, 1 is Poisson.
    service_cv : float
        Coefficient of variation of the service times: 0 is constant, 1 is exponential.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> variability(0.5, 1, 0).alt_text.startswith("At 50 % load Kingman gives a mean wait of 0.5 service times")
    True
    """
    chosen = calc_kingman_wait_ratio(utilization, arrival_cv**2, service_cv**2)
    run = _simulated_gg1(utilization, arrival_cv, service_cv)
    top = max(10.0, 1.6 * chosen)

    figure, axes = style.new_figure()
    axes.plot(LOADS, calc_kingman_wait_ratio(LOADS, 1, 1), **style.LIMIT)
    axes.plot(LOADS, calc_kingman_wait_ratio(LOADS, arrival_cv**2, service_cv**2), **style.FORMULA)
    runs = [_simulated_gg1(load, arrival_cv, service_cv) for load in FEWER_LOADS]
    _plot_intervals(axes, FEWER_LOADS, runs)
    axes.axvline(utilization, **style.CHOSEN)
    axes.set(xlim=(0, 1), ylim=(0, top), xlabel="Utilization (busy fraction)", ylabel="Mean wait (service times)")
    axes.set_title("Waiting is load times variability", **style.TITLE)
    key(
        axes,
        (f"line: Kingman, CV {arrival_cv:.3g} and {service_cv:.3g}", style.INK),
        (f"dots: {REQUESTS:,} simulated requests, 99 % interval", style.BLUE),
        ("dotted: CV 1 and 1, the M/M/1 queue", style.GREY),
    )
    return style.finish(
        figure,
        f"At {percent(utilization)} load Kingman gives a mean wait of {style.say(chosen)} service times for gaps of CV "
        f"{arrival_cv:.3g} and service of CV {service_cv:.3g}; the simulation gives {say_interval(run)}. "
        f"An M/M/1 queue would wait {style.say(calc_kingman_wait_ratio(utilization, 1, 1))}.",
    )


def short_and_long(long_share=0.1, long_time=2 * ureg.s, short_time=100 * ureg.ms, utilization=0.8):
    """Draw the mean wait behind a mix of short and long jobs, next to what an exponential model of its mean says.

    Parameters
    ----------
    long_share : float
        Share of the jobs that are long, in [0, 1].
    long_time : Quantity
        Service time of a long job.
    short_time : Quantity
        Service time of a short job.
    utilization : float
        The load to mark, in (0, 1).

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "the mean wait is 2.82 s" in short_and_long().alt_text
    True
    """
    short, long = short_time.m_as("s"), long_time.m_as("s")
    mean = (1 - long_share) * short + long_share * long
    cv = math.sqrt(long_share * (1 - long_share)) * abs(long - short) / mean
    wait, exponential = (mean * calc_mg1_wait_ratio(utilization, one) for one in (cv, 1))
    run = _simulated_mix(utilization, long_share, long / short)
    top = 3.2 * max(wait, exponential)

    figure, axes = style.new_figure()
    axes.plot(LOADS, mean * calc_mg1_wait_ratio(LOADS, cv), **style.FORMULA)
    axes.plot(LOADS, mean * calc_mg1_wait_ratio(LOADS, 1), **style.LIMIT)
    runs = [_simulated_mix(load, long_share, long / short) for load in FEWER_LOADS]
    _plot_intervals(axes, FEWER_LOADS, runs, scale=mean)
    axes.axvline(utilization, **style.CHOSEN)
    axes.set(xlim=(0, 1), ylim=(0, top), xlabel="Utilization (busy fraction)", ylabel="Mean wait (s)")
    axes.set_title("A few long jobs make everyone wait", **style.TITLE)
    key(
        axes,
        (f"line: Pollaczek-Khinchine, squared CV {style.say(cv**2)}", style.INK),
        (f"dots: {REQUESTS:,} simulated requests, 99 % interval", style.BLUE),
        ("dotted: exponential model of the same mean", style.GREY),
    )
    return style.finish(
        figure,
        f"{percent(long_share)} of the jobs take {style.say(long_time)}, the others {style.say(short_time)}: "
        f"squared CV {style.say(cv**2)}. At {percent(utilization)} load the mean wait is {style.say(wait * ureg.s)}, "
        f"simulated {say_interval(run, mean)} s; the exponential model says {style.say(exponential * ureg.s)}.",
    )


# --- pooling ---------------------------------------------------------------------------------------------------------


def pooling(servers=4, utilization=0.8):
    """Draw the mean time in the system of split servers, of the same servers pooled, and of one that is as fast as all.

    Parameters
    ----------
    servers : int
        How many servers share the load, at least 2.
    utilization : float
        The load to mark, in (0, 1).

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "5 split, 1.75 pooled, 1.25 as one" in pooling().alt_text
    True
    """
    loads = np.unique(np.append(LOADS[::2], utilization))
    pooled = np.array([1 + calc_mmc_mean_wait(load * servers, 1.0, servers) for load in loads])
    lines = {
        f"{servers} queues, {servers} servers": calc_mm1_time_in_system(1.0, loads),
        f"1 queue, {servers} servers": pooled,
        f"1 server, {servers} times as fast": calc_mm1_time_in_system(1 / servers, loads),
    }
    at = int(np.searchsorted(loads, utilization))
    split, shared, fast = (float(line[at]) for line in lines.values())
    runs = [_simulated_mm1(utilization), _simulated_mmc(servers, utilization), _simulated_mm1(utilization)]
    top = max(10.0, 1.3 * split)

    figure, axes = style.new_figure()
    for index, line in enumerate(lines.values()):
        axes.plot(loads, line, **style.series(index) | {"marker": "none"})
    for run, scale in zip(runs, (1, 1, 1 / servers), strict=True):
        _plot_intervals(axes, [utilization], [run], scale=scale)
    axes.axvline(utilization, **style.CHOSEN)
    axes.set(
        xlim=(0, 1), ylim=(0, top), xlabel="Utilization (busy fraction)", ylabel="Mean time in system (service times)"
    )
    axes.set_title("The same capacity, three ways", **style.TITLE)
    dashes = ("solid", "dashed", "dash-dot")
    names = [(f"{dash}: {name}", color) for dash, name, color in zip(dashes, lines, style.PALETTE, strict=False)]
    key(axes, *names, ("dots: simulated, 99 % interval", style.BLUE))
    return style.finish(
        figure,
        f"{servers} servers at {percent(utilization)} load, mean time in service times: {style.say(split)} split, "
        f"{style.say(shared)} pooled, {style.say(fast)} as one fast server; simulated {say_interval(runs[0])}, "
        f"{say_interval(runs[1])} and {say_interval(runs[2], 1 / servers)}.",
    )


def pool_size(utilization=0.9, servers=100):
    """Draw the wait against the size of the pool, at one load.

    Parameters
    ----------
    utilization : float
        The load, in (0, 1).
    servers : int
        The pool to mark, at least 1.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "in a pool of 100 they wait 0.0217 service times" in pool_size().alt_text
    True
    """
    sizes = np.unique(np.geomspace(1, 1000, 31).round().astype(int))
    mean = [calc_mmc_mean_wait(utilization * size, 1.0, int(size)) for size in sizes]
    tail = np.array([calc_queue_latency_mmc(utilization * size, 1.0, int(size))[2].magnitude for size in sizes])
    chosen, alone = (calc_mmc_mean_wait(utilization * size, 1.0, size) for size in (servers, 1))
    simulated = (1, 8, 64)
    runs = [mean_interval(_mmc_run(size, utilization).wait) for size in simulated]

    figure, axes = style.new_figure()
    axes.plot(sizes, mean, **style.FORMULA)
    axes.plot(sizes[tail > 0], tail[tail > 0], **style.series(1) | {"marker": "none"})
    _plot_intervals(axes, simulated, runs)
    axes.plot(servers, chosen, **DIAMOND)
    log_axis(axes.xaxis, (1, 10, 100, 1000))
    log_axis(axes.yaxis, (0.001, 0.01, 0.1, 1, 10, 100))
    axes.set(
        xlim=(0.9, 1100), ylim=(1e-4, 1e3), xlabel="Servers behind one queue (count)", ylabel="Wait (service times)"
    )
    axes.set_title(f"{percent(utilization)} busy means nothing without the size of the pool", **style.TITLE)
    key(
        axes,
        ("solid: mean wait   dashed: p99 wait", style.INK),
        ("dots: simulated mean, 99 % interval", style.BLUE),
        right=True,
    )
    return style.finish(
        figure,
        f"At {percent(utilization)} load one server makes its requests wait {style.say(alone)} service times on "
        f"average; in a pool of {servers:,} they wait {style.say(chosen)} service times.",
    )


def response_tail(servers=64, utilization=0.9):
    """Draw the tail of the M/M/c response time, and where "p99 wait plus mean service" falls in it.

    Parameters
    ----------
    servers : int
        Servers behind one queue, at least 1.
    utilization : float
        The load, in (0, 1).

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "99 % of requests are done within 4.66 s" in response_tail().alt_text
    True
    """
    arrival = utilization * servers
    share = np.logspace(0, -3, 31)
    formula = np.array([calc_mmc_response_quantile(arrival, 1.0, servers, 1 - one) for one in share])
    p99 = calc_mmc_response_quantile(arrival, 1.0, servers, 0.99)
    naive = calc_queue_latency_mmc(arrival, 1.0, servers)[2].magnitude + 1.0
    run = _mmc_run(servers, utilization, 2 * REQUESTS).time_in_system
    missed = float(np.interp(naive, formula, share))

    figure, axes = style.new_figure()
    axes.plot(formula, share, **style.FORMULA)
    levels = share[:26:5]
    axes.plot(np.quantile(run, 1 - levels), levels, **_without_caps(style.SIMULATION))
    axes.axhline(0.01, **style.LIMIT)
    axes.axvline(naive, color=style.RED, linestyle="--", linewidth=1.6)
    axes.plot(p99, 0.01, **DIAMOND)
    right = formula[-1]
    log_axis(axes.yaxis, SHARES)
    axes.set(xlim=(0, right), ylim=(1e-3, 1.3), xlabel="Response time, at a mean service of 1 s (s)")
    axes.set_ylabel("Requests that take longer (share)")
    axes.set_title("The p99 response is not the p99 wait plus the mean service", **style.TITLE)
    key(
        axes,
        ("line: formula   dots: simulated", style.INK),
        (f"dashed: p99 wait + mean service, {style.say(naive)} s", style.RED),
        (f"diamond: p99 response, {style.say(p99)} s", style.AMBER_TEXT),
        right=True,
    )
    return style.finish(
        figure,
        f"{_count(servers, 'server')} at {percent(utilization)} load, mean service 1 s: 99 % of requests are done "
        f"within {style.say(p99)} s ({style.say(np.quantile(run, 0.99), 2)} s in {len(run):,} simulated requests). "
        f"The p99 wait plus the mean service is {style.say(naive)} s, and {percent(missed)} of the "
        "requests take longer than that.",
    )


# --- one run is not enough -------------------------------------------------------------------------------------------


def many_runs(requests=2_000, utilization=0.8):
    """Draw the mean time in an M/M/1 system of twenty runs that differ in nothing but their seed.

    Parameters
    ----------
    requests : int
        Requests in each run, at least 100.
    utilization : float
        The load, in (0, 1).

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> many_runs().alt_text.startswith("20 runs of 2,000 requests")
    True
    """
    seeds = range(1, 21)
    theory = calc_mm1_time_in_system(1.0, utilization)
    runs = [_mm1_interval(utilization, requests, seed) for seed in seeds]
    means = np.array([run.mean for run in runs])
    inside = sum(theory in run for run in runs)
    top = max(3.0 * theory, 1.4 * max(means))

    figure, axes = style.new_figure()
    axes.axhline(theory, **style.FORMULA)
    _plot_intervals(axes, list(seeds), runs)
    axes.set(
        xlim=(0, 21), ylim=(0, top), xlabel="Seed of the run (number)", ylabel="Mean time in system (service times)"
    )
    axes.set_title(f"Twenty runs of {requests:,} requests at {percent(utilization)} load", **style.TITLE)
    key(axes, ("line: formula", style.INK), ("dots: one run each, 99 % interval", style.BLUE))
    return style.finish(
        figure,
        f"20 runs of {requests:,} requests at {percent(utilization)} load give means from {style.say(means.min())} to "
        f"{style.say(means.max())} service times; the formula says {style.say(theory)}. "
        f"{inside} of the 20 intervals hold it.",
    )


def run_length(utilization=0.8, seed=1):
    """Draw how the 99 % interval of a simulated mean shrinks while one run goes on.

    Parameters
    ----------
    utilization : float
        The load of the M/M/1 queue, in (0, 1).
    seed : int
        Seed of the run.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> run_length().alt_text.startswith("After 1,000 requests")
    True
    """
    theory = calc_mm1_time_in_system(1.0, utilization)
    lengths = [1000 * 4**power for power in range(4)]
    run = _mm1_run(utilization, lengths[-1], seed).time_in_system
    intervals = [mean_interval(run[:length]) for length in lengths]

    figure, axes = style.new_figure()
    axes.axhline(theory, **style.FORMULA)
    log_axis(axes.xaxis, lengths)
    _plot_intervals(axes, lengths, intervals)
    top = 3.0 * theory
    axes.set(
        xlim=(700, 9e4),
        ylim=(0, top),
        xlabel="Length of the run (requests)",
        ylabel="Mean time in system (service times)",
    )
    axes.set_title("Four times the run, half the interval", **style.TITLE)
    key(
        axes,
        ("line: formula", style.INK),
        ("dots: the same run, longer and longer, 99 % interval", style.BLUE),
    )
    first, last = intervals[0], intervals[-1]
    return style.finish(
        figure,
        f"After {lengths[0]:,} requests at {percent(utilization)} load the mean is {say_interval(first)} service "
        f"times; after {lengths[-1]:,} it is {say_interval(last)}. The formula says {style.say(theory)}.",
    )


# --- state that is held while waiting --------------------------------------------------------------------------------


def residency(tool_time=8 * ureg.s, generation_time=2 * ureg.s, slots=100):
    """Draw how many turns a fixed number of slots completes per second when each turn also waits for a tool.

    Parameters
    ----------
    tool_time : Quantity
        Mean time for which a turn keeps its slot while it waits for a tool.
    generation_time : Quantity
        Mean time of generation.
    slots : int
        Number of slots, at least 1.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> "from 50 to 10 turns per second" in residency().alt_text
    True
    """
    generation, tool = generation_time.m_as("s"), tool_time.m_as("s")
    factor = calc_residency_factor(generation_time, tool_time)
    without = calc_littles_law_rate(slots, generation)
    right = max(10 * generation, 1.2 * tool)
    waits = np.linspace(0, right, 61)
    simulated = np.linspace(0, right, 5)

    figure, axes = style.new_figure()
    axes.plot(waits, calc_littles_law_rate(slots, generation + waits), **style.FORMULA)
    axes.plot(waits, np.full_like(waits, without), **style.LIMIT)
    runs = [_simulated_turnover(slots, wait / generation) for wait in simulated]
    _plot_intervals(axes, simulated, runs, scale=1 / generation)
    axes.axvline(tool, **style.CHOSEN)
    axes.plot(tool, without / factor, **DIAMOND)
    axes.set(
        xlim=(0, right),
        ylim=(0, 1.15 * without),
        xlabel="Wait for the tool, slot held (s)",
        ylabel="Turnover (turns per second)",
    )
    axes.set_title(f"{slots} slots that wait for tools", **style.TITLE)
    key(
        axes,
        ("dotted: slot given back during the wait", style.GREY),
        ("line: slots / (generation + wait)", style.INK),
        (f"dots: {RUNS} simulated runs, 99 % interval", style.BLUE),
        right=True,
        top=0.8,
    )
    return style.finish(
        figure,
        f"A turn generates for {style.say(generation_time)} and holds its slot for {style.say(tool_time)} more: "
        f"residency factor {style.say(factor)}. The turnover of {slots} slots falls from {style.say(without)} to "
        f"{style.say(without / factor)} turns per second.",
    )


# --- simulations, in mean service times ------------------------------------------------------------------------------

DIAMOND = {"marker": "D", "markersize": 10, "color": style.AMBER, "fillstyle": "none", "linestyle": "none"}


def _exponential(rng, size):
    return rng.exponential(1.0, size)


@lru_cache(maxsize=64)
def _mm1_run(utilization, requests, seed):
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1, requests) / max(utilization, 1e-9)
    return simulate_queue(np.cumsum(gaps), rng.exponential(1, requests))


@lru_cache(maxsize=512)
def _mm1_interval(utilization, requests, seed):
    return mean_interval(_mm1_run(utilization, requests, seed).time_in_system)


def _simulated_mm1(utilization):
    return _mm1_interval(utilization, REQUESTS, seed=1)


@lru_cache(maxsize=512)
def _simulated_mm1_quantile(utilization, quantile):
    """Return a quantile of the time in system with the interval of independent runs, each started warm."""
    runs = [_mm1_run(utilization, REQUESTS, seed).time_in_system[REQUESTS // 10 :] for seed in range(1, RUNS + 1)]
    return mean_interval([np.quantile(run, quantile) for run in runs], batches=RUNS, warmup=0.0)


@lru_cache(maxsize=64)
def _closed_times(clients):
    """Return times in system when each of some clients sends its next request as soon as the last is answered.

    The server never idles, and serves in turn: a request arrives when the one `clients` places ahead of it leaves.
    """
    finish = np.cumsum(np.random.default_rng(1).exponential(1, 2 * REQUESTS))
    return finish[clients:] - finish[:-clients]


@lru_cache(maxsize=512)
def _simulated_gg1(utilization, arrival_cv, service_cv):
    rng = np.random.default_rng(1)
    gaps, service = (_gamma(rng, cv, REQUESTS) for cv in (arrival_cv, service_cv))
    return mean_interval(simulate_queue(np.cumsum(gaps) / utilization, service).wait)


def _gamma(rng, cv, size):
    """Return draws of mean 1 with a given coefficient of variation."""
    return rng.gamma(cv**-2, cv**2, size) if cv > 0 else np.ones(size)


@lru_cache(maxsize=512)
def _simulated_mix(utilization, long_share, ratio):
    rng = np.random.default_rng(1)
    service = np.where(rng.random(REQUESTS) < long_share, ratio, 1.0) / (1 + long_share * (ratio - 1))
    return mean_interval(simulate_queue(np.cumsum(rng.exponential(1 / utilization, REQUESTS)), service).wait)


@lru_cache(maxsize=64)
def _mmc_run(servers, utilization, requests=REQUESTS):
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / (utilization * servers), requests))
    return simulate_queue(arrivals, _exponential, servers, seed=2)


@lru_cache(maxsize=512)
def _simulated_mmc(servers, utilization):
    return mean_interval(_mmc_run(servers, utilization).time_in_system)


@lru_cache(maxsize=512)
def _simulated_turnover(slots, tool_time):
    """Return turns per mean generation time: every slot starts its next turn at once, so all "arrive" at time 0."""
    turns = 14 * slots

    def held(rng, size):
        return rng.exponential(1, size) + rng.exponential(tool_time, size)

    rates = []
    for seed in range(RUNS):
        finish = np.sort(simulate_queue(np.zeros(turns), held, slots, seed=seed).finish)
        # Between the first turns and the last, while every slot is in use.
        first, last = 2 * slots, turns - 2 * slots
        rates.append((last - first) / (finish[last] - finish[first]))
    return mean_interval(rates, batches=RUNS, warmup=0.0)


def _plot_intervals(axes, x, intervals, scale=1.0):
    means, widths = (scale * np.array([getattr(one, name) for one in intervals]) for name in ("mean", "half_width"))
    axes.errorbar(x, means, widths, **style.SIMULATION)


def key(axes, *entries, right=False, top=0.92):
    """Write what each mark means, (text, color) line by line: quicker to draw than a legend, and read in one go."""
    for row, (text, color) in enumerate(entries):
        axes.annotate(
            text,
            xy=(0.98 if right else 0.02, top),
            xycoords="axes fraction",
            xytext=(0, -16 * row),
            textcoords="offset points",
            ha="right" if right else "left",
            color=color,
            bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
        )


def log_axis(axis, ticks):
    """Make an axis logarithmic, with a few plain numbers at it: the ticks of its own take longer than the picture."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(ticks, labels=[f"{tick:,.10g}" for tick in ticks])


def say_interval(interval, scale=1.0):
    """Return "5.02 ± 0.31": two digits of the half width, and the mean with as many decimals."""
    half_width = scale * interval.half_width
    decimals = max(0, 1 - math.floor(math.log10(half_width))) if half_width > 0 else 2
    return f"{scale * interval.mean:,.{decimals}f} ± {half_width:,.{decimals}f}"


def _count(number, noun):
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share):
    """Return "80 %", as the figures and the text of the lecture write a share."""
    return f"{100 * share:.3g} %"


def _without_caps(look):
    return {name: value for name, value in look.items() if name not in ("capsize", "elinewidth")}

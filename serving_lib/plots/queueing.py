"""Pictures of lecture 01: load, variability and waiting."""

from functools import lru_cache

import numpy as np

from serving_lib.plots import style
from serving_lib.queue_simulator import mean_interval, simulate_queue
from serving_lib.queueing import calc_mm1_time_in_system
from serving_lib.units import ureg

REQUESTS = 20_000
SIMULATED_LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


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
    loads = np.linspace(0.0, 0.98, 197)
    times = calc_mm1_time_in_system(service, loads)
    top = max(20 * service, 1.3 * chosen.magnitude)

    figure, axes = style.new_figure()
    axes.plot(loads, times, **style.FORMULA)
    dots = np.array([(load, _simulated_mm1(load).mean, _simulated_mm1(load).half_width) for load in SIMULATED_LOADS])
    axes.errorbar(dots[:, 0], service * dots[:, 1], service * dots[:, 2], **style.SIMULATION)
    axes.axvline(utilization, **style.CHOSEN)
    axes.plot(utilization, chosen.magnitude, marker="D", markersize=10, color=style.AMBER, fillstyle="none")
    axes.set(xlim=(0, 1), ylim=(0, top), xlabel="Utilization (busy fraction)", ylabel=f"Mean time in system ({unit})")
    axes.set_title("The knee of M/M/1", **style.TITLE)
    axes.text(0.03, 0.42 * top, "line: formula S / (1 − ρ)", color=style.INK)
    axes.text(0.03, 0.34 * top, f"dots: {REQUESTS:,} simulated requests, 99 % interval", color=style.BLUE)
    axes.text(0.03, 0.26 * top, f"diamond: {utilization:.0%} load, {style.say(chosen)}", color=style.AMBER_TEXT)

    run = _simulated_mm1(utilization)
    return style.finish(
        figure,
        f"At {utilization:.0%} load the mean time in the system is {style.say(chosen)}, "
        f"{style.say(chosen.magnitude / service)} service times; the simulated mean of {REQUESTS:,} requests is "
        f"{style.say(run.mean * service_time, 2)} ± {style.say(run.half_width * service_time, 2)} (99 % interval).",
    )


@lru_cache(maxsize=512)
def _simulated_mm1(utilization):
    """Return the simulated mean time in system, in service times: time scales, so one run serves every service time."""
    rng = np.random.default_rng(1)
    gaps = rng.exponential(1, REQUESTS) / max(utilization, 1e-9)
    run = simulate_queue(np.cumsum(gaps), rng.exponential(1, REQUESTS))
    return mean_interval(run.time_in_system)

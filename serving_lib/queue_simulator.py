"""A first-come first-served queue with any arrivals, any service times and any number of servers, simulated exactly.

This is the check on every queueing formula of the workbook: the same question, asked of a simulation that assumes
nothing about distributions. One run of a busy queue easily misses its own theory by 10 %, so `mean_interval` says how
far a simulated mean can be trusted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapreplace

import numpy as np
import pint

from serving_lib.queueing import first_float
from serving_lib.units import (
    FINITE,
    FRACTION,
    NONNEGATIVE,
    OPEN_FRACTION,
    TIME,
    check_count,
    check_number,
    check_quantity,
    magnitude_in_unit_of,
)


@dataclass(frozen=True, eq=False)
class QueueRun:
    """What happened to each customer, in order of arrival.

    Parameters
    ----------
    arrival, start, finish : ndarray or Quantity, shape (n,)
        When each customer came, began service and left, in the unit of the arrivals.
    """

    arrival: np.ndarray
    start: np.ndarray
    finish: np.ndarray

    @property
    def wait(self):
        """Time in the queue, before service."""
        return self.start - self.arrival

    @property
    def time_in_system(self):
        """Time from arrival to departure: wait plus service."""
        return self.finish - self.arrival


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval, ``mean - half_width`` to ``mean + half_width``; ``value in interval`` works.

    Parameters
    ----------
    mean, half_width : float or Quantity
        The estimate, and how far the true mean may lie from it.
    confidence : float
        The share of such intervals that cover the true mean.
    batches : int
        How many batch means the half width was estimated from.
    """

    mean: float
    half_width: float
    confidence: float
    batches: int

    @property
    def low(self):
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self):
        """Upper end of the interval."""
        return self.mean + self.half_width

    def __contains__(self, value):
        return bool(self.low <= value <= self.high)

    def __str__(self):
        share = f"{100 * self.confidence:g} % interval, {self.batches} batches"
        return f"{self.mean:.4g} ± {self.half_width:.2g} ({share})"


def simulate_queue(arrivals, service, servers=1, seed=0):
    """Simulate a first-come first-served queue with one waiting line (G/G/c).

    Parameters
    ----------
    arrivals : array_like or array Quantity, shape (n,)
        Arrival times: nonnegative, finite, in ascending order; with a time unit or without.
    service : callable, array_like, float or Quantity
        Service times, nonnegative and finite, in a time unit exactly when the arrivals are: one per customer; one for
        all (deterministic service); or a function ``service(rng, size)`` that draws `size` of them.
    servers : int
        Number of servers, at least 1.
    seed : int
        Seed of the generator handed to `service`; without a callable nothing is random.

    Returns
    -------
    QueueRun
        Arrival, start and finish of every customer, in the unit of the arrivals.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain, or only one of arrivals and service carries a unit.

    Notes
    -----
    A customer starts when the first server falls free, or on arrival if one is idle; a heap of the c times at which
    servers fall free makes that O(n log c). Every start is the exact sum of one arrival and the service times of one
    busy period, rounded once per addition: there is no clock grid.

    References
    ----------
    Kiefer and Wolfowitz (1955), On the Theory of Queues with Many Servers. https://doi.org/10.1090/S0002-9947-1955-0066587-3

    Examples
    --------
    >>> run = simulate_queue([0.0, 1.0, 2.0], service=3.0)
    >>> run.wait
    array([0., 2., 4.])
    >>> simulate_queue([0.0, 1.0, 2.0], service=3.0, servers=2).wait
    array([0., 0., 1.])
    >>> arrivals = np.arange(1, 10_001) * 0.5
    >>> run = simulate_queue(arrivals, lambda rng, size: rng.exponential(0.4, size), seed=1)
    >>> bool(0.3 < run.wait.mean() < 1.0)
    True
    """
    arrivals = check_quantity("arrivals", _as_array(arrivals), TIME, NONNEGATIVE, bare=True)
    arrival = np.asarray(getattr(arrivals, "magnitude", arrivals), dtype=float)
    if arrival.ndim != 1:
        raise ValueError(f"arrivals must be one-dimensional, got shape {arrival.shape}")
    descents = np.flatnonzero(np.diff(arrival) < 0)
    if len(descents):
        raise ValueError(f"arrivals must be in ascending order, got a step down after index {descents[0]}; sort them")
    servers = check_count("servers", servers, minimum=1)
    service_time = _service_times(service, arrivals, np.random.default_rng(seed))

    start = np.array(_start_times(arrival.tolist(), service_time.tolist(), servers))
    times = arrival, start, start + service_time
    if isinstance(arrivals, pint.Quantity):
        times = (arrivals._REGISTRY.Quantity(time, arrivals.units) for time in times)
    return QueueRun(*times)


def mean_interval(values, confidence=0.99, batches=20, warmup=0.1):
    """Estimate a long-run mean from one simulated series, with a confidence interval from batch means.

    Parameters
    ----------
    values : array_like or array Quantity, shape (n,)
        Successive values of one run, such as ``run.wait``; finite. Of a condition, such as ``run.wait > 2``, it
        estimates the share that meets it.
    confidence : float
        Share of such intervals that cover the true mean, in (0, 1).
    batches : int
        Number of batches, at least 2.
    warmup : float
        Share of the values, in [0, 1), that is left out at the start: a simulated queue begins empty, and its first
        customers wait less than the rest.

    Returns
    -------
    Interval
        Mean and half width, in the unit of the values.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain, or fewer values than batches remain after the warm-up.

    Notes
    -----
    Waits that follow each other are strongly correlated, so the textbook interval ``s / sqrt(n)`` is far too narrow.
    The means of long batches are nearly independent and nearly normal; their spread, with the Student t factor for
    ``batches - 1`` degrees of freedom, gives the interval. It is honest only while a batch is much longer than the
    memory of the queue, which grows as 1/(1 - utilization)**2: near saturation, run longer.

    References
    ----------
    Law and Kelton (2000), Simulation Modeling and Analysis, section 9.5.3.

    Examples
    --------
    >>> interval = mean_interval([1.0, 3.0] * 100, batches=10)
    >>> interval.mean, interval.half_width, 2.0 in interval
    (2.0, 0.0, True)
    """
    confidence = check_number("confidence", confidence, OPEN_FRACTION)
    batches = check_count("batches", batches, minimum=2)
    warmup = check_number("warmup", warmup, FRACTION)
    values = _as_array(values)
    magnitudes = np.asarray(check_number("values", getattr(values, "magnitude", values), FINITE), dtype=float)
    if magnitudes.ndim != 1:
        raise ValueError(f"values must be one-dimensional, got shape {magnitudes.shape}")
    kept = len(magnitudes) - math.ceil(warmup * len(magnitudes))
    if kept < batches:
        raise ValueError(
            f"values must hold at least one value per batch ({batches}) after the warm-up, got {kept}; "
            "simulate more customers"
        )
    # Batches are of equal length; what does not divide joins the warm-up.
    means = magnitudes[-(kept // batches * batches) :].reshape(batches, -1).mean(axis=1)
    mean, half_width = float(means.mean()), float(means.std(ddof=1)) / math.sqrt(batches)
    half_width *= student_t_factor(confidence, batches - 1)
    if isinstance(values, pint.Quantity):
        quantity = values._REGISTRY.Quantity
        return Interval(quantity(mean, values.units), quantity(half_width, values.units), confidence, batches)
    return Interval(mean, half_width, confidence, batches)


def student_t_factor(confidence, degrees):
    """Return t such that a Student t variable lies within -t and t with a given probability.

    Parameters
    ----------
    confidence : float
        The two-sided probability, in (0, 1).
    degrees : int
        Degrees of freedom, at least 1.

    Returns
    -------
    float
        The half width of a confidence interval, in standard errors.

    Raises
    ------
    TypeError, ValueError
        If an argument is outside its domain.

    Notes
    -----
    With ``t = sqrt(degrees) tan(theta)``, the probability is a finite sum of powers of cos(theta) (Abramowitz and
    Stegun 26.7.3 and 26.7.4), exact for whole degrees. It grows with theta, so bisection finds theta to the last bit.
    The factor keeps about 14 digits at 0.99; each further 9 costs one.

    References
    ----------
    Abramowitz and Stegun (1964), Handbook of Mathematical Functions, section 26.7.

    Examples
    --------
    >>> round(student_t_factor(0.99, 19), 6)
    2.860935
    """
    confidence = check_number("confidence", confidence, OPEN_FRACTION)
    degrees = check_count("degrees", degrees, minimum=1)
    return _student_t_factor(confidence, degrees)


@lru_cache(maxsize=64)
def _student_t_factor(confidence, degrees):
    theta = first_float(lambda theta: _student_t_probability(theta, degrees) >= confidence, 0.0, math.pi / 2)
    return math.sqrt(degrees) * math.tan(theta)


def _start_times(arrivals, services, servers):
    """Return when each customer's service begins; plain floats, because this is the inner loop."""
    starts = []
    if servers == 1:  # a heap of one would take as long again
        done = -math.inf
        for arrival, service in zip(arrivals, services, strict=True):
            start = done if done > arrival else arrival
            done = start + service
            starts.append(start)
        return starts
    free = [-math.inf] * servers  # when each server falls free: a heap, earliest first
    for arrival, service in zip(arrivals, services, strict=True):
        start = free[0] if free[0] > arrival else arrival  # not max(): a call here costs as much as the rest
        heapreplace(free, start + service)
        starts.append(start)
    return starts


def _service_times(service, arrivals, rng):
    """Return one plain service time per customer, in the unit of the arrivals."""
    size = len(arrivals)
    given = service(rng, size) if isinstance(service, Callable) else service
    if isinstance(given, pint.Quantity) != isinstance(arrivals, pint.Quantity):
        raise TypeError("arrivals and service must both carry a time unit, or neither: multiply by ureg.s")
    times = check_quantity("service", _as_array(given), TIME, NONNEGATIVE, bare=True)
    if isinstance(times, pint.Quantity):
        times = magnitude_in_unit_of(times, arrivals)
    if np.shape(times) not in ((), (size,)):
        raise ValueError(f"service must hold one time per arrival ({size}), got shape {np.shape(times)}")
    return np.broadcast_to(np.asarray(times, dtype=float), size)


def _as_array(values):
    """Return a list, and an array of conditions, as an array of floats; leave a Quantity or a number as it is."""
    if isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.dtype.kind == "b"):
        return np.array(values, dtype=float)
    return values


def _student_t_probability(theta, degrees):
    """Return P(abs(T) <= sqrt(degrees) tan(theta)) for a Student t variable T with whole degrees of freedom."""
    cosine_squared = math.cos(theta) ** 2
    odd = degrees % 2
    term = total = math.cos(theta) if odd else 1.0
    for k in range(2 + odd, degrees, 2):
        term *= cosine_squared * (k - 1) / k
        total += term
    if not odd:
        return math.sin(theta) * total
    return 2 / math.pi * (theta + math.sin(theta) * total * (degrees > 1))

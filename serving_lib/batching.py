"""Batching: what a batch costs, what it brings, and how long it takes to fill."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pint

from serving_lib.units import (
    BYTES,
    BYTES_PER_SECOND,
    NONNEGATIVE,
    POSITIVE,
    RATE,
    TIME,
    check_count,
    check_number,
    check_quantity,
    in_registry_of,
    magnitude_in_unit_of,
    plain,
    registry_of,
    time_unit_of,
)


def calc_batch_formation_wait(batch_size, arrival_rate):
    """Calculate mean delay while a fixed-size batch fills.

    Parameters
    ----------
    batch_size : int or ndarray
        Positive number B of requests in a batch; the batch leaves when it is full, and not before.
    arrival_rate : Quantity or float or ndarray
        Positive arrival rate lambda.

    Returns
    -------
    Quantity or float or ndarray
        Mean wait for the batch to fill, in the rate's unit of time; a plain number for a plain rate.

    Raises
    ------
    ValueError
        If the batch size is not a positive whole number, or the rate not positive and finite.
    pint.DimensionalityError
        If the batch size carries a dimension, or the rate is not a rate.
    TypeError
        If an argument is not a number.

    Notes
    -----
    (B - 1) / (2 lambda): the first of a batch waits for B - 1 arrivals, the last for none. It excludes bursts,
    timeouts, priorities and the execution itself.

    Taught in lecture 02, section 2. Breaks first when the load falls, and nobody comes to fill the batch.

    References
    ----------
    Derivation above.

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_batch_formation_wait(8, 16 / ureg.s)
    <Quantity(0.21875, 'second')>
    """
    size = check_count("batch_size", batch_size, minimum=1)
    rate = check_quantity("arrival_rate", arrival_rate, RATE, POSITIVE, bare=True)
    mean_arrivals = (size - 1) / 2
    if not isinstance(rate, pint.Quantity):
        return plain(mean_arrivals / rate)
    unit = time_unit_of(rate)
    per_unit = rate.m_as(unit**-1)
    return rate._REGISTRY.Quantity(plain(mean_arrivals / per_unit), unit)


def calc_batch_knee(fixed_time, per_request_time):
    """Calculate where variable batch work equals fixed work.

    Parameters
    ----------
    fixed_time : Quantity
        Nonnegative time t0 that a batch takes whatever its size.
    per_request_time : Quantity
        Positive time treq that each request adds.

    Returns
    -------
    float or ndarray
        The batch size at the knee, not rounded: a scheduler needs a whole number.

    Raises
    ------
    ValueError
        If the fixed time is negative, the time per request not positive, or either infinite or NaN.
    pint.DimensionalityError
        If an argument is not a time.
    TypeError
        If an argument carries no unit, or is not a number.

    Notes
    -----
    t0 / treq. There the throughput B / (t0 + B treq) is half of its ceiling. It excludes queueing, capacity limits
    and kernels whose time is not affine in the batch size.

    Taught in lecture 02, section 1. Breaks first when arithmetic overtakes the reading of weights.

    References
    ----------
    Derivation above.

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_batch_knee(25 * ureg.ms, 800 * ureg.us)
    31.25
    """
    fixed = check_quantity("fixed_time", fixed_time, TIME, NONNEGATIVE)
    per_request = check_quantity("per_request_time", per_request_time, TIME, POSITIVE)
    return plain(fixed.magnitude / magnitude_in_unit_of(per_request, fixed))


def calc_batch_throughput_share(batch_size, fixed_time, per_request_time):
    """Calculate batch throughput as a fraction of its affine-model ceiling.

    Parameters
    ----------
    batch_size : int or float or ndarray
        Nonnegative number B of requests.
    fixed_time : Quantity
        Nonnegative time t0 that a batch takes whatever its size.
    per_request_time : Quantity
        Positive time treq that each request adds.

    Returns
    -------
    float or ndarray
        Share of the ceiling 1 / treq, between 0 and 1.

    Raises
    ------
    ValueError
        If an argument is outside its domain, or an empty batch takes no time (0 / 0).
    pint.DimensionalityError
        If a time is not a time, or the batch size carries a dimension.
    TypeError
        If a time carries no unit, or an argument is not a number.

    Notes
    -----
    B treq / (t0 + B treq). It excludes the forming of the batch, memory limits, and a time per request that
    changes with the batch.

    Taught in lecture 02, section 1. Breaks first when arithmetic overtakes the reading of weights.

    References
    ----------
    Derivation: B / (t0 + B treq) divided by its limit 1 / treq.

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_batch_throughput_share(32, 24 * ureg.ms, 0.75 * ureg.ms)
    0.5
    """
    size = check_number("batch_size", batch_size, NONNEGATIVE)
    fixed = check_quantity("fixed_time", fixed_time, TIME, NONNEGATIVE)
    per_request = check_quantity("per_request_time", per_request_time, TIME, POSITIVE)
    if np.any((np.asarray(size) == 0) & (np.asarray(fixed.magnitude) == 0)):
        raise ValueError(
            "batch_size and fixed_time must not both be 0: an empty batch that takes no time has no throughput; "
            "give a batch_size of at least 1"
        )
    with np.errstate(divide="ignore", over="ignore"):  # ratios before products, and an empty batch has share 0
        fixed_to_variable = np.divide(fixed.magnitude / magnitude_in_unit_of(per_request, fixed), size)
        return plain(1 / (1 + fixed_to_variable))


def calc_padding_waste_fraction(lengths):
    """Calculate idle slot share when a batch waits for its longest member.

    Parameters
    ----------
    lengths : iterable of float
        Nonempty, nonnegative lengths in one unit, with a positive maximum.

    Returns
    -------
    float
        Share of the reserved slot-time that nobody uses.

    Raises
    ------
    ValueError
        If there is no length, one is negative, infinite or NaN, or all are zero.
    pint.DimensionalityError
        If the lengths are not of one dimension.
    TypeError
        If it is not an iterable of numbers.

    Notes
    -----
    1 - sum(L) / (n max(L)): every member keeps its slot until the longest is done. It excludes continuous
    batching, which refills a slot at once.

    Taught in lecture 02, section 3. Breaks first when batching is continuous.

    References
    ----------
    Derivation above.

    Examples
    --------
    >>> calc_padding_waste_fraction([128, 4096])
    0.484375
    """
    if isinstance(lengths, str | bytes | dict) or not isinstance(lengths, Iterable):
        raise TypeError(f"lengths must be an iterable of numbers, such as [128, 4096]; got {lengths!r}")
    members = list(lengths)
    if any(isinstance(length, pint.Quantity) for length in members):
        members = _in_one_unit(members)
    members = [check_number(f"lengths[{index}]", length, NONNEGATIVE) for index, length in enumerate(members)]
    if not members:
        raise ValueError("lengths must hold at least one length, got none")
    longest = max(members)
    if longest == 0:
        raise ValueError("lengths must hold a positive length, got only zeros")
    # The waste of each member rather than 1 - the use: equal lengths waste exactly nothing, and no sum overflows.
    return math.fsum((longest - length) / longest for length in members) / len(members)


def _in_one_unit(lengths):
    """Return the magnitudes of quantities in the unit of the first."""
    bare = next((length for length in lengths if not isinstance(length, pint.Quantity)), None)
    if bare is not None:
        raise TypeError(f"lengths must all carry a unit, or none of them; got {bare!r} among quantities")
    return [magnitude_in_unit_of(length, lengths[0]) for length in lengths]


def calc_roofline_step_time(
    batch_size, weight_bytes, kv_bytes_per_request, flops_per_request, bandwidth, peak_flops_per_second
):
    """Calculate the least time that one decoding step of a batch can take.

    Parameters
    ----------
    batch_size : int or float or ndarray
        Nonnegative number B of requests.
    weight_bytes : Quantity
        Nonnegative size of the weights, read once per step.
    kv_bytes_per_request : Quantity
        Nonnegative size of one request's KV cache, read once per step.
    flops_per_request : float or ndarray
        Nonnegative floating-point operations of one token outside attention: about twice the number of parameters.
    bandwidth : Quantity
        Positive memory bandwidth.
    peak_flops_per_second : Quantity
        Positive peak rate of floating-point operations.

    Returns
    -------
    Quantity
        Time of a step, in seconds.

    Raises
    ------
    ValueError
        If an argument is outside its domain.
    pint.DimensionalityError
        If a size is not in bytes, the bandwidth not in bytes per time, or the peak not a rate.
    TypeError
        If a size, the bandwidth or the peak carries no unit, or an argument is not a number.

    Notes
    -----
    max(weights / bandwidth, B flops / peak) + B kv / bandwidth. The matrix products wait for weights or for arithmetic,
    whichever takes longer; attention reads its KV cache at an intensity of about one operation per byte whatever the
    batch, so it always waits for memory. That gives two knees: where arithmetic overtakes the weights (reading
    ``peak / bandwidth`` operations per byte), and where KV bytes overtake weight bytes. Below the first, the step is
    affine: ``fixed_time = weights / bandwidth`` and ``per_request_time = kv / bandwidth``. It excludes prefill,
    communication, kernel launch, and everything that keeps hardware below its peak.

    Taught in lecture 02, section 5. Breaks first when prompts are prefilled in the same step.

    References
    ----------
    Austin et al. (2025), How to Scale Your Model, part 7. https://jax-ml.github.io/scaling-book/inference/

    Examples
    --------
    >>> from serving_lib import ureg
    >>> hardware = {"bandwidth": 8 * 0.82 * ureg.TB / ureg.s, "peak_flops_per_second": 8 * 197e12 * ureg.flop / ureg.s}
    >>> calc_roofline_step_time(64, 26 * ureg.GB, 6.7 * ureg.GB, 26e9, **hardware).to("ms").round(2)
    <Quantity(69.33, 'millisecond')>
    """
    size = check_number("batch_size", batch_size, NONNEGATIVE)
    flops = check_number("flops_per_request", flops_per_request, NONNEGATIVE)
    per_second = check_quantity("bandwidth", bandwidth, BYTES_PER_SECOND, POSITIVE).m_as("byte/second")
    peak = check_quantity("peak_flops_per_second", peak_flops_per_second, RATE, POSITIVE).m_as("1/second")
    weights = check_quantity("weight_bytes", weight_bytes, BYTES, NONNEGATIVE).m_as("byte") / per_second
    kv = check_quantity("kv_bytes_per_request", kv_bytes_per_request, BYTES, NONNEGATIVE).m_as("byte") / per_second
    time = np.maximum(weights, size * flops / peak) + size * kv
    return registry_of(weight_bytes).Quantity(plain(time), "second")


@dataclass(frozen=True, eq=False)
class Chain:
    """The long run of a birth-death chain, seen by its requests.

    Parameters
    ----------
    probabilities : ndarray, shape (capacity + 1,)
        Share of the time with n requests in the system.
    blocking : float
        Share of the arrivals that find the system full, and are lost.
    throughput : float or Quantity
        Requests served per time.
    in_system, in_service : float
        Mean number of requests in the system, and of those in service.
    time_in_system, wait : float or Quantity
        Mean time in the system of a request that is let in, and its part before service.
    """

    probabilities: np.ndarray
    blocking: float
    throughput: float
    in_system: float
    in_service: float
    time_in_system: float
    wait: float


def birth_death_chain(arrival_rate, service_rates, slots):
    """Solve a queue whose completion rate depends on the number of requests in it.

    Parameters
    ----------
    arrival_rate : Quantity or float
        Positive Poisson arrival rate lambda.
    service_rates : ndarray or Quantity, shape (capacity,)
        Positive completion rates mu(1), mu(2), ... of the whole system with 1, 2, ... requests in it. Arrivals that
        find `capacity` requests are lost. Both rates carry units, or neither does.
    slots : int
        Positive number of requests in service at once; the rest wait.

    Returns
    -------
    Chain
        Probabilities and means, in the arrival rate's unit of time.

    Raises
    ------
    ValueError
        If an argument is outside its domain, or there is no service rate.
    pint.DimensionalityError
        If a rate is not a rate, or `slots` carries a dimension.
    TypeError
        If only one of the rates carries a unit, or an argument is not a number.

    Notes
    -----
    p(n) is proportional to the product of lambda / mu(k) for k = 1..n. The products carry their power of two apart, so
    that no capacity and no overload makes them overflow, and every mean is a sum of positive terms: small
    probabilities and waits are as accurate as large ones. Memoryless arrivals and services are assumed.

    References
    ----------
    Kleinrock (1975), Queueing Systems, volume 1, chapter 3.

    Examples
    --------
    M/M/2/5: two servers, each completing 2 per second.

    >>> chain = birth_death_chain(3.0, np.minimum(np.arange(1, 6), 2) * 2.0, slots=2)
    >>> round(chain.blocking, 4), round(chain.in_system, 4), round(chain.wait, 4)
    (0.0851, 2.006, 0.2309)
    """
    bare = not any(isinstance(rate, pint.Quantity) for rate in (arrival_rate, service_rates))
    arrival = check_quantity("arrival_rate", arrival_rate, RATE, POSITIVE, bare=bare)
    service = check_quantity("service_rates", service_rates, RATE, POSITIVE, bare=bare)
    slots = check_count("slots", slots, minimum=1)
    per_time = None if bare else time_unit_of(arrival) ** -1
    if not bare:
        service = in_registry_of(service, arrival).m_as(per_time)
        arrival = arrival.m_as(per_time)
    if np.ndim(arrival) != 0 or np.ndim(service) != 1 or len(service) == 0:
        raise ValueError(
            "arrival_rate must be one rate and service_rates a one-dimensional array of at least one, "
            f"got shapes {np.shape(arrival)} and {np.shape(service)}"
        )

    mantissa, exponent, products = 1.0, 0, [(1.0, 0)]
    for ratio in (arrival / service).tolist():
        mantissa, shift = math.frexp(mantissa * ratio)
        exponent += shift
        products.append((mantissa, exponent))
    mantissas, exponents = np.array(products).T
    weights = np.ldexp(mantissas, (exponents - exponents.max()).astype(int))
    probabilities = weights / weights.sum()

    number = np.arange(len(probabilities))
    admitted = float(arrival * probabilities[:-1].sum())
    in_system = float(number @ probabilities)
    waiting = float(np.maximum(number - slots, 0) @ probabilities)
    times = in_system / admitted, waiting / admitted
    if not bare:
        quantity = arrival_rate._REGISTRY.Quantity
        admitted, times = quantity(admitted, per_time), [quantity(time, per_time**-1) for time in times]
    return Chain(
        probabilities=probabilities,
        blocking=float(probabilities[-1]),
        throughput=admitted,
        in_system=in_system,
        in_service=float(np.minimum(number, slots) @ probabilities),
        time_in_system=times[0],
        wait=times[1],
    )


def affine_batch_chain(arrival_rate, fixed_time, per_request_time, max_batch, capacity):
    """Solve a server that works on up to `max_batch` requests at once, in a time affine in their number.

    Parameters
    ----------
    arrival_rate : Quantity or float
        Positive Poisson arrival rate lambda.
    fixed_time : Quantity or float
        Nonnegative time t0 that serving a batch takes whatever its size.
    per_request_time : Quantity or float
        Positive time treq that each request of the batch adds. The three carry units, or none does.
    max_batch : int
        Positive largest batch.
    capacity : int
        Positive most requests in the system, in service and waiting; arrivals beyond it are lost.

    Returns
    -------
    Chain
        Probabilities and means, in the arrival rate's unit of time.

    Raises
    ------
    ValueError, pint.DimensionalityError, TypeError
        As for `birth_death_chain`.

    Notes
    -----
    mu(n) = b / (t0 + b treq) with b = min(n, max_batch): the throughput of `calc_batch_throughput_share`, at the batch
    that n requests form. It joins the knee of the batch to the queue in front of it. Continuous batching with
    memoryless work is assumed; batches that wait to fill, and memory limits, are excluded.

    Taught in lecture 02, section 6. Breaks first when prefills stall the steps.

    References
    ----------
    `birth_death_chain`; the same model stands behind the autoscaler of llm-d (llm-inferno/queue-analysis).

    Examples
    --------
    >>> from serving_lib import ureg
    >>> chain = affine_batch_chain(40 / ureg.s, 50 * ureg.ms, 20 * ureg.ms, max_batch=32, capacity=256)
    >>> round(chain.in_service, 2), chain.time_in_system.to("ms").round(1)
    (13.84, <Quantity(352.3, 'millisecond')>)
    """
    bare = not any(isinstance(value, pint.Quantity) for value in (arrival_rate, fixed_time, per_request_time))
    fixed = check_quantity("fixed_time", fixed_time, TIME, NONNEGATIVE, bare=bare)
    per_request = check_quantity("per_request_time", per_request_time, TIME, POSITIVE, bare=bare)
    max_batch = check_count("max_batch", max_batch, minimum=1)
    batch = np.minimum(np.arange(1, check_count("capacity", capacity, minimum=1) + 1), max_batch)
    if bare:
        return birth_death_chain(arrival_rate, batch / (fixed + batch * per_request), max_batch)
    batch_time = fixed.magnitude + batch * magnitude_in_unit_of(per_request, fixed)
    service_rates = fixed._REGISTRY.Quantity(batch / batch_time, fixed.units**-1)
    return birth_death_chain(arrival_rate, service_rates, max_batch)

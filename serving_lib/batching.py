"""Batching: what a batch costs, what it brings, and how long it takes to fill."""

import math
from collections.abc import Iterable

import numpy as np
import pint

from serving_lib.units import (
    NONNEGATIVE,
    POSITIVE,
    RATE,
    TIME,
    check_count,
    check_number,
    check_quantity,
    magnitude_in_unit_of,
    plain,
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

"""Units and argument checks: the one registry, and the words in which every formula's domain is written.

A check takes the argument's name and value, and returns the value ready for arithmetic, or raises an error that says
which argument, what it must be, what it was, and what to do. Numbers may be scalars or NumPy arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import pint

ureg = pint.get_application_registry()
"""The one registry of the workbook (pint's application registry, so any ``pint.Quantity`` works)."""

for _unit, _dimension in {"request": "[]", "token": "[]", "page": "[]", "flop": "[]", "USD": "[currency]"}.items():
    if _unit not in ureg:
        ureg.define(f"{_unit} = {_dimension}")


@dataclass(frozen=True)
class Domain:
    """A set of numbers, with the words an error uses for it."""

    text: str
    contains: Callable


POSITIVE = Domain("positive and finite", lambda x: (x > 0) & (x < np.inf))
NONNEGATIVE = Domain("nonnegative and finite", lambda x: (x >= 0) & (x < np.inf))
NONNEGATIVE_OR_INFINITE = Domain("nonnegative", lambda x: x >= 0)
FINITE = Domain("finite", np.isfinite)
FRACTION = Domain("in [0, 1)", lambda x: (x >= 0) & (x < 1))
PROBABILITY = Domain("in [0, 1]", lambda x: (x >= 0) & (x <= 1))
OPEN_FRACTION = Domain("in (0, 1)", lambda x: (x > 0) & (x < 1))


@dataclass(frozen=True)
class Dimension:
    """A physical dimension, with the words and the example an error uses for it."""

    text: str
    unit: str
    example: str


TIME = Dimension("a time", "second", "4 * ureg.ms")
RATE = Dimension("a rate", "1/second", "2 / ureg.s")
BYTES = Dimension("a size in bytes", "byte", "26 * ureg.GB")
BYTES_PER_SECOND = Dimension("a bandwidth in bytes", "byte/second", "3.35 * ureg.TB / ureg.s")


def check_number(name, value, domain):
    """Return a dimensionless number, or array of numbers, that lies in a domain.

    Parameters
    ----------
    name : str
        The argument's name, for the error.
    value : float, int, ndarray or dimensionless Quantity
        The argument; ``80 * ureg.percent`` is 0.8.
    domain : Domain
        The numbers it may be.

    Returns
    -------
    float, int or ndarray
        The plain number: an int stays an exact int.

    Raises
    ------
    TypeError
        If it is not a number (a string, a bool, None, a list).
    pint.DimensionalityError
        If it carries a dimension.
    ValueError
        If it is outside the domain. NaN is outside every domain.

    Examples
    --------
    >>> check_number("utilization", 80 * ureg.percent, FRACTION)
    0.8
    >>> check_number("utilization", 1.2, FRACTION)
    Traceback (most recent call last):
    ...
    ValueError: utilization must be in [0, 1), got 1.2
    """
    if isinstance(value, pint.Quantity):
        if not value.dimensionless:
            raise _dimensionality_error(name, value, "", "a plain number without a unit")
        value = value.m_as("")
    number = _as_real(name, value)
    _check_domain(name, number, domain)
    return number


def check_count(name, value, minimum):
    """Return a whole number (or an array of them) that is at least `minimum`.

    Parameters
    ----------
    name : str
        The argument's name, for the error.
    value : int, ndarray, or dimensionless Quantity
        The argument. A float such as 4.0 counts as 4; 2.5 is refused, never rounded.
    minimum : int
        The smallest value it may be.

    Returns
    -------
    int or ndarray
        The count.

    Raises
    ------
    TypeError, pint.DimensionalityError
        As for `check_number`.
    ValueError
        If it is not whole, or below the minimum.

    Examples
    --------
    >>> check_count("draft_length", 4, minimum=0)
    4
    >>> check_count("draft_length", 2.5, minimum=0)
    Traceback (most recent call last):
    ...
    ValueError: draft_length must be a whole number of at least 0, got 2.5
    """
    domain = Domain(
        f"a whole number of at least {minimum}", lambda x: (x >= minimum) & (x < np.inf) & (np.floor(x) == x)
    )
    number = check_number(name, value, domain)
    if isinstance(number, np.ndarray):
        return number
    return int(number)


def check_quantity(name, value, dimension, domain, bare=False):
    """Return a Quantity of a given dimension whose magnitude lies in a domain.

    Parameters
    ----------
    name : str
        The argument's name, for the error.
    value : Quantity, or a plain number where `bare` allows it
        The argument, scalar or array, of any pint registry.
    dimension : Dimension
        What it must measure.
    domain : Domain
        What its magnitude must be, in its own unit.
    bare : bool
        Whether a plain number may stand for it.

    Returns
    -------
    Quantity, float, int or ndarray
        The argument, in its own unit and registry.

    Raises
    ------
    TypeError
        If it is not a number, or is a plain number where a unit is needed.
    pint.DimensionalityError
        If it measures something else.
    ValueError
        If it is outside the domain.

    Examples
    --------
    >>> check_quantity("fixed_time", 4 * ureg.ms, TIME, NONNEGATIVE)
    <Quantity(4, 'millisecond')>
    >>> check_quantity("fixed_time", 4, TIME, NONNEGATIVE)
    Traceback (most recent call last):
    ...
    TypeError: fixed_time needs a time unit, such as 4 * ureg.ms; got the plain number 4
    """
    if not isinstance(value, pint.Quantity):
        number = _as_real(name, value)
        if not bare:
            kind = dimension.text.removeprefix("a ").removeprefix("an ")
            raise TypeError(f"{name} needs a {kind} unit, such as {dimension.example}; got the plain number {value}")
        _check_domain(name, number, domain)
        return number
    # To pint a byte is just the number 8: a size must name its unit, or 26e9 would be read as bits.
    names_bytes = any(unit.endswith(("byte", "bit")) for unit, _ in value.unit_items())
    if not value.is_compatible_with(dimension.unit) or (dimension.unit.startswith("byte") and not names_bytes):
        raise _dimensionality_error(name, value, dimension.unit, f"{dimension.text}, such as {dimension.example}")
    magnitude = _as_real(name, value.magnitude)
    _check_domain(name, magnitude, domain, unit=f" {value.units:~}")
    return value._REGISTRY.Quantity(magnitude, value.units)


def magnitude_in_unit_of(value, reference):
    """Return the magnitude of a Quantity in the unit of another, whatever registries the two come from.

    Parameters
    ----------
    value, reference : Quantity
        Two quantities of one dimension.

    Returns
    -------
    float or ndarray
        The magnitude of `value`.

    Examples
    --------
    >>> magnitude_in_unit_of(2 * ureg.s, 1 * ureg.ms)
    2000.0
    """
    value = in_registry_of(value, reference)
    return value.m_as(reference.units)


def in_registry_of(value, reference):
    """Return a Quantity as one of the registry that another Quantity belongs to.

    Parameters
    ----------
    value, reference : Quantity
        The quantity to carry over, and one of the registry it goes to.

    Returns
    -------
    Quantity
        The same magnitude and unit.

    Examples
    --------
    >>> import pint
    >>> mine = pint.UnitRegistry()
    >>> in_registry_of(2 * ureg.s, 1 * mine.ms) + 1 * mine.s
    <Quantity(3, 'second')>
    """
    if value._REGISTRY is reference._REGISTRY:
        return value
    return reference._REGISTRY.Quantity(value.magnitude, str(value.units))


def time_unit_of(rate):
    """Return the unit of time that a rate counts by: the minute of ``5 / minute``, the second of ``5 Hz``.

    Parameters
    ----------
    rate : Quantity
        Something per time.

    Returns
    -------
    Unit
        A unit of time, in the rate's registry.

    Examples
    --------
    >>> time_unit_of(5 * ureg.request / ureg.minute)
    <Unit('minute')>
    """
    registry = rate._REGISTRY
    for unit, power in rate.unit_items():
        if power == -1 and registry.Unit(unit).is_compatible_with("second"):
            return registry.Unit(unit)
    return registry.Unit("second")


def label_of(rate):
    """Return the dimensionless part of a rate's unit: the token of ``5 token / s``.

    Parameters
    ----------
    rate : Quantity
        Something per time.

    Returns
    -------
    Unit
        Dimensionless, in the rate's registry.

    Examples
    --------
    >>> label_of(5 * ureg.token / ureg.s)
    <Unit('token')>
    """
    registry = rate._REGISTRY
    label = registry.Unit("")
    for unit, power in rate.unit_items():
        if registry.Unit(unit).dimensionless:
            label *= registry.Unit(unit) ** power
    return label


def registry_of(*values):
    """Return the registry of the first argument that is a Quantity, and ours where none is.

    Parameters
    ----------
    *values : Quantity or float
        The arguments of a formula.

    Returns
    -------
    pint.UnitRegistry

    Examples
    --------
    >>> registry_of(2, 3.0) is ureg
    True
    """
    return next((value._REGISTRY for value in values if isinstance(value, pint.Quantity)), ureg)


def plain(value):
    """Return a Python float for a scalar of any kind, and an array as it is.

    Parameters
    ----------
    value : float, NumPy scalar or ndarray
        What a formula computed.

    Returns
    -------
    float or ndarray

    Examples
    --------
    >>> import numpy as np
    >>> plain(np.float64(0.5))
    0.5
    """
    return float(value) if np.ndim(value) == 0 else value


def _as_real(name, value):
    """Return a Python int or float, or a numeric array; refuse everything else."""
    if isinstance(value, np.ndarray) and value.ndim > 0:
        if value.dtype.kind not in "iuf":
            raise TypeError(f"{name} must be an array of numbers, got dtype {value.dtype}")
        return value
    if isinstance(value, np.ndarray | np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        mend = "; wrap it in numpy.array" if isinstance(value, list | tuple) else ""
        raise TypeError(f"{name} must be a number, got {_short(value)} ({type(value).__name__}){mend}")
    try:
        as_float = float(value)
    except OverflowError:  # only an int, or a ratio of ints, can be too large for a float
        raise ValueError(f"{name} must be below 1.8e308, got one that is larger") from None
    return int(value) if isinstance(value, Integral) else as_float


def _check_domain(name, number, domain, unit=""):
    """Raise a ValueError that shows the first number outside the domain."""
    inside = domain.contains(number)
    if np.all(inside):
        return
    if np.ndim(number) == 0:
        raise ValueError(f"{name} must be {domain.text}, got {number}{unit}")
    where = tuple(int(i) for i in np.argwhere(~inside)[0])
    at = where[0] if len(where) == 1 else where
    raise ValueError(f"{name} must be {domain.text}, got {number[where]}{unit} at index {at}")


def _dimensionality_error(name, value, unit, must_be):
    """Return pint's own error, with the argument's name and the mend."""
    wanted = value._REGISTRY.Unit(unit)
    return pint.DimensionalityError(
        value.units,
        wanted,
        value.dimensionality,
        wanted.dimensionality,
        extra_msg=f": {name} must be {must_be}; got {_short(value)}",
    )


def _short(value):
    """Return what a value looks like, cut to a length that fits an error message."""
    text = str(value) if isinstance(value, pint.Quantity) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

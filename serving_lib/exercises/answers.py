"""What a learner passed to `check`, read into plain values that can be compared.

Everything that can go wrong with a foreign object goes wrong inside `read`; what comes out is made of plain floats,
strings and tuples of our own, so the code that judges it needs no guards.
"""

import math
import numbers
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pint

LONGEST = 1000  # values in one answer; more is a slip, and reading them would take long


class Unreadable(Exception):  # noqa: N818 - the reader's value is at fault, not the program
    """The answer is nothing that can be compared. The message tells the learner why."""


class Missing:
    """The place of an answer that still holds `...`."""


@dataclass(frozen=True)
class Number:
    """A number in root units (second, bit, meter, ...), and the powers of those units."""

    value: float
    dimension: tuple[tuple[str, float], ...] = ()
    whole: bool = False


Reading = Number | str | Missing | tuple | dict


def read(answer: object) -> Reading:
    """Read any object into a `Number`, a string, `Missing`, a tuple of these, or a dictionary of these.

    Parameters
    ----------
    answer : object
        Anything at all: numbers of every kind, Quantities of any pint registry, arrays, lists, text.

    Returns
    -------
    Number, str, Missing, tuple or dict

    Raises
    ------
    Unreadable
        With a sentence for the learner. No other exception leaves this function, whatever the object does.

    Examples
    --------
    >>> read(3)
    Number(value=3.0, dimension=(), whole=True)
    >>> read(2 / pint.UnitRegistry().ms)
    Number(value=2000.0, dimension=(('second', -1),), whole=False)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _read(answer, nesting=2)
    except Unreadable:
        raise
    except Exception:
        # The object's own methods failed: __float__, __array__, __len__, ...
        raise Unreadable("That object cannot be read as an answer.") from None


def _read(answer, nesting):
    if answer is ...:
        return Missing()
    if answer is None:
        raise Unreadable("That is None. A function without return gives None.")
    if isinstance(answer, bool | np.bool_):
        raise Unreadable("That is True or False.")
    if isinstance(answer, str):
        return str.__str__(answer).strip()
    if isinstance(answer, bytes | bytearray):
        raise Unreadable("Those are bytes.")
    if isinstance(answer, pint.Unit):
        answer = 1 * answer
    if isinstance(answer, pint.Quantity):
        return _read_quantity(answer)
    if isinstance(answer, numbers.Number | np.number):
        return Number(_float(answer), whole=isinstance(answer, numbers.Integral))
    if isinstance(answer, Mapping):
        return {str(name): _read(value, _inner(nesting)) for name, value in _short(answer).items()}
    if isinstance(answer, list | tuple | range):
        return tuple(_read(value, _inner(nesting)) for value in _short(answer))
    if callable(answer):
        raise Unreadable("That is a function. Call it: write its arguments in parentheses after its name.")
    if hasattr(answer, "__array__"):
        return _read(_short(np.atleast_1d(np.asarray(answer))).tolist(), nesting)
    if hasattr(answer, "__float__"):
        return Number(_float(answer))
    raise Unreadable(f"That is of type {type(answer).__name__}.")


def _read_quantity(answer):
    magnitude = answer.magnitude
    if np.ndim(magnitude) > 0:
        return tuple(_read_quantity(type(answer)(value, answer.units)) for value in _short(magnitude))
    _float(magnitude)  # refuses nan, text and complex numbers in their own words
    try:
        root = answer.to_root_units()
    except TypeError:  # a Decimal magnitude in a registry of floats
        root = type(answer)(_float(magnitude), answer.units).to_root_units()
    dimension = tuple(sorted((unit, power) for unit, power in root.unit_items() if not _is_label(root, unit)))
    return Number(_float(root.magnitude), dimension)


def _is_label(quantity, unit):
    """Whether a unit only says what is counted (token, request): 5 token/s is an answer in 1/s. Bits are measured."""
    return unit != "bit" and type(quantity)(1, unit).dimensionless


def _float(number):
    if isinstance(number, complex | np.complexfloating):
        if number.imag != 0:
            raise Unreadable("That is a complex number.")
        number = number.real
    if isinstance(number, str | bytes):
        raise Unreadable("That is text.")
    try:
        value = float(number)
    except OverflowError:
        raise Unreadable("That number is too large to be meant: it has over 300 digits.") from None
    if math.isnan(value):
        raise Unreadable("That is nan, not a number: somewhere on the way infinity or nothing entered the calculation.")
    return value


def _short(answer):
    if len(answer) > LONGEST:
        raise Unreadable(f"That holds more than {LONGEST} values.")
    return answer


def _inner(nesting):
    if nesting == 0:
        raise Unreadable("Those are lists inside lists.")
    return nesting - 1


def same(given: Reading, expected: Reading, tolerance: float) -> bool:
    """Whether two readings agree within a relative tolerance (exactly where a whole number is expected).

    Parameters
    ----------
    given, expected : Number, str, Missing, tuple or dict
    tolerance : float
        Relative to the expected number; to the largest of a sequence where zero is expected. Of a dictionary only the
        parts of `expected` are compared.

    Returns
    -------
    bool

    Examples
    --------
    >>> same(Number(2.02), Number(2.0), 0.01), same(Number(2.03), Number(2.0), 0.01)
    (True, False)
    """
    if isinstance(expected, Number):
        return _same_number(given, expected, tolerance, scale=abs(expected.value))
    if isinstance(expected, str):
        return isinstance(given, str) and given.casefold() == expected.casefold()
    if isinstance(expected, tuple):
        if not isinstance(given, tuple) or len(given) != len(expected):
            return False
        scale = max(abs(number.value) for number in expected)
        return all(_same_number(g, e, tolerance, scale) for g, e in zip(given, expected, strict=True))
    return isinstance(given, dict) and all(
        name in given and same(given[name], part, tolerance) for name, part in expected.items()
    )


def _same_number(given, expected, tolerance, scale):
    if not isinstance(given, Number) or given.dimension != expected.dimension:
        return False
    if expected.whole:
        return math.isclose(given.value, expected.value, rel_tol=1e-9)
    if expected.value == 0:
        return abs(given.value) <= tolerance * (scale or 1.0)
    return math.isclose(given.value, expected.value, rel_tol=tolerance)


def show(value: object, digits: int = 4) -> str:
    """Print a number, a Quantity or a sequence of them rounded, the same on every platform.

    Parameters
    ----------
    value : number, Quantity, str, tuple or dict
    digits : int
        Significant digits.

    Returns
    -------
    str

    Examples
    --------
    >>> ureg = pint.UnitRegistry()
    >>> show(2.6974149 / ureg.s), show(343.597 * ureg.GB), show(122529.3), show((1.0, 0.0))
    ('2.697/s', '343.6 GB', '122,529', '(1, 0)')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {show(part, digits)}" for name, part in value.items())
    if isinstance(value, pint.Quantity):
        unit = f"{value.units:~C}".replace("**", "^")
        return show(value.magnitude, digits) + (unit[1:] if unit.startswith("1/") else f" {unit}").rstrip()
    if isinstance(value, list | tuple) and value and isinstance(value[0], pint.Quantity):
        return show([each.m_as(value[0].units) for each in value] * value[0].units, digits)
    if isinstance(value, list | tuple | np.ndarray):
        return f"({', '.join(show(part, digits) for part in value)})"
    if isinstance(value, numbers.Integral) or 10 ** (digits - 1) <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{float(value) + 0.0:,.{digits}g}"

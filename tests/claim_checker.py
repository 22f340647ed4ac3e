"""Numbers in prose that carry their own proof: `4.605<!-- = calc_exponential_quantile_factor(0.99) -->`.

A claim is an HTML comment that starts with `=`, right after the number (and its unit) in a markdown cell. Readers do
not see it; `check_claims` evaluates it and compares at the printed precision. What may stand before a claim:

- `4.605`, `.518`, `-3`, `1,234.5`, `3e-3`, `240x`, `78 %` (of a share: 0.78);
- words: `Five times`, `half`, `it doubles again`;
- a number with a unit, where the expression is a Quantity: `434 ms`, `6.4 requests/s`, `42.9 GB`;
- several numbers, where the expression is a sequence: `5.0 / 1.75 / 1.25`;
- anything at all, where the expression is true or false: `more than twice<!-- = ratio > 2 -->`.

An expression sees the public names of serving_lib, `np`, `ureg`, `plots` and `exercises` (with their modules, so that a
helper function written there can be called: `exercises.queueing.a_p99_promise()["rate"]`). It does not see the
notebook's variables, so no order of cells can change what it means.
"""

import math
import re
from dataclasses import dataclass
from importlib import import_module
from numbers import Real

import numpy as np
import pint

import serving_lib
from serving_lib.exercises.framework import LECTURES

CLAIM = re.compile(r"<!--\s*=(?P<expression>.*?)-->", flags=re.DOTALL)
SLIP = re.compile(r"<!--(?!\s*=)[^>]*\bcalc_\w+\(.*?-->", flags=re.DOTALL)

WORDS = {"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}
WORDS |= {"ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16}
WORDS |= {"seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "once": 1, "twice": 2, "thrice": 3}
WORDS |= {"double": 2, "doubles": 2, "doubled": 2, "triple": 3, "triples": 3, "tripled": 3}
FRACTIONS = {"half": 1 / 2, "halves": 1 / 2, "third": 1 / 3, "quarter": 1 / 4, "fifth": 1 / 5, "tenth": 1 / 10}

NUMBER = re.compile(
    r"(?<![\w.,])(?P<digits>[-\N{MINUS SIGN}]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+))"
    r"(?P<exponent>e[-+]?\d+|\s*(?:\\times|\N{MULTIPLICATION SIGN})\s*10\^\{?-?\d+\}?)?(?P<times>x\b)?(?![\d])"
    r"|\b(?P<word>" + "|".join([*WORDS, *FRACTIONS]) + r")\b",
    flags=re.IGNORECASE,
)
MOST_WORDS_BETWEEN = 4  # from a number to its claim


@dataclass(frozen=True)
class Printed:
    """A number as it is printed: its value, half of its last digit, and the unit after it."""

    text: str
    value: float
    half_digit: float
    unit: str = ""


def namespace() -> dict:
    """Return the names that a claim may use."""
    names = {name: value for name, value in vars(serving_lib).items() if not name.startswith("_")}
    exercises, plots = import_module("serving_lib.exercises"), import_module("serving_lib.plots")
    for lecture in LECTURES:
        import_module(f"serving_lib.exercises.{lecture}")
    return names | {"np": np, "math": math, "plots": plots, "exercises": exercises}


def check_claims(notebook, names) -> list[str]:
    """Return every claim of a notebook that does not hold, with what the author should write."""
    problems = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "markdown":
            problems += [f"cell {number}: {problem}" for problem in check_text(cell.source, names)]
    return problems


def count_claims(notebook) -> int:
    """Return how many claims a notebook makes."""
    return sum(len(CLAIM.findall(cell.source)) for cell in notebook.cells if cell.cell_type == "markdown")


def check_text(text, names) -> list[str]:
    """Return the claims of one text that do not hold."""
    problems = [f"{slip[0]} is no claim: start it with <!-- = ..." for slip in SLIP.finditer(text)]
    start = 0
    for claim in CLAIM.finditer(text):
        problem = _check_claim(text[start : claim.start()], " ".join(claim["expression"].split()), names)
        start = claim.end()
        if problem:
            problems.append(problem)
    return problems


def _check_claim(before, expression, names):
    """Compare what is printed before a claim with the value of its expression; None if they agree."""
    try:
        value = eval(expression, dict(names))  # our own notebooks
    except Exception as error:
        return f"the claim {expression} cannot be evaluated: {type(error).__name__}: {error}"
    if isinstance(value, bool | np.bool_):
        return None if value else f"the claim {expression} is false"
    paragraph = re.split(r"\n\s*\n", before)[-1]
    if len(re.findall(r"(?<!\\)\$", paragraph)) % 2:
        return f"the claim {expression} stands inside $...$: put it behind the closing $"
    values = list(value) if np.ndim(_magnitude(value)) > 0 else [value]
    printed = printed_numbers(paragraph, len(values))
    if len(printed) < len(values):
        return f"no number stands before the claim {expression}, which is {_show(value, None)}"
    for number, single in zip(printed, values, strict=True):
        problem = _compare(number, single, expression)
        if problem:
            return problem
    return None


def printed_numbers(text, count=1) -> list[Printed]:
    """Return the last numbers of a text, as many as asked for; the unit behind the last belongs to all of them.

    Examples
    --------
    >>> printed_numbers("From 1,234.5 s to 78 %")
    [Printed(text='78 %', value=0.78, half_digit=0.005, unit='%')]
    """
    text = re.sub(r"[*_$`\\]+(?!times)", "", text)
    matches = list(NUMBER.finditer(text))[-count:]
    if not matches or len(text[matches[-1].end() :].split()) > MOST_WORDS_BETWEEN:
        return []
    unit = text[matches[-1].end() :].strip().rstrip(".,;:")
    return [_printed(match, unit) for match in matches]


def _printed(match, unit):
    if match["word"]:
        word = match["word"].lower()
        value = WORDS.get(word, FRACTIONS.get(word))
        return Printed(match[0], value, 0.5 if word in WORDS else 0.05 * value, unit)
    digits = match["digits"].replace(",", "").replace("\N{MINUS SIGN}", "-")
    exponent = int(re.sub(r".*(?:e|\^)\{?([-+]?\d+)\}?", r"\1", match["exponent"] or "e0", flags=re.DOTALL))
    decimals = len(digits.partition(".")[2])
    scale = 10.0**exponent * (0.01 if _is_percent(unit) else 1)
    text = f"{match[0]} %" if _is_percent(unit) else match[0]
    return Printed(text, float(digits) * scale, 0.5 * 10.0**-decimals * scale, unit)


def _compare(printed, value, expression):
    if isinstance(value, pint.Quantity):
        unit = None if _is_percent(printed.unit) else _unit(printed.unit)
        if unit is not None and value.is_compatible_with(unit):
            value = value.m_as(unit)
        elif value.dimensionless:
            value = value.m_as("")
        else:
            fault = "write its unit" if unit is None else "it has another dimension than the unit"
            return f'the claim {expression} is {value:.6g~C}: {fault} behind "{printed.text}"'
    if not isinstance(value, Real) or math.isnan(value):
        return f"the claim {expression} is {value!r}, not a number"
    if abs(value - printed.value) <= printed.half_digit * (1 + 1e-6):
        return None
    return f'"{printed.text}" is printed, but {expression} is {value:.10g}: write {_show(value, printed)}'


def _unit(text):
    """Return the unit that starts a text, or None: "ms on average" is ms."""
    words = text.split()
    for count in range(min(len(words), 3), 0, -1):
        try:
            return serving_lib.ureg.parse_units(" ".join(words[:count]))
        except Exception:  # pint raises many kinds for text that is no unit
            continue
    return None


def _magnitude(value):
    return value.magnitude if isinstance(value, pint.Quantity) else value


def _show(value, printed):
    """Return a value at the precision of what is printed."""
    if printed is None:
        return str(value)
    scale, percent = (100, " %") if _is_percent(printed.unit) else (1, "")
    decimals = max(0, -math.floor(math.log10(2 * printed.half_digit * scale) + 0.5))
    return f"{value * scale:,.{decimals}f}{percent}"


def _is_percent(unit):
    return unit.startswith(("%", "percent"))

"""Exercises that answer: `check` an answer, ask for a `hint`, read the `solution`.

An exercise is one `Exercise` in the tuple `EXERCISES` of its lecture's module. The right answer and every misconception
are functions that compute their value with the library, so no number here can drift from the formulas.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from textwrap import fill
from types import SimpleNamespace

from serving_lib.exercises.answers import Missing, Number, Reading, Unreadable, read, same, show

LECTURES = ("start", "queueing", "batching", "speculative", "paged_kv", "capacity")

NOT_ATTEMPTED, RIGHT, WRONG, OPEN = "not attempted", "right", "wrong", "open"

HIDE_SOLUTIONS = "SERVING_WORKBOOK_HIDE_SOLUTIONS"
"""Environment variable that a course sets (to anything) until the exercises have been handed in."""


@dataclass(frozen=True)
class Misconception:
    """A wrong answer that people give for a reason.

    Parameters
    ----------
    name : str
        A short name of the thought, such as "mean instead of p99".
    value : callable
        From the exercise's numbers to what the thought produces: like the right answer, or a dictionary of some parts.
    because : str
        The sentence that the learner reads.
    """

    name: str
    value: Callable[[SimpleNamespace], object]
    because: str


@dataclass(frozen=True)
class Exercise:
    """A question with a computed answer.

    Parameters
    ----------
    key : str
        Lecture and number, "queueing.2".
    question : str
        A template: `{service}` stands for the number of that name, rounded to 4 digits, `{service:2}` to 2.
    asks : str
        What replaces the dots: "a rate, such as 1 / ureg.s".
    numbers : callable
        Computes every number of the exercise, given and derived: a dictionary from names to values. The question, the
        hints and the worked solution take their numbers from here, so they cannot disagree.
    answer : callable or None
        From the numbers (as attributes) to the right answer. Its type says how answers are compared: a Quantity (any
        compatible unit), a float, an int (exactly), a string (one of `options`), a tuple of numbers, or a dictionary of
        named parts (each one of these; the learner passes them in this order). None for an open question, which has a
        `rubric` instead.
    hints : tuple of str
        Templates, from a nudge to nearly the answer.
    worked : str
        The worked solution, a template. A line that is indented more than the first goes on where the last one ended.
    misconceptions : tuple of Misconception
        At least two; the linter of exercises in tests/ says what else.
    tolerance : float
        Relative. Whole numbers are compared exactly.
    options : tuple of str
        The choices, where the answer is a string.
    rubric : tuple of str
        What a good answer to an open question contains.
    """

    key: str
    question: str
    asks: str
    numbers: Callable[[], dict[str, object]]
    answer: Callable[[SimpleNamespace], object] | None
    hints: tuple[str, ...]
    worked: str
    misconceptions: tuple[Misconception, ...] = ()
    tolerance: float = 0.01
    options: tuple[str, ...] = ()
    rubric: tuple[str, ...] = ()

    def text(self, template: str) -> str:
        """Return one of the exercise's templates with its numbers, rounded."""
        lines = re.sub(r"\n +", " ", cleandoc(template))
        return lines.format_map({name: _Rounded(value) for name, value in self.numbers().items()})


@dataclass(frozen=True)
class _Rounded:
    """A number in a template; the format is the count of digits."""

    value: object

    def __format__(self, digits: str) -> str:
        return show(self.value, int(digits or 4))


@dataclass(frozen=True)
class Verdict:
    """The outcome (`NOT_ATTEMPTED`, `RIGHT`, `WRONG` or `OPEN`) and the line that the learner reads."""

    outcome: str
    message: str


def exercises_of(lecture: str) -> dict[str, Exercise]:
    """Return the exercises of one lecture by key, in order; the lecture's module is imported here, not before.

    Parameters
    ----------
    lecture : str
        One of `LECTURES`.

    Returns
    -------
    dict of str to Exercise
    """
    return {exercise.key: exercise for exercise in import_module(f"{__package__}.{lecture}").EXERCISES}


def check(key: str = "", answer: object = ..., *more: object) -> None:
    """Say whether an answer is right, wrong and why, or not attempted yet (`...`).

    Parameters
    ----------
    key : str
        The exercise, such as "queueing.2".
    answer : object
        The answer, in any compatible unit.
    *more : object
        The further parts of the answer, where the exercise asks for several.

    Notes
    -----
    Prints one line. Nothing that is passed raises.
    """
    exercise, apology = _find(key)
    print(apology or judge(exercise, (answer, *more) if more else answer).message)


def hint(key: str = "", number: int = 1) -> None:
    """Print one hint; each says how to get the next.

    Parameters
    ----------
    key : str
        The exercise, such as "queueing.2".
    number : int
        Which hint. Asking for the same hint twice gives the same line, so a notebook can be run again.
    """
    exercise, apology = _find(key)
    if apology:
        print(apology)
        return
    key, count = exercise.key, len(exercise.hints)
    number = min(max(number, 1), count) if type(number) is int else 1
    then = (
        f'Next: hint("{exercise.key}", {number + 1})' if number < count else f'Still stuck? solution("{exercise.key}")'
    )
    print(f"{key}, hint {number} of {count}: {exercise.text(exercise.hints[number - 1])} {then}")


def solution(key: str = "") -> None:
    """Print the worked solution of an exercise.

    Parameters
    ----------
    key : str
        The exercise, such as "queueing.2".

    Notes
    -----
    Where the environment variable ``SERVING_WORKBOOK_HIDE_SOLUTIONS`` is set, it says so instead.
    """
    exercise, apology = _find(key)
    if not apology and os.environ.get(HIDE_SOLUTIONS):
        apology = f"{exercise.key}: your course shows worked solutions later. Until then there are hints."
    if apology:
        print(apology)
        return
    lines = exercise.text(exercise.worked).splitlines() + [f"- {line}" for line in exercise.rubric]
    print(f"{exercise.key}, worked solution\n", *(fill(line, 100, subsequent_indent="  ") for line in lines), sep="\n")


def judge(exercise: Exercise, answer: object) -> Verdict:
    """Compare an answer with the right one and with the misconceptions.

    Parameters
    ----------
    exercise : Exercise
    answer : object
        Anything; several parts as a tuple or a dictionary.

    Returns
    -------
    Verdict
    """
    key, stuck = exercise.key, f'Stuck? hint("{exercise.key}")'
    try:
        given = read(answer)
    except Unreadable as reason:
        return Verdict(WRONG, f"{key}: wrong. {reason} The answer is {exercise.asks}.")
    if _nothing_in(given):
        return Verdict(NOT_ATTEMPTED, f"{key}: not attempted yet. Replace ... with {exercise.asks}. {stuck}")
    if exercise.answer is None:
        return Verdict(
            OPEN, f'{key}: noted. This question is open: judge your answer by the rubric in solution("{key}").'
        )

    numbers = SimpleNamespace(**exercise.numbers())
    right = exercise.answer(numbers)
    expected = read(right)
    wrong = [(thought, read(thought.value(numbers))) for thought in exercise.misconceptions]
    if isinstance(expected, dict):
        given = _as_parts(given, expected)
        if given is None:
            return Verdict(WRONG, f"{key}: wrong. The answer is {exercise.asks}.")
        faults = {
            name: _fault(given.get(name, Missing()), part, [(m, w[name]) for m, w in wrong if name in w], exercise)
            for name, part in expected.items()
        }
        if any(faults.values()):
            return Verdict(
                WRONG, f"{key}: " + " ".join(f"{n} is {f or 'right.'}" for n, f in faults.items()) + f" {stuck}"
            )
    else:
        fault = _fault(given, expected, wrong, exercise)
        if fault:
            return Verdict(WRONG, f"{key}: {fault} {stuck}")
    return Verdict(RIGHT, f"{key}: right. {_confirmation(right, expected, exercise.tolerance)}")


def _fault(given: Reading, expected: Reading, wrong, exercise: Exercise) -> str | None:
    """Return what is wrong with one answer, or None."""
    if isinstance(given, tuple) and len(given) == 1 and not isinstance(expected, tuple):
        given = given[0]
    if _nothing_in(given):
        return "not attempted yet."
    if same(given, expected, exercise.tolerance):
        return None
    for misconception, value in wrong:
        if same(given, value, exercise.tolerance):
            return f"wrong. {_sentence(exercise.text(misconception.because))}"
    return f"wrong. {_difference(given, expected, exercise)}"


def _difference(given: Reading, expected: Reading, exercise: Exercise) -> str:
    """Say how an answer that matches nothing differs from the right one, without giving it away."""
    if isinstance(expected, str):
        return f"The choices are {', '.join(exercise.options)}."
    if isinstance(given, str):
        return f"That is text; write it without quotes. The answer is {exercise.asks}."
    if isinstance(expected, tuple):
        if not isinstance(given, tuple) or len(given) != len(expected):
            return f"The answer is {exercise.asks}."
        return f"At least one of the {len(expected)} values is off."
    if not isinstance(given, Number):
        return f"The answer is {exercise.asks}."
    if given.dimension != expected.dimension:
        fault = "has no unit" if not given.dimension else "has the wrong unit" if expected.dimension else "has a unit"
        return f"That {fault}. The answer is {exercise.asks}."
    if expected.value == 0:
        return "The right answer is zero."
    ratio = given.value / expected.value
    if ratio < 0:
        return "The sign is wrong."
    for factor, slip in ((100, "100: is it a percentage?"), (1000, "1000: look at the prefixes of the units.")):
        if any(abs(ratio / shift - 1) <= exercise.tolerance for shift in (factor, 1 / factor)):
            return f"That is off by a factor of {slip}"
    if expected.whole and given.value != round(given.value):
        return "The answer is a whole number."
    size = "high" if given.value > expected.value else "low"
    return f"That is too {size}; {_tolerance(expected, exercise.tolerance)}."


def _confirmation(right: object, expected: Reading, tolerance: float) -> str:
    if isinstance(expected, str):
        return f"It is {expected}."
    return _sentence(f"{show(right)}; {_tolerance(expected, tolerance)}")


def _tolerance(expected: Reading, tolerance: float) -> str:
    parts = expected.values() if isinstance(expected, dict) else [expected]
    if all(isinstance(part, Number) and part.whole for part in parts):
        return "only the exact number counts"
    return f"anything within {100 * tolerance:g} % counts"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _nothing_in(given: Reading) -> bool:
    if isinstance(given, dict):
        given = tuple(given.values())
    if isinstance(given, tuple):
        return bool(given) and all(_nothing_in(part) for part in given)
    return isinstance(given, Missing)


def _as_parts(given: Reading, expected: dict) -> dict | None:
    if isinstance(given, dict):
        return given
    if isinstance(given, tuple) and len(given) == len(expected):
        return dict(zip(expected, given, strict=True))
    return None


def _find(key: object) -> tuple[Exercise | None, str]:
    """Return the exercise, or an apology that lists what there is."""
    if not issubclass(type(key), str):  # isinstance would ask the object, which may raise
        return None, f"The first argument is the key of an exercise. {_KEYS}"
    key = str.__str__(key).strip()
    lecture = key.partition(".")[0]
    if lecture not in LECTURES:
        return None, f'There is no exercise "{key}". {_KEYS}'
    exercises = exercises_of(lecture)
    if key not in exercises:
        return None, f'There is no exercise "{key}". Lecture {lecture} has {", ".join(exercises)}.'
    return exercises[key], ""


_KEYS = f'A key is a lecture and a number, such as "queueing.1". Lectures: {", ".join(LECTURES)}.'

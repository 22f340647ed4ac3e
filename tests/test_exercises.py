"""Every exercise: its right answer, its misconceptions, its untouched cell, and whatever else a learner may pass."""

import contextlib
import io
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pint
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib import ureg
from serving_lib.exercises import check, hint, solution
from serving_lib.exercises.answers import Unreadable, read, show
from serving_lib.exercises.framework import (
    LECTURES,
    NOT_ATTEMPTED,
    OPEN,
    RIGHT,
    WRONG,
    Exercise,
    Misconception,
    exercises_of,
    judge,
)
from tests.lecture_linter import british_words

EXERCISES = {key: exercise for lecture in LECTURES for key, exercise in exercises_of(lecture).items()}
GRADED = {key: exercise for key, exercise in EXERCISES.items() if exercise.answer}
MISCONCEPTIONS = [
    pytest.param(exercise, thought, id=f"{key}-{thought.name}")
    for key, exercise in GRADED.items()
    for thought in exercise.misconceptions
]
each_exercise = pytest.mark.parametrize("key", EXERCISES)
each_graded_exercise = pytest.mark.parametrize("key", GRADED)


def right_answer(exercise):
    return exercise.answer(SimpleNamespace(**exercise.numbers()))


def printed(function, *arguments):
    """What a function prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(*arguments)
    return out.getvalue()


# --- the outcomes of every exercise


@each_graded_exercise
def test_the_right_answer_is_right(key):
    answer = right_answer(EXERCISES[key])
    assert printed(check, key, answer).startswith(f"{key}: right. ")
    if isinstance(answer, dict):
        assert printed(check, key, *answer.values()).startswith(f"{key}: right. ")


@each_exercise
def test_the_untouched_cell_is_not_attempted(key):
    line = printed(check, key, ...)
    assert line == f'{key}: not attempted yet. Replace ... with {EXERCISES[key].asks}. Stuck? hint("{key}")\n'


@each_graded_exercise
def test_untouched_parts_are_not_attempted(key):
    answer = right_answer(EXERCISES[key])
    if isinstance(answer, dict):
        assert judge(EXERCISES[key], tuple(... for _ in answer)).outcome == NOT_ATTEMPTED
        first, *others = answer
        message = judge(EXERCISES[key], {first: answer[first]} | dict.fromkeys(others, ...)).message
        assert f"{first} is right." in message
        assert all(f"{other} is not attempted yet." in message for other in others)


@pytest.mark.parametrize(("exercise", "thought"), MISCONCEPTIONS)
def test_a_misconception_is_told_why_it_is_wrong(exercise, thought):
    right, value = right_answer(exercise), thought.value(SimpleNamespace(**exercise.numbers()))
    verdict = judge(exercise, right | value if isinstance(right, dict) else value)
    because = exercise.text(thought.because)
    assert verdict.outcome == WRONG
    assert f"{because[0].upper()}{because[1:]}." in verdict.message


@each_graded_exercise
def test_the_right_answer_counts_in_another_unit_and_another_registry(key):
    def elsewhere(value):
        if isinstance(value, dict):
            return {name: elsewhere(part) for name, part in value.items()}
        if isinstance(value, tuple):
            return tuple(map(elsewhere, value))
        if not isinstance(value, pint.Quantity):
            return value
        root = value.to_root_units()
        another_unit = str(root.units).replace("second", "minute").replace("bit", "kibibyte")
        return OTHER.Quantity(root.magnitude, str(root.units)).to(another_unit)

    assert judge(EXERCISES[key], elsewhere(right_answer(EXERCISES[key]))).outcome == RIGHT


@each_graded_exercise
def test_an_answer_is_right_within_the_tolerance_and_wrong_beyond_it(key):
    exercise = EXERCISES[key]

    def times(value, factor):
        if isinstance(value, dict):
            return {name: times(part, factor) for name, part in value.items()}
        if isinstance(value, tuple):
            return tuple(times(part, factor) for part in value)
        return value * factor if isinstance(value, float | pint.Quantity) else value

    answer = right_answer(exercise)
    for sign in (1, -1):
        assert judge(exercise, times(answer, 1 + sign * 0.9 * exercise.tolerance)).outcome == RIGHT
        beyond = times(answer, 1 + sign * 1.1 * exercise.tolerance)
        if show(beyond, 12) != show(answer, 12):
            assert judge(exercise, beyond).outcome == WRONG


@each_graded_exercise
def test_a_whole_number_counts_only_exactly(key):
    answer = right_answer(EXERCISES[key])
    if isinstance(answer, int):
        for wrong in (answer + 1, answer - 1, answer + 0.5):
            assert judge(EXERCISES[key], wrong).outcome == WRONG
        assert judge(EXERCISES[key], float(answer)).outcome == RIGHT


# --- what every exercise holds


@pytest.mark.parametrize("lecture", LECTURES)
def test_exercises_are_numbered_in_order(lecture):
    keys = list(exercises_of(lecture))
    assert keys == [f"{lecture}.{number}" for number in range(1, len(keys) + 1)]


@pytest.mark.parametrize(
    ("lecture", "least"), [("queueing", 6), ("batching", 6), ("speculative", 6), ("paged_kv", 6), ("capacity", 5)]
)
def test_a_lecture_has_enough_exercises(lecture, least):
    assert len(exercises_of(lecture)) >= least


@each_exercise
def test_an_exercise_has_hints_and_either_misconceptions_or_a_rubric(key):
    exercise = EXERCISES[key]
    assert len(exercise.hints) >= 2
    if exercise.answer:
        names = [thought.name for thought in exercise.misconceptions]
        assert len(set(names)) == len(names) >= 2
    else:
        assert len(exercise.rubric) >= 4


@each_exercise
def test_the_texts_of_an_exercise_are_complete_and_american(key):
    exercise = EXERCISES[key]
    templates = [exercise.question, exercise.worked, *exercise.hints, *(t.because for t in exercise.misconceptions)]
    text = "\n".join([*map(exercise.text, templates), exercise.asks, *exercise.rubric])
    assert "{" not in text
    assert british_words(text) == []


@each_graded_exercise
def test_the_worked_solution_arrives_at_the_right_answer(key):
    def numbers_in(value):
        if isinstance(value, dict | tuple):
            return [n for part in (value.values() if isinstance(value, dict) else value) for n in numbers_in(part)]
        return [value.magnitude if isinstance(value, pint.Quantity) else value]

    text = printed(solution, key).lower()
    for number in numbers_in(right_answer(EXERCISES[key])):
        assert any(show(number, digits) in text for digits in range(2, 8)), number


@each_exercise
def test_a_hint_comes_one_at_a_time_and_points_on(key):
    hints = EXERCISES[key].hints
    lines = [printed(hint, key, number) for number in range(1, len(hints) + 1)]
    assert len(set(lines)) == len(hints)
    assert printed(hint, key) == lines[0]
    assert all(f'Next: hint("{key}", {number + 2})' in line for number, line in enumerate(lines[:-1]))
    assert f'solution("{key}")' in lines[-1]


# Computed or read by others, at the precision in which they stand there: the lecture plan and the papers it cites.
PUBLISHED = {
    "queueing.1": {"sharegpt": (15.21, "s"), "alpaca": (4.41, "s")},
    "queueing.2": (2.697, "1/s"),
    "queueing.3": {"scv": (4.484, ""), "wait": (4.351, "s"), "exponential": (1.587, "s")},
    "queueing.7": {"wait": (0.346, "s")},
    "batching.3": (122529, ""),
    "batching.4": (0.518, ""),
    "batching.5": (8.5, ""),
    "batching.6": (768, ""),
    "speculative.2": {"acceptance": (0.7, ""), "residual": [(1, ""), (0, ""), (0, "")]},
    "speculative.3": [(8, ""), (4, ""), (3, "")],
    "speculative.4": {
        "tokens": [(2.83, ""), (3.04, ""), (3.72, "")],
        "acceptance": [(0.711, ""), (0.749, ""), (0.851, "")],
    },
    "speculative.6": {"h100": (151.9, ""), "a100": (78.7, "")},
    "paged_kv.1": [(819200, "byte"), (327680, "byte"), (131072, "byte"), (57344, "byte")],
    "paged_kv.2": {"gb": (14648, ""), "gib": (15728, "")},
    "paged_kv.3": {"safe": (3, "")},
    "paged_kv.5": [(0.0148, ""), (0.113, ""), (0.0880, ""), (0.450, "")],
    "capacity.1": {"prefill": (6386, "1/s"), "decode": (1168, "1/s")},
    "capacity.2": {"a100": (0.78, "")},
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_the_answer_is_the_published_one(key):
    def compare(answer, published):
        if isinstance(published, dict):
            for name, part in published.items():
                compare(answer[name], part)
        elif isinstance(published, list):
            for part, value in zip(answer, published, strict=True):
                compare(part, value)
        else:
            value, unit = published
            in_unit = answer.m_as(f"{unit}/token") if unit == "byte" else answer
            in_unit = in_unit.to_root_units().magnitude if isinstance(in_unit, pint.Quantity) else in_unit
            assert in_unit == pytest.approx(value, rel=5e-3 if value < 1 else 1.2e-3)

    compare(right_answer(EXERCISES[key]), PUBLISHED[key])


# --- nothing that is passed raises


class Spiteful:
    """An object none of whose methods works."""

    __hash__ = None

    def _refuse(self, *_arguments, **_keywords):
        raise RuntimeError("no")

    __eq__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __bool__ = __array__ = __repr__ = __str__ = _refuse
    __format__ = __getattr__ = __lt__ = __gt__ = __call__ = _refuse


class FloatOnly:
    def __float__(self):
        return 20.0


class LongFloat(float):
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __format__ = __str__


class Chameleon:
    """An object that lies about its class, and raises while it does."""

    @property
    def __class__(self):
        raise RuntimeError("no")


def itself():
    loop = []
    loop.append(loop)
    return loop


def itself_in_a_dictionary():
    loop = {}
    loop["wait"] = loop
    return loop


def an_array_of(thing):
    array = np.empty(1, dtype=object)
    array[0] = thing
    return array


OTHER = pint.UnitRegistry()
for unit in ("token = []", "request = []", "USD = [currency]"):
    OTHER.define(unit)
EXACT = pint.UnitRegistry(non_int_type=Decimal)
HOSTILE = {
    "None": None,
    "text": "2.7 / s",
    "empty text": "",
    "bytes": b"3",
    "true": True,
    "list": [1, "two", None],
    "empty list": [],
    "nested": [[[[1]]]],
    "itself": itself(),
    "itself in a dictionary": itself_in_a_dictionary(),
    "dictionary": {"a": 1, 2: "b"},
    "set": {1, 2},
    "generator": (i for i in range(3)),
    "endless range": range(10**15),
    "nan": float("nan"),
    "infinity": float("-inf"),
    "huge": 10**400,
    "unprintable": 10**5000,
    "complex": 3 + 4j,
    "decimal": Decimal("1e-999"),
    "signaling nan": Decimal("sNaN"),
    "fraction": Fraction(1, 3),
    "function": lambda: 1,
    "built-in": print,
    "class": int,
    "module": np,
    "object": object(),
    "not implemented": NotImplemented,
    "exception": ValueError("no"),
    "spiteful": Spiteful(),
    "spiteful class": Spiteful,
    "spiteful in a list": [Spiteful()],
    "spiteful in a dictionary": {"wait": Spiteful()},
    "chameleon": Chameleon(),
    "float only": FloatOnly(),
    "unprintable float": LongFloat(3),
    "array": np.zeros((2, 2)),
    "empty array": np.array([]),
    "huge array": np.zeros(10**6),
    "array of text": np.array(["a", "b"]),
    "array of objects": an_array_of(Spiteful()),
    "masked": np.ma.masked,
    "date": np.datetime64("2023-11-16"),
    "complex number of numpy": np.complex128(1j),
    "record": np.zeros(1, dtype=[("a", float)])[0],
    "length": 3 * OTHER.meter,
    "no dimension": 3 * OTHER.dimensionless,
    "nan seconds": float("nan") * OTHER.s,
    "temperature": OTHER.Quantity(20, "degC"),
    "decibel": OTHER.Quantity(3, "dB"),
    "array of seconds": [1, 2, 3, 4, 5, 6, 7] * OTHER.s,
    "text in seconds": OTHER.Quantity("3", "s"),
    "exact meter": Decimal(3) * EXACT.meter,
    "decimal meter in a registry of floats": Decimal(3) * OTHER.meter,
    "unit": OTHER.meter,
    "registry": OTHER,
    "default registry, lazily": pint.get_application_registry().meter,
}


@each_exercise
def test_nothing_a_learner_passes_raises(key):
    possible = {WRONG} if EXERCISES[key].answer else {WRONG, OPEN}
    for name, answer in HOSTILE.items():
        line = printed(check, key, answer)
        assert line.count("\n") == 1, name
        assert line.startswith(f"{key}: "), name
        outcomes = {judge(EXERCISES[key], answer).outcome, judge(EXERCISES[key], (answer, 1)).outcome}
        assert outcomes <= possible, name


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.decimals()
ANYTHING = st.recursive(
    SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner)
)


@settings(max_examples=300, deadline=None)
@given(answer=ANYTHING, key=st.sampled_from(list(EXERCISES)))
def test_no_value_made_of_plain_python_raises(key, answer):
    assert judge(EXERCISES[key], answer).message.startswith(f"{key}: ")


def test_a_course_can_hide_the_solutions_and_keep_hints_and_checks(monkeypatch):
    worked = printed(solution, "queueing.1")
    monkeypatch.setenv("SERVING_WORKBOOK_HIDE_SOLUTIONS", "1")
    assert printed(solution, "queueing.1").startswith("queueing.1: your course shows worked solutions later.")
    assert "queueing.1, hint 1 of" in printed(hint, "queueing.1")
    assert "not attempted" in printed(check, "queueing.1", ...)
    monkeypatch.setenv("SERVING_WORKBOOK_HIDE_SOLUTIONS", "")
    assert printed(solution, "queueing.1") == worked


@pytest.mark.parametrize("function", [check, hint, solution])
@pytest.mark.parametrize("key", ["queueing.99", "queueing", "queuing.1", "../queueing.1", "serving_lib"])
def test_an_unknown_key_is_answered_with_what_there_is(function, key):
    assert "queueing" in printed(function, key)


@pytest.mark.parametrize("function", [check, hint, solution])
def test_a_key_that_is_none_is_answered_with_what_there_is(function):
    for name, key in HOSTILE.items():
        assert "queueing" in printed(function, key), name


def test_an_unknown_number_is_answered_with_the_keys_of_that_lecture():
    line = printed(check, "queueing.99", 1)
    assert 'There is no exercise "queueing.99"' in line
    assert all(key in line for key in exercises_of("queueing"))


@pytest.mark.parametrize("number", [0, -1, 99, None, "2", 1.5, float("nan")])
def test_any_number_of_a_hint_gives_a_hint(number):
    assert printed(hint, "queueing.2", number).startswith("queueing.2, hint ")


def test_no_arguments_at_all_are_answered_too():
    for function in (check, hint, solution):
        assert "queueing.1" in printed(function)


# --- the framework, on an exercise made up for the purpose


def made_up(answer, **fields):
    return Exercise(
        key="queueing.1",
        question="How long?",
        asks="a time, such as 3 * ureg.s",
        numbers=lambda: {"service": 2 * ureg.s},
        answer=answer,
        hints=("a", "b"),
        worked="So.",
        **fields,
    )


@pytest.mark.parametrize(
    ("right", "answer", "said"),
    [
        (2 * ureg.s, 2, "That has no unit. The answer is a time, such as 3 * ureg.s."),
        (2 * ureg.s, 2 * ureg.m, "That has the wrong unit."),
        (2.0, 2 * ureg.s, "That has a unit."),
        (2 * ureg.s, -2 * ureg.s, "The sign is wrong."),
        (2 * ureg.s, 2 * ureg.ms, "a factor of 1000"),
        (0.5, 50, "a factor of 100: is it a percentage?"),
        (2 * ureg.s, 3 * ureg.s, "That is too high; anything within 1 % counts."),
        (2 * ureg.s, 1 * ureg.s, "That is too low; anything within 1 % counts."),
        (4, 5, "That is too high; only the exact number counts."),
        (4, 4.4, "The answer is a whole number."),
        (0.0, 1.0, "The right answer is zero."),
        (2.0, "2", "That is text; write it without quotes."),
        (2.0, [1, 2], "The answer is a time"),
        (2.0, None, "That is None. A function without return gives None."),
        (2.0, len, "That is a function. Call it"),
        (2.0, float("nan"), "That is nan, not a number"),
        ((1.0, 2.0), (1.0, 3.0), "At least one of the 2 values is off."),
        ((1.0, 2.0), (1.0, 2.0, 3.0), "The answer is a time"),
        (40 * ureg.GB, 40e9, "That has no unit."),
        ("left", "up", "The choices are left, right."),
        ({"a": 1.0, "b": 2.0}, (1.0, 3.0), "a is right. b is wrong. That is too high"),
    ],
)
def test_a_wrong_answer_is_told_how_it_differs(right, answer, said):
    verdict = judge(made_up(lambda _: right, options=("left", "right")), answer)
    assert verdict.outcome == WRONG
    assert said in verdict.message


@pytest.mark.parametrize(
    ("right", "answer"),
    [
        (2 * ureg.s, 2000 * OTHER.ms),
        (2 * ureg.s, Decimal(2) * OTHER.s),
        (2 * ureg.s, Fraction(2) * OTHER.s),
        (2 * ureg.s, Decimal(2) * EXACT.s),
        (2 * ureg.s, np.array([2.0]) * OTHER.s),
        (1 * ureg.s, OTHER.second),
        (2 / ureg.s, 2 * ureg.Hz),
        (2 / ureg.s, 2 * ureg.request / ureg.s),
        (2.0, 2 * ureg.token),
        (2.0, np.float32(2)),
        (2.0, [2.0]),
        (2.0, np.array(2.0)),
        (2.0, 2 + 0j),
        (0.5, 50 * ureg.percent),
        (20.0, FloatOnly()),
        (1 * ureg.GiB, 1.073741824 * OTHER.gigabyte),
        ((1.0, 0.0, 0.0), np.array([1, 0, 0])),
        ((1 * ureg.s, 2 * ureg.s), [1000, 2000] * OTHER.ms),
        ("left", " LEFT "),
        ({"a": 1.0, "b": (2.0, 3.0)}, (1.0, [2.0, 3.0])),
        ({"a": 1.0, "b": (2.0, 3.0)}, {"b": (2.0, 3.0), "a": 1.0}),
    ],
)
def test_a_right_answer_may_come_in_any_shape(right, answer):
    assert judge(made_up(lambda _: right), answer).outcome == RIGHT


def test_a_misconception_is_recognized_before_its_unit_is_blamed():
    thought = Misconception("upside down", lambda n: 1 / n.service, "that is the inverse of {service}")
    message = judge(made_up(lambda n: n.service, misconceptions=(thought,)), 0.5 / ureg.s).message
    assert message == 'queueing.1: wrong. That is the inverse of 2 s. Stuck? hint("queueing.1")'


def test_an_open_question_is_noted_and_points_to_its_rubric():
    exercise = made_up(None, rubric=("It is short.",))
    assert judge(exercise, "my plan").outcome == OPEN
    assert judge(exercise, ...).outcome == NOT_ATTEMPTED


@pytest.mark.parametrize("name", ["spiteful", "unprintable", "generator", "chameleon"])
def test_reading_raises_nothing_but_unreadable(name):
    with pytest.raises(Unreadable):
        read(HOSTILE[name])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5 / ureg.s, "5/s"),
        (0.1 + 0.2, "0.3"),
        (-0.0, "0"),
        (1234.5678, "1,235"),
        (122529.3, "122,529"),
        (12, "12"),
        (1e20, "1e+20"),
        (2.5 * ureg.s**2, "2.5 s^2"),
        ((0.5, 1.0), "(0.5, 1)"),
        ((1 * ureg.s, 500 * ureg.ms), "(1, 0.5) s"),
        ({"a": 1, "b": "left"}, "a 1, b left"),
        (float("inf"), "inf"),
    ],
)
def test_values_are_shown_rounded(value, text):
    assert show(value) == text


def test_the_exercises_need_neither_matplotlib_nor_ipywidgets():
    code = (
        "import sys; from serving_lib.exercises import check; check('queueing.2', ...); "
        "print({'matplotlib', 'ipywidgets'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        'queueing.2: not attempted yet. Replace ... with a rate, such as 1 / ureg.s. Stuck? hint("queueing.2")',
        "set()",
    ]

"""The formula sheet holds every closed form, and what it says of each is true."""

import doctest
import inspect
import re
from pathlib import Path

import nbformat
import numpy as np
import pint
import pytest

import serving_lib
from serving_lib import batching, kvcache, queueing, speculative, ureg
from serving_lib.formula_sheet import LECTURES, closed_forms, formula_sheet, read_docstring

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
ROWS = {row.name: row for row in formula_sheet().rows}
INPUTS = [(name, one) for name, row in ROWS.items() for one in row.inputs]
each_input = pytest.mark.parametrize(("name", "one"), INPUTS, ids=[f"{name}-{one.name}" for name, one in INPUTS])


def test_every_public_closed_form_is_on_the_sheet_once():
    defined = {
        name
        for module in (queueing, batching, speculative, kvcache)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and re.match(r"calc_|affine_batch_chain", name)
    }
    assert sorted(ROWS) == sorted(defined) == sorted(closed_forms())
    assert len(formula_sheet().rows) == len(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_the_parameters_of_its_function(name):
    assert [one.name for one in ROWS[name].inputs] == list(inspect.signature(getattr(serving_lib, name)).parameters)


@pytest.mark.parametrize("name", ROWS)
def test_the_section_that_teaches_a_formula_exists(name):
    row = ROWS[name]
    notebook = nbformat.read(NOTEBOOKS / f"{LECTURES[row.lecture]}.ipynb", as_version=4)
    headings = re.findall(r"(?m)^## (\d+) ", "\n".join(cell.source for cell in notebook.cells))
    assert str(row.section) in headings


def example_of(function):
    """The arguments of the first call in a docstring's example, by name."""
    calls = []

    def record(*args, **kwargs):
        calls.append(inspect.signature(function).bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    names = vars(serving_lib) | {"np": np, function.__name__: record}
    test = doctest.DocTestFinder().find(function, function.__name__, globs=names)[0]
    doctest.DocTestRunner(verbose=False).run(test, out=lambda _text: None)
    return dict(calls[0])


def with_value(name, one, change):
    function = getattr(serving_lib, name)
    arguments = example_of(function)
    if one.name not in arguments:
        arguments[one.name] = inspect.signature(function).parameters[one.name].default
    arguments[one.name] = change(arguments[one.name])
    return function(**arguments)


@each_input
def test_a_value_outside_the_printed_domain_is_refused(name, one):
    if one.domain == "any":  # every number is in it
        with_value(name, one, lambda _value: -1.5)
        return

    def outside(value):
        if isinstance(value, list | tuple):
            return [-1, *value[1:]]
        if one.domain.startswith("in"):
            return 1
        return -value if np.any(value) else -1

    with pytest.raises(ValueError, match=one.name):
        with_value(name, one, outside)


ZERO_IS_IN = [(name, one) for name, one in INPUTS if one.domain in ("≥ 0", "≥ 0, whole")]


@pytest.mark.parametrize(("name", "one"), ZERO_IS_IN, ids=[f"{name}-{one.name}" for name, one in ZERO_IS_IN])
def test_zero_is_taken_where_the_sheet_says_so(name, one):
    with_value(name, one, lambda value: [0, *value[1:]] if isinstance(value, list | tuple) else 0 * value)


@each_input
def test_an_input_is_of_the_printed_unit(name, one):
    example = example_of(getattr(serving_lib, name)).get(one.name)
    if not one.unit:
        assert not isinstance(example, pint.Quantity) or example.dimensionless
        return
    with_units = isinstance(example, pint.Quantity)
    if with_units:
        assert example.is_compatible_with(one.unit.replace("bytes", "byte").replace("time", "second"))
    # Among plain numbers a unit is wrong before its kind is.
    with pytest.raises(pint.DimensionalityError if with_units else (pint.DimensionalityError, TypeError)):
        with_value(name, one, lambda _value: 1 * ureg.ampere)


@each_input
def test_a_symbol_stands_in_the_equation(name, one):
    assert not one.symbol or re.search(rf"\b{re.escape(one.symbol)}", ROWS[name].equation)


def test_symbols_are_different_within_a_formula():
    for row in ROWS.values():
        symbols = [one.symbol for one in row.inputs if one.symbol]
        assert len(symbols) == len(set(symbols)), row.name


def test_known_rows_read_as_they_are_written():
    row = ROWS["calc_littles_law_occupancy"]
    assert (row.equation, row.lecture, row.section) == ("L = lambda W", "01", 1)
    assert [(one.symbol, one.domain, one.unit) for one in row.inputs] == [
        ("lambda", "≥ 0", "1/time"),
        ("W", "≥ 0", "time"),
    ]
    assert "W<sub>q</sub>" in formula_sheet().to_html()
    assert "α<sup>K+1</sup>" in formula_sheet().to_html()


def a_formula(value):
    """Calculate nothing.

    Parameters
    ----------
    value : float
        Positive value x.

    Returns
    -------
    float
        The value.

    Notes
    -----
    y = x: as it is.
    """


def test_a_docstring_without_its_line_is_refused_with_the_mend():
    with pytest.raises(ValueError, match=r"a_formula must end with a line such as \"Taught in lecture 01"):
        read_docstring(a_formula)


def test_the_sheet_shows_itself_as_html_markdown_and_text():
    bundle = formula_sheet()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/markdown", "text/plain"}
    for shown in bundle.values():
        assert all(name in shown.replace("<wbr>", "") for name in ROWS)


def test_the_notebook_shows_the_sheet_as_it_is_now():
    notebook = nbformat.read(NOTEBOOKS / "99_formula_sheet.ipynb", as_version=4)
    stored = next(output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output)
    assert stored["text/html"] == formula_sheet().to_html(), "run: make notebooks"

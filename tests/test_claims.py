"""Numbers in prose hold at their printed precision, and the checker of claims tells true from false."""

from pathlib import Path

import nbformat
import pytest

from tests.claim_checker import check_claims, check_text, count_claims, namespace
from tests.lecture_linter import FORMS

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
LEAST_CLAIMS = 10  # in a lecture: prose without computed numbers is talk


@pytest.fixture(scope="module")
def names():
    return namespace()


@pytest.mark.parametrize("name", FORMS)
def test_every_number_that_claims_to_be_computed_is(name, names):
    assert check_claims(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4), names) == []


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.goals])
def test_a_lecture_computes_its_numbers(name):
    assert count_claims(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)) >= LEAST_CLAIMS


@pytest.mark.parametrize(
    "text",
    [
        "4.605<!-- = calc_exponential_quantile_factor(0.99) -->",
        "4.6<!-- = calc_exponential_quantile_factor(0.99) --> and 5<!-- = calc_mm1_time_in_system(1, 0.8) -->",
        "Five times<!-- = calc_mm1_time_in_system(1, 0.8) -->, not 1.25.",
        "It doubles again<!-- = calc_mm1_time_in_system(1, 0.95) / calc_mm1_time_in_system(1, 0.9) -->.",
        "about **1,000 ms**<!-- = calc_mm1_time_in_system(200 * ureg.ms, 0.8) -->",
        "1.0 s<!-- = calc_mm1_time_in_system(200 * ureg.ms, 0.8) -->",
        "6.2 requests per second<!-- = 6.2 / ureg.s -->",
        "6 requests<!-- = 2 / ureg.s * 3000 * ureg.ms -->",
        "6 in the system<!-- = 2 / ureg.s * 3000 * ureg.ms -->",
        "42.9 GB<!-- = 40 * ureg.GiB -->",
        "122,529 tokens<!-- = 122529.3 -->",
        "1,234.5<!-- = 1234.46 -->",
        "54 %<!-- = 0.5395 -->",
        "53.95 percent<!-- = 0.5395 -->",
        "80 %<!-- = 80 * ureg.percent -->",
        "-3.2<!-- = -3.2 -->",
        "\N{MINUS SIGN}3<!-- = -3.2 -->",
        "1.2e-3<!-- = 0.0012 -->",
        r"$1.2\times10^{-3}$<!-- = 0.0012 -->",
        "18.9x<!-- = 18.94 -->",
        "batches of 32 use .518<!-- = 0.5177 -->",
        "half<!-- = 0.51 -->",
        "5.0 / 1.75 / 1.25<!-- = [5, 1.746, 1.25] -->",
        "2.83, 3.04 and 3.72 ms<!-- = np.array([2.832, 3.043, 3.717]) * ureg.ms -->",
        "more than twice<!-- = 5 > 2 -->",
        'the promise allows 2.697/s<!-- = exercises.queueing.a_p99_promise()["rate"].m_as("1/s") -->',
        "a comment <!-- of the author --> and no claim",
    ],
)
def test_a_claim_that_holds_is_silent(text, names):
    assert check_text(text, names) == []


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("4.62<!-- = calc_exponential_quantile_factor(0.99) -->", "write 4.61"),
        ("4.604<!-- = calc_exponential_quantile_factor(0.99) -->", "write 4.605"),
        ("Four times<!-- = calc_mm1_time_in_system(1, 0.8) -->", '"Four" is printed'),
        ("50 %<!-- = 0.5395 -->", "write 54 %"),
        (".517<!-- = 0.5177 -->", "write 0.518"),
        ("0.54 %<!-- = 0.5395 -->", "write 53.95 %"),
        ("1,234.5<!-- = 1234.44 -->", "write 1,234.4"),
        ("2.0 s<!-- = calc_mm1_time_in_system(200 * ureg.ms, 0.8) -->", "write 1.0"),
        ("1000<!-- = calc_mm1_time_in_system(200 * ureg.ms, 0.8) -->", "write its unit"),
        ("5 m<!-- = calc_mm1_time_in_system(200 * ureg.ms, 0.8) -->", "another dimension"),
        ("42.9 GiB<!-- = 40 * ureg.GiB -->", "write 40.0"),
        ("5.0 / 1.75<!-- = [5, 1.25] -->", "write 1.25"),
        ("1.75<!-- = [5, 1.75] -->", "no number stands before"),
        ("nothing here<!-- = 5 -->", "no number stands before"),
        ("5 and then a good many other words<!-- = 5 -->", "no number stands before"),
        ("5<!-- = nonsense -->", "cannot be evaluated: NameError"),
        ("5<!-- = 1 / 0 -->", "cannot be evaluated: ZeroDivisionError"),
        ("5<!-- = float('nan') -->", "not a number"),
        ("5<!-- = 'five' -->", "not a number"),
        ("more than twice<!-- = 5 < 2 -->", "is false"),
        ("$W = 5<!-- = 5 -->$", "behind the closing $"),
        ("5<!-- calc_mm1_time_in_system(1, 0.8) -->", "start it with <!-- = "),
    ],
)
def test_a_claim_that_fails_says_what_to_write(text, advice, names):
    (problem,) = check_text(text, names)
    assert advice in problem


def test_a_problem_names_its_cell(names):
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("'5<!-- = 6 -->'"), nbformat.v4.new_markdown_cell("5<!-- = 6 -->")]
    )
    assert check_claims(notebook, names) == ['cell 2: "5" is printed, but 6 is 6: write 6']
    assert count_claims(notebook) == 1

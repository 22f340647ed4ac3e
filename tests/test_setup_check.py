"""The set-up check says what is missing or out of range, and how to mend it."""

from packaging.requirements import Requirement

from serving_lib import setup_check
from serving_lib.setup_check import check_setup, problem_of, required_packages


def test_a_tested_installation_is_complete(capsys):
    check_setup()
    assert capsys.readouterr().out == "Set-up complete: 7 packages are within the tested ranges.\n"


def test_the_packages_are_those_of_the_workbook_and_not_of_its_tests():
    names = {package.name for package in required_packages()}
    assert {"jupyterlab", "ipywidgets", "matplotlib", "numpy", "pint"} <= names
    assert not names & {"pytest", "hypothesis", "playwright"}


def test_a_package_outside_its_range_is_named_with_the_range():
    problem = problem_of(Requirement("numpy>=1,<1.1"))
    assert problem.startswith("numpy ")
    assert 'pip install "numpy<1.1,>=1".' in problem


def test_every_problem_gets_a_line_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr(setup_check, "required_packages", lambda: [Requirement("nothing-a"), Requirement("nothing-b")])
    check_setup()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["nothing-a", "nothing-b"]

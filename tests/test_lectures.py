"""Every lecture keeps its form, and every rule about the form fires on a notebook that breaks it."""

from pathlib import Path

import nbformat
import pytest

import serving_lib
from serving_lib.exercises.framework import exercises_of
from tests import lecture_linter
from tests.lecture_linter import FORMS, NOTEBOOK_RULES, RULES, Form, british_words, kernel_is_python3, lint

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
SMALL = Form("start", least_exercises=2)


@pytest.mark.parametrize("name", FORMS)
def test_a_lecture_keeps_its_form(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert lint(notebook, FORMS[name]) == []


def test_every_notebook_has_a_form():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(FORMS)


def test_a_well_formed_lecture_has_no_problems():
    assert lint(a_lecture(), SMALL) == []


# Each entry breaks one rule: the rule, the text of the cell to change, what it becomes (None: nothing), the advice.
BREAKS = [
    ("goals_are_measurable", "**Goals.** After this you can", "After this you can", 'write "**Goals.**'),
    ("goals_are_measurable", "- choose a batch", "", "the opening lists 2 goals; list 3"),
    ("goals_are_measurable", "- choose a batch", "- understand batches", "start with a deed"),
    ("opening_names_time_and_prerequisites", "**Time.** 45 to 60 minutes", "", "**Time.**"),
    ("opening_names_time_and_prerequisites", "45 to 60 minutes", "long", "how long the lecture takes"),
    ("opening_names_time_and_prerequisites", "**Prerequisites.**", "You need", "**Prerequisites.**"),
    ("has_its_sections", "## 7 When this formula lies", "## 7 Limits", "When this (formula|model) lies"),
    ("has_its_sections", "## Summary", "## The end", '"Summary": add the section'),
    ("has_its_sections", "## References", "## Sources", '"References": add the section'),
    ("has_its_sections", "## 1 The knee", "# 1 The knee", "2 headings of the first level"),
    ("references_are_listed", "- Little (1961)", "Little (1961)", "write one item for each work"),
    ("explores_enough", "explore(plots.mm1_knee)", "3", "0 explore(...) where at least 3 belong"),
    ("predicts_before_it_reveals", 'predict("How long?", [1, 2], answer=1 + 1)', "1", "put a predict(...) first"),
    ("predictions_are_computed", "answer=1 + 1", "answer=2", "is typed in"),
    ("predictions_are_computed", ", answer=1 + 1", "", "has no answer="),
    ("exercises_are_all_there", 'check("start.1", tpot)', 'check("start.7", tpot)', "names no exercise"),
    ("exercises_are_all_there", 'check("start.1", tpot)', "tpot", 'exercise "start.1" appears 0 times'),
    ("exercises_are_all_there", "time per output token", "speed", "must hold the question"),
    ("exercises_are_all_there", 'hint("start.1")', "a hint", "nothing tells the reader of hint("),
    ("exercises_are_all_there", 'solution("start.1")', "a solution", "nothing tells the reader of solution("),
    ("code_cells_are_small", "service = 2", "\n".join(["x = 1"] * 13), "13 lines of code where at most 12 belong"),
    ("code_cells_are_small", "service = 2", "", "empty code cell"),
    ("every_code_cell_is_introduced", "Set the service time", None, "no markdown cell stands before"),
    ("every_code_cell_is_introduced", "Set the service time", "word " * 120, "121 words before a code cell"),
    ("spelling_is_american", "Set the service time", "Look at the utilisation", 'write "utilization"'),
    ("pictures_have_alt_text", "Set the service time", "![](knee.svg)", "one sentence between the brackets"),
    ("pictures_have_alt_text", "Set the service time", '<img src="knee.svg">', "give it an alt="),
    ("code_is_plain_python", "service = 2", "%matplotlib inline", "magics and shell commands"),
    ("code_is_plain_python", "service = 2", "!pip list", "magics and shell commands"),
    ("code_is_plain_python", "service = 2", "service = = 2", "does not parse"),
    ("code_is_plain_python", "service = 2", "import sys\nsys.path.append('..')", "without touching sys.path"),
    ("code_is_plain_python", "service = 2", "plots.mm1_knee();", "ends in a semicolon"),
    ("code_is_plain_python", "service = 2", "ipywidgets.interact(plots.mm1_knee)", "use explore(...)"),
    ("code_is_plain_python", "service = 2", "# NBVAL_SKIP\nservice = 2", "use a cell tag"),
    ("imports_only_the_library", "service = 2", "import pandas", "imports pandas: a lecture imports serving_lib only"),
    ("imports_only_the_library", "service = 2", "from os import path", "imports os"),
    ("imports_only_the_library", "service = 2", "from serving_lib import *", "star import from serving_lib"),
    ("randomness_is_seeded", "service = 2", "np.random.rand(3)", "hidden global state"),
    ("randomness_is_seeded", "service = 2", "random.random()", "hidden global state"),
    ("randomness_is_seeded", "service = 2", "np.random.default_rng()", "without a seed"),
]


@pytest.mark.parametrize(("rule", "old", "new", "advice"), BREAKS, ids=[f"{b[0]}-{b[3][:20]}" for b in BREAKS])
def test_a_rule_fires_on_a_lecture_that_breaks_it(rule, old, new, advice):
    notebook = a_lecture()
    touched = [cell for cell in notebook.cells if old in cell.source]
    assert touched, "the break touches nothing"
    for cell in touched:
        cell.source = cell.source.replace(old, new or "")
    if new is None:
        notebook.cells = [cell for cell in notebook.cells if cell not in touched]
    assert any(advice in problem for problem in problems_of(rule, notebook))


def test_a_picture_is_stored_with_its_sentence():
    notebook = a_lecture()
    display = nbformat.v4.new_output("display_data", {"image/png": "", "text/plain": "<Figure size 700x380>"})
    code(notebook, "service = 2").outputs = [display]
    assert "a picture without its sentence" in problems_of("pictures_have_alt_text", notebook)[0]
    display.data["text/plain"] = "At 80 % load the mean time is 1 s."
    assert problems_of("pictures_have_alt_text", notebook) == []


def test_the_median_code_cell_is_short():
    notebook = a_lecture()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = "a = 1\nb = 2\nc = 3\nd = 4"
    assert problems_of("code_cells_are_small", notebook) == [
        "the median code cell has 4 lines where at most 3 belong: split cells"
    ]


def test_an_exercise_is_stored_unanswered():
    notebook = a_lecture()
    code(notebook, "start.1").outputs = [nbformat.v4.new_output("stream", text="start.1: right. 20 ms")]
    assert "is stored with an answer" in problems_of("exercises_are_all_there", notebook)[0]


def test_every_cell_has_a_slide_type_and_sections_start_a_slide():
    notebook = a_lecture()
    del notebook.cells[2].metadata["slideshow"]
    assert "no slide type" in problems_of("cells_have_slide_metadata", notebook)[0]
    notebook.cells[1].metadata["slideshow"] = {"slide_type": "-"}
    assert 'make it "slide"' in problems_of("cells_have_slide_metadata", notebook)[0]


@pytest.mark.parametrize("count", [None, 7])
def test_cells_were_run_once_from_top_to_bottom(count):
    notebook = a_lecture()
    code(notebook, "service = 2").execution_count = count
    assert "run `make notebooks`" in problems_of("was_run_in_order", notebook)[0]


def test_no_error_is_stored():
    notebook = a_lecture()
    code(notebook, "service = 2").outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    assert "an error is stored" in problems_of("was_run_in_order", notebook)[0]


def test_an_ignored_output_says_why():
    notebook = a_lecture()
    cell = code(notebook, "service = 2")
    cell.metadata["tags"] = ["nbval-ignore-output"]
    assert "without a reason" in problems_of("ignored_outputs_have_a_reason", notebook)[0]
    cell.metadata["tags"].append("reason: shows the versions")
    assert problems_of("ignored_outputs_have_a_reason", notebook) == []


def test_the_kernel_is_python3():
    notebook = a_lecture()
    notebook.metadata["kernelspec"]["name"] = "my-venv"
    assert 'it must be "python3"' in next(kernel_is_python3(notebook))


def test_a_short_notebook_stays_short():
    assert "1 belong" in problems_of("is_short_enough", a_lecture(), Form("start", most_cells=1))[0]


def test_a_lecture_has_enough_exercises():
    assert "at least 6 belong" in problems_of("exercises_are_all_there", a_lecture(), Form("start"))[0]


def test_an_import_may_be_allowed_with_its_reason():
    notebook = a_lecture()
    code(notebook, "service = 2").source = "from concurrent.futures import ProcessPoolExecutor"
    assert problems_of("imports_only_the_library", notebook)
    form = Form("start", other_imports={"concurrent.futures": "the sweep runs on several processes"})
    assert problems_of("imports_only_the_library", notebook, form) == []


def test_a_random_function_of_the_library_is_passed_a_seed(monkeypatch):
    monkeypatch.setattr(serving_lib, "draw", lambda count, seed=None: (count, seed), raising=False)
    notebook = a_lecture()
    for source, problems in {"draw(3)": 1, "draw(3, 1)": 0, "draw(3, seed=1)": 0}.items():
        code_cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
        code_cell.source = source
        assert len(problems_of("randomness_is_seeded", notebook)) == problems


def test_every_rule_is_shown_to_fire():
    fired_elsewhere = {
        "is_short_enough",
        "cells_have_slide_metadata",
        "was_run_in_order",
        "ignored_outputs_have_a_reason",
        "kernel_is_python3",
    }
    assert {rule.__name__ for rule in RULES + NOTEBOOK_RULES} == {entry[0] for entry in BREAKS} | fired_elsewhere


@pytest.mark.parametrize(
    ("british", "american"),
    [
        ("utilisation", "utilization"),
        ("Behaviours", "Behaviors"),
        ("centre", "center"),
        ("labelled", "labeled"),
        ("analyse", "analyze"),
        ("optimising", "optimizing"),
        ("normalised", "normalized"),
        ("realise", "realize"),
    ],
)
def test_british_words_come_with_their_american_spelling(british, american):
    assert british_words(f"The {british} here") == [(british, american)]


@pytest.mark.parametrize("word", ["precise", "otherwise", "exercise", "promised", "noise", "four", "hours", "queueing"])
def test_american_words_are_left_alone(word):
    assert british_words(f"The {word} here") == []


def test_a_web_address_may_be_british():
    assert british_words("https://example.org/colour") == []


def problems_of(rule, notebook, form=SMALL):
    """The problems that one rule finds."""
    return list(getattr(lecture_linter, rule)(lecture_linter.cells_of(notebook), form))


def code(notebook, text):
    """The code cell whose source contains a text."""
    return next(cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source)


def a_lecture():
    """A small lecture that keeps every rule."""
    questions = {key: exercise.text(exercise.question) for key, exercise in exercises_of("start").items()}
    goals = "**Goals.** After this you can\n- compute an occupancy\n- choose a batch\n- predict a wait"
    cells = [
        ("markdown", f"# 01 Queueing\n\n{goals}"),
        ("markdown", "**Time.** 45 to 60 minutes\n\n**Prerequisites.** NumPy.\n\n## 1 The knee"),
        ("markdown", "How long?"),
        ("code", 'predict("How long?", [1, 2], answer=1 + 1)'),
        ("markdown", "Set the service time."),
        ("code", "service = 2"),
        ("markdown", "Move the load."),
        ("code", "explore(plots.mm1_knee)"),
        ("markdown", "Again."),
        ("code", "explore(plots.mm1_knee)"),
        ("markdown", "And again."),
        ("code", "explore(plots.mm1_knee)"),
        ("markdown", "## 7 When this formula lies\n\nOften."),
        ("markdown", '## Exercises\n\nStuck? `hint("start.1")`, and then `solution("start.1")`.'),
        ("markdown", questions["start.1"]),
        ("code", 'tpot = ...\ncheck("start.1", tpot)'),
        ("markdown", questions["start.2"]),
        ("code", 'metric = ...\ncheck("start.2", metric)'),
        ("markdown", "## Summary\n\nWait."),
        ("markdown", "## References\n\n- Little (1961), https://doi.org/10.1287/opre.9.3.383"),
    ]
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for kind, source in cells:
        new_cell = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        slide_type = "slide" if source.startswith("#") or "\n## " in source else "-"
        notebook.cells.append(new_cell(source, metadata={"slideshow": {"slide_type": slide_type}}))
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    return notebook

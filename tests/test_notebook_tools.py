"""The tool that executes notebooks: one normal form, no change without a change, no half-written file."""

import os
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest

from tests import notebook_tools
from tests.notebook_tools import WIDGET_STATE, cleared, execute, main, normalised, to_text, write_atomically

SOURCE = """\
import ipywidgets, sys
print("one"); print("two")
ipywidgets.VBox([ipywidgets.FloatSlider(description="load"), ipywidgets.Image(value=b"123")])"""


def notebook(*sources):
    cells = [nbformat.v4.new_markdown_cell("# Title"), *map(nbformat.v4.new_code_cell, sources)]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    return execute(notebook("1 + 1", SOURCE, "1 + 1"), tmp_path_factory.mktemp("run"))


def test_two_runs_give_the_same_bytes(executed, tmp_path):
    assert to_text(execute(executed, tmp_path)) == to_text(executed)


def test_widget_state_is_kept_and_points_at_the_output(executed):
    models = executed.metadata.widgets[WIDGET_STATE].state
    assert list(models) == [f"{number:032x}" for number in range(1, len(models) + 1)]
    (view,) = (output.data for output in executed.cells[2].outputs if "data" in output)
    column = models[view["application/vnd.jupyter.widget-view+json"]["model_id"]]
    assert column.model_name == "VBoxModel"
    assert {models[child.removeprefix("IPY_MODEL_")].model_name for child in column.state.children} == {
        "FloatSliderModel",
        "ImageModel",
    }


def test_lines_printed_one_by_one_are_one_output(executed):
    assert executed.cells[2].outputs[0].text == "one\ntwo\n"


def test_inserting_a_cell_leaves_the_ids_of_the_others(executed):
    longer = cleared(executed)
    longer.cells.insert(1, nbformat.v4.new_code_cell("2 + 2"))
    ids = [cell.id for cell in normalised(longer).cells]
    assert ids[:1] + ids[2:] == [cell.id for cell in executed.cells]


def test_cells_with_the_same_source_have_different_ids(executed):
    assert len({cell.id for cell in executed.cells}) == len(executed.cells)


def test_the_metadata_hold_nothing_of_whoever_ran_it():
    messy = notebook("1")
    messy.metadata = {"kernelspec": {"name": "mine", "display_name": "Mine"}, "language_info": {"version": "3.99"}}
    messy.cells[1].metadata = {"tags": ["hide"], "execution": {"started": "now"}, "collapsed": True}
    clean = normalised(messy)
    assert clean.metadata.kernelspec.name == "python3"
    assert clean.metadata.language_info == {"name": "python"}
    assert clean.cells[1].metadata == {"tags": ["hide"]}


def test_a_failing_cell_leaves_the_file_as_it_was_and_says_where(tmp_path, capsys):
    path = tmp_path / "broken.ipynb"
    path.write_text(to_text(notebook("1", "1 / 0")))
    before = path.read_bytes()
    assert main([str(path)]) == 1
    assert path.read_bytes() == before
    assert "broken.ipynb: a cell failed" in (error := capsys.readouterr().err)
    assert "ZeroDivisionError" in error


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failure):
    path = tmp_path / "a.ipynb"
    path.write_text("old")

    def fail(_):
        raise failure

    monkeypatch.setattr(notebook_tools.os, "fsync", fail)
    with pytest.raises(type(failure)):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.ipynb"]


def test_a_full_disk_is_said_and_the_next_notebook_is_run(tmp_path, monkeypatch, capsys):
    paths = [tmp_path / name for name in ("a.ipynb", "b.ipynb")]
    for path in paths:
        path.write_text(to_text(notebook("1 + 1")))
    before = paths[0].read_bytes()
    full_at_first = Mock(side_effect=[OSError(28, "No space left on device"), None])
    monkeypatch.setattr(notebook_tools.os, "fsync", full_at_first)
    assert main([str(path) for path in paths]) == 1
    assert "a.ipynb: it could not be written; the file is left as it was" in (said := capsys.readouterr()).err
    assert "No space left on device" in said.err
    assert "b.ipynb: updated" in said.out
    assert paths[0].read_bytes() == before


def test_a_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text("old")
    path.chmod(0o664)
    write_atomically(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o664)


COMMITTED = sorted(Path(__file__).parents[1].glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_the_committed_notebooks_are_in_normal_form(path):
    text = path.read_text(encoding="utf-8")
    committed = nbformat.reads(text, as_version=4)
    assert to_text(normalised(committed)) == text, "run: make notebooks"
    assert all(cell.execution_count for cell in committed.cells if cell.cell_type == "code"), "run: make notebooks"

"""Run notebooks top to bottom and write them in one normal form: ``python -m tests.notebook_tools notebooks/*.ipynb``.

The normal form holds nothing that differs from run to run, so that running an unchanged notebook again changes no byte,
and a diff shows what an author changed. It keeps the state of the widgets (with their model ids renumbered), so that
a trusted notebook shows its sliders and pictures before anything runs.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
KEPT_CELL_METADATA = ("tags", "slideshow")
# The minimal language_info: the Python version of whoever ran the notebook last is not the notebook's content.
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(notebook, folder, timeout=300):
    """Return an executed and normalised copy of a notebook, run in a clean kernel that was started in `folder`.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
    folder : pathlib.Path
    timeout : float
        Seconds that one cell may take.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell raises.
    """
    executed = cleared(notebook)
    client = NotebookClient(
        executed,
        kernel_name="python3",
        timeout=timeout,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],  # a warning per kernel about local sockets would hide what matters
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return normalised(executed)


def cleared(notebook):
    """Return a copy without outputs, execution counts and widget state."""
    copy = nbformat.from_dict(json.loads(json.dumps(notebook)))
    copy.metadata.pop("widgets", None)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return copy


def normalised(notebook):
    """Return a copy in the normal form: cell ids, metadata, execution counts and widget model ids.

    A cell's id comes from its source, so that inserting a cell leaves the ids of all others alone.
    """
    copy = nbformat.from_dict(json.loads(_renumber_models(notebook)))
    widgets = copy.metadata.get("widgets")
    copy.metadata = nbformat.from_dict(NOTEBOOK_METADATA | ({"widgets": widgets} if widgets else {}))
    copy.nbformat, copy.nbformat_minor = 4, 5
    used, count = set(), 0
    for cell in copy.cells:
        cell.id = _unused_id(cell, used)
        cell.metadata = nbformat.from_dict(
            {key: cell.metadata[key] for key in KEPT_CELL_METADATA if key in cell.metadata}
        )
        if cell.cell_type == "code":
            count += cell.execution_count is not None
            cell.execution_count = count if cell.execution_count is not None else None
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = cell.execution_count
    nbformat.validate(copy)
    return copy


def _renumber_models(notebook):
    """Return the notebook as JSON in which the random ids of widget models are 1, 2, 3 in the order of creation."""
    text = json.dumps(notebook)
    models = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    numbers = {old: f"{number:032x}" for number, old in enumerate(models, start=1)}
    return re.sub(r"[0-9a-f]{32}", lambda match: numbers.get(match[0], match[0]), text)


def _unused_id(cell, used):
    digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()
    for length in range(8, len(digest)):
        if digest[:length] not in used:
            break
    used.add(digest[:length])
    return digest[:length]


def to_text(notebook):
    """Return the bytes of the file as text: keys sorted, one space of indent, one newline at the end."""
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def write_atomically(path, text):
    """Replace the file at once, or leave the old one: a full disk or an interrupt never cuts a notebook short."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.notebook_tools", description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one cell may take (default 300)")
    options = parser.parse_args(arguments)
    failed = False
    for path in options.notebooks:
        started = time.perf_counter()
        before = path.read_text(encoding="utf-8")
        try:
            after = to_text(execute(nbformat.reads(before, as_version=4), path.parent, options.timeout))
            if after != before:
                write_atomically(path, after)
        except (CellExecutionError, OSError) as error:
            failed = True
            what = "a cell failed" if isinstance(error, CellExecutionError) else "it could not be written"
            print(f"{path}: {what}; the file is left as it was\n{error}", file=sys.stderr)
            continue
        outcome = "unchanged" if after == before else "updated"
        print(f"{path}: {outcome}, {time.perf_counter() - started:.1f} s, {len(after) / 1024:.0f} KiB")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

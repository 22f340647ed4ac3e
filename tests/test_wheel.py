"""The wheel is whole: it holds every file of the library, and the library works without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USE = """
import pathlib, sys, serving_lib
assert pathlib.Path(serving_lib.__file__).is_relative_to(pathlib.Path(sys.argv[1]).resolve()), serving_lib.__file__
from serving_lib import plots, profile
from serving_lib.models import GPUS, MODELS
from serving_lib.exercises import check
from serving_lib.widgets import explore
print(len(profile("azure-conv-2023", seed=1)), len(MODELS), len(GPUS))
check("queueing.1", ...)
explore(plots.mm1_knee)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from this checkout by the back end itself: nothing is fetched."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        yield file


def test_the_wheel_holds_every_file_of_the_library_and_the_settings_of_jupyterlab(wheel):
    library = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("serving_lib/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = {name.split(".data/data/")[-1] for name in wheel.namelist()}
    assert library <= names
    assert "share/jupyter/lab/settings/overrides.d/serving_workbook.json" in names
    assert "share/jupyter/labextensions/serving-workbook/package.json" in names


def test_the_library_works_without_the_repository(wheel, tmp_path):
    wheel.extractall(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "queueing.1" in run.stdout

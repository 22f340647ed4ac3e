"""The three statements of the environment agree, and the repository builds where readers build it."""

import importlib.metadata
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = [Requirement(text) for text in PROJECT["dependencies"]]
TEST = [Requirement(text) for text in PROJECT["optional-dependencies"]["test"]]
CONDA_NAMES = {"matplotlib": "matplotlib-base"}  # conda's matplotlib brings a whole desktop toolkit


def conda_dependencies():
    return YAML(typ="safe").load((ROOT / "environment.yml").read_text())["dependencies"]


def test_conda_and_pip_ask_for_the_same_versions():
    plain = [entry for entry in conda_dependencies() if isinstance(entry, str)]
    asked = {
        Requirement(entry).name: Requirement(entry).specifier for entry in plain if not entry.startswith("python=")
    }
    assert asked.pop("pip") == ""
    assert asked == {CONDA_NAMES.get(need.name, need.name): need.specifier for need in RUNTIME}


def test_conda_pins_a_python_that_the_project_supports_and_installs_the_project_last():
    dependencies = conda_dependencies()
    pin = next(entry for entry in dependencies if str(entry).startswith("python="))
    assert re.fullmatch(r"python=3\.\d+", pin)
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(pin.removeprefix("python="))
    assert dependencies[-1] == {"pip": ["-e ."]}


@pytest.mark.parametrize("need", RUNTIME + TEST, ids=lambda need: need.name)
def test_what_is_installed_is_what_is_asked_for(need):
    assert need.specifier.contains(importlib.metadata.version(need.name))


@pytest.mark.parametrize("need", RUNTIME + TEST, ids=lambda need: need.name)
def test_every_dependency_has_a_lower_and_an_upper_bound(need):
    assert {specifier.operator for specifier in need.specifier} == {">=", "<"}


def test_importing_the_library_loads_neither_matplotlib_nor_widgets():
    code = "import sys, serving_lib; print([m for m in ('matplotlib', 'ipywidgets', 'IPython') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_binder_builds_with_conda_and_installs_the_checkout():
    command = shutil.which("jupyter-repo2docker", path=pathlib.Path(sys.executable).parent)
    assert command, "jupyter-repo2docker is a test dependency and should stand beside python"
    run = subprocess.run([command, "--no-build", "--debug", "."], cwd=ROOT, capture_output=True, text=True)
    plan = run.stdout + run.stderr
    assert run.returncode == 0, plan[-2000:]
    assert "Building conda environment for python=3." in plan
    staged = re.search(r"^COPY --chown=\d+:\d+ src/", plan, re.MULTILINE).start()  # the owner is who runs the test
    installed = plan.index('env update -p ${NB_PYTHON_PREFIX} --file "environment.yml"')
    assert staged < installed, "the checkout must be there before `pip: -e .` is asked to install it"


def test_the_lab_settings_are_installed_where_jupyterlab_reads_them():
    installed = pathlib.Path(sys.prefix, "share/jupyter/lab/settings/overrides.d/serving_workbook.json")
    shipped = ROOT / "serving_lib/data/jupyterlab_overrides.json"
    assert json.loads(installed.read_text()) == json.loads(shipped.read_text())

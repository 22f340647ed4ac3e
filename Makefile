# Two commands do everything a reader needs: `make lab` and `make test`. Each sets itself up.
PYTHON ?= python3
PORT ?= 8888
BIN := .venv/bin
NOTEBOOKS := $(wildcard notebooks/*.ipynb)

.PHONY: lab test notebooks figures bench format clean

lab: .venv/lab  ## open the workbook in JupyterLab
	$(BIN)/python -m jupyterlab --allow-root --port=$(PORT) --ServerApp.root_dir=. \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB_ARGS)

test: .venv/test  ## check everything: style, tests and doctests, every cell of every notebook
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest --nbval -p no:cacheprovider $(NOTEBOOKS)

notebooks: .venv/test  ## execute the notebooks in place
	$(BIN)/python -m tests.notebook_tools $(NOTEBOOKS)

figures: .venv/test  ## draw the figures of the lectures as SVG
	$(BIN)/python -m serving_lib.plots figures

bench: .venv/test  ## measure the speed of everything that promises a speed
	$(BIN)/python -m tests.benchmarks

format: .venv/test  ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove what the set-up made
	rm -rf .venv

# The stamps hold the set-up's state: a changed pyproject.toml installs again.
.venv/test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch .venv/test .venv/lab

.venv/lab: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch .venv/lab

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, got " + sys.version.split()[0] + ". Try: make $(MAKECMDGOALS) PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

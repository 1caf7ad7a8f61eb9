# `make demo` and `make test` install what they need into .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; to compile all that is installed takes a minute or two.
export PIP_NO_COMPILE := 1

.PHONY: demo deploy-demo test test-quick test-slow test-all test-deploy coverage lint types bench clean help

help:
	@echo "make demo   compare three methods of federated learning on rotated digits (under a minute after set-up)"
	@echo "make test   lint, types and the quick tests (up to six minutes on two cores)"
	@echo "make test-all     the same, then the slow tests: exhaustive grids, killing, fuzzing, browser"
	@echo "make coverage     lines that the quick and the slow tests run: at least 95 % (takes two thirds longer than they do)"
	@echo "make test-deploy  tests with real servers and sites on this machine (some minutes)"
	@echo "make deploy-demo  a federation of four sites on this machine: TLS, keys, one dies and comes back (under four minutes)"
	@echo "make bench  seconds per round of every engine on this machine (fedfew bench)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(VENV)/installed $@

demo: $(VENV)/installed
	$(BIN)/fedfew demo

$(VENV)/installed-flower: pyproject.toml $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[flower]"
	@touch $@

deploy-demo: $(VENV)/installed-flower
	$(BIN)/python examples/deploy_demo.py

PYTEST := -m pytest -n 2 --dist worksteal --durations 20

# Types are checked beside the tests: mypy uses one core, a minute from scratch.
test: lint
	$(MAKE) --no-print-directory -j 2 types test-quick

test-quick: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -m "not deploy and not slow"

test-slow: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -m "slow and not deploy"

test-all:
	$(MAKE) test
	$(MAKE) test-slow

# Not part of the others: under coverage the tests take two thirds longer.
coverage: $(VENV)/installed-dev
	rm -f .coverage .coverage.*
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run $(PYTEST) -m "not deploy"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

test-deploy: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m deploy -n 2 --dist loadfile --durations 20

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/fedfew bench

clean:
	rm -rf $(VENV) runs demo .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis

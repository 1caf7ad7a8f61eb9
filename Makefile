# `make demo` and `make test` set up what they need in .venv, once, and do nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo deploy-demo test test-deploy lint types bench clean help

help:
	@echo "make demo   watch three ways of federated learning on rotated digits (under a minute after set-up)"
	@echo "make test   lint, types and tests, with coverage"
	@echo "make test-deploy  tests with real servers and sites on this machine (some minutes)"
	@echo "make deploy-demo  a federation of four sites on this machine: TLS, keys, one dies and comes back (under four minutes)"
	@echo "make bench  seconds a round, sequential against stacked engine"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: $(VENV)/installed
	$(BIN)/fedfew demo

$(VENV)/installed-flower: pyproject.toml $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[flower]"
	@touch $@

deploy-demo: $(VENV)/installed-flower
	$(BIN)/python examples/deploy_demo.py

test: lint types
	rm -f .coverage .coverage.*
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -m "not deploy" -n 2 --dist worksteal
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

test-deploy: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m deploy -n 2 --dist loadfile --durations 0 --durations-min 5

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python benchmarks/engines.py

clean:
	rm -rf $(VENV) runs demo .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis

# `make demo` and `make test` set up what they need in .venv, once, and do nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types bench clean help

help:
	@echo "make demo   watch three ways of federated learning on rotated digits (under a minute after set-up)"
	@echo "make test   lint, types and tests, with coverage"
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

test: lint types
	rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python benchmarks/engines.py

clean:
	rm -rf $(VENV) runs demo .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis

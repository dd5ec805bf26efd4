# Two commands on a fresh machine with Python 3.11 and pip: `make demo`, `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-hospitals quick lint types format bench setup setup-dev clean

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (PyTorch for CPU; a minute or two the first time) …"
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e ".[dev,flower,medical,export,tensorboard]"
	@touch $@

setup: $(VENV)/.core  ## install the package into .venv
setup-dev: $(VENV)/.dev

demo: $(VENV)/.core  ## train four methods on generated images and write a report page
	$(BIN)/equipoise demo

test: $(VENV)/.dev lint  ## every check, and every test but those of test-hospitals
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not hospitals"

test-hospitals: $(VENV)/.dev  ## real Flower processes on this machine, with TLS and keys: some minutes, mostly waiting
	$(BIN)/python -m pytest -n 0 -m hospitals

quick: $(VENV)/.dev  ## the tests that take seconds
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix src tests benchmarks docs
	$(BIN)/ruff format src tests benchmarks docs
	$(BIN)/python docs/generate.py

bench: $(VENV)/.dev  ## speed, as ratios to a bare PyTorch loop
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache

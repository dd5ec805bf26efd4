# Two commands on a fresh machine with Python 3.11 and pip: `make demo`, `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

unexport PYTHONDONTWRITEBYTECODE  # compiled files save every process we start half a second

.PHONY: demo test suite style test-all test-hospitals test-flower audit attacks browser quick docs lint types format bench setup setup-dev clean

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (PyTorch for CPU; a minute or two the first time) …"
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e ".[dev,flower,medical,export,dp,ray,tensorboard,mlflow,wandb,docs]"
	@touch $@

setup: $(VENV)/.core  ## install the package into .venv
setup-dev: $(VENV)/.dev

demo: $(VENV)/.core  ## train five methods on generated images and write a report page
	$(BIN)/equipoise demo

browser:  ## Chromium, for the tests of the report pages: installed where it is missing and we may
	@command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing Chromium for the tests of the report pages …" \
	    && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium here: the tests that open the report pages are skipped, and say so"

MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df -Pk /dev/shm | awk 'NR == 2 {print $$4}')" -gt 4000000 ] && echo /dev/shm)
TEST = $(if $(MEMORY),TMPDIR=$(MEMORY) )$(BIN)/python -m pytest# what tests write is kept in memory where there is room

test: $(VENV)/.dev browser  ## every check, and every test but those of test-all, test-hospitals and audit
	@$(MAKE) --no-print-directory --jobs=2 style suite

suite:
	$(TEST) -n 3 --dist worksteal -m "not hospitals and not sweep and not audit"

test-all: $(VENV)/.dev lint browser  ## the same rules over many more combinations, and the audit: an hour
	$(TEST) -n 2 --dist worksteal -m "not hospitals"

audit: $(VENV)/.dev  ## flipped bits, hostile files, a hostile site, a hostile coordinator: some minutes
	$(TEST) -n 2 --dist worksteal -m audit

attacks: $(VENV)/.dev  ## what a curious coordinator finds out and hostile sites do, with and without protection: some minutes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m audit tests/attacks
	$(BIN)/python -m tests.attacks

test-hospitals: $(VENV)/.dev  ## real Flower processes on this machine, with TLS and keys: a quarter of an hour, mostly waiting
	$(BIN)/python -m pytest -n 0 -m hospitals

FLOWER ?= 1.42
FLOWER_VENV = .venv-flower-$(FLOWER)

test-flower: $(VENV)/.dev  ## tests/flower, real processes included, with another version of Flower: FLOWER=1.42
	test -d $(FLOWER_VENV) || { mkdir $(FLOWER_VENV) && cp -a $(VENV)/. $(FLOWER_VENV)/; }
	$(FLOWER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(FLOWER_PIP) "flwr==$(FLOWER).*"
	$(FLOWER_VENV)/bin/python -m pytest -n 0 tests/flower

quick: $(VENV)/.dev browser  ## the tests that take seconds
	$(TEST) -n 3 --dist worksteal -m "not slow and not hospitals and not sweep and not audit"

style: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/mypy
	$(BIN)/lint-imports

lint: style  ## and whether generated pages are fresh, which a test asks too
	$(BIN)/python docs/generate.py --check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix src tests benchmarks docs
	$(BIN)/ruff format src tests benchmarks docs
	$(BIN)/python docs/generate.py

docs: $(VENV)/.dev  ## the documentation as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev  ## speed, as ratios to a bare PyTorch loop
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf $(VENV) runs site .pytest_cache .mypy_cache .ruff_cache

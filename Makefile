PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/installed

.PHONY: demo test test-all check docs bench bench-network install clean

demo: $(INSTALLED)  ## train DPZV on digits, 4 clients, no download
	$(BIN)/vertizo train

test: $(INSTALLED)  ## every test that belongs to make check
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: $(INSTALLED)  ## the long tests as well
	$(BIN)/python -m pytest -n auto

check: $(INSTALLED)  ## what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto -m "not slow"
	$(BIN)/python -m pytest --doctest-modules src/vertizo

docs: $(INSTALLED)  ## the documentation, to build/docs; warnings are errors
	$(BIN)/python docs/generate
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

bench: $(INSTALLED)  ## speed as ratios, codecs, memory; each measured in one run, one thread
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/codecs.py
	$(BIN)/python benchmarks/memory.py

bench-network: $(INSTALLED)  ## the network against bare gRPC streams, and FLARE; loopback, mutual TLS
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/network_job.py
	$(BIN)/python benchmarks/flare.py

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

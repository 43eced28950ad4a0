PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/installed
WITH_JAX = $(VENV)/installed-bench
RESULTS ?= benchmarks/results

.PHONY: demo test test-all check docs bench bench-network install clean

demo: $(INSTALLED)  ## train DPZV on digits, 4 clients, no download
	$(BIN)/vertizo train

test: $(INSTALLED)  ## every test that belongs to make check; what starts processes comes second
	$(BIN)/python -m pytest -n auto -m "not slow and not processes"
	$(BIN)/python -m pytest -n 2 -m "processes and not slow"

test-all: $(INSTALLED)  ## the long tests as well
	$(BIN)/python -m pytest -n auto

check: $(INSTALLED)  ## what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto -m "not slow and not processes"
	$(BIN)/python -m pytest -n 2 -m "processes and not slow"
	$(BIN)/python -m pytest --doctest-modules src/vertizo

docs: $(INSTALLED)  ## the documentation, to build/docs; warnings are errors
	$(BIN)/python docs/generate
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

bench: $(WITH_JAX)  ## speed, memory, bytes, growth; ratios of one run on one core; one table
	$(BIN)/python benchmarks/rounds.py --json $(RESULTS)/rounds.json
	$(BIN)/python benchmarks/coding.py --json $(RESULTS)/coding.json
	$(BIN)/python benchmarks/memory.py --json $(RESULTS)/memory.json
	$(BIN)/python benchmarks/large.py --json $(RESULTS)/large.json
	$(BIN)/python benchmarks/table.py --json $(RESULTS)/table.json
	$(BIN)/python benchmarks/bytes.py --json $(RESULTS)/bytes.json
	$(BIN)/python benchmarks/summary.py $(RESULTS)

bench-network: $(INSTALLED)  ## the network against bare gRPC streams, and FLARE; loopback, mutual TLS
	$(BIN)/python benchmarks/network.py --json $(RESULTS)/network.json
	$(BIN)/python benchmarks/network_job.py --json $(RESULTS)/network_job.json
	$(BIN)/python benchmarks/flare.py --json $(RESULTS)/flare.json
	$(BIN)/python benchmarks/summary.py $(RESULTS)

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt $(wildcard src/vertizo/core/kernels/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(WITH_JAX): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/installed
WITH_TESTS = $(VENV)/installed-dev
WITH_JAX = $(VENV)/installed-bench
RESULTS ?= benchmarks/results
# PyTorch alone comes from here: PyPI's build for Linux brings 4 GB of GPU libraries. For those:
# make demo TORCH_INDEX=https://pypi.org/simple
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TOOLS = .venv-tools
# What a party installs: the base and these extras, on Linux with Python 3.11.
PINNED = --extra psi --extra metrics --extra scoring --python-version 3.11 --python-platform x86_64-manylinux_2_28
# PyTorch's CPU build, from its own index; make pins TORCH_PINS= takes PyPI's.
TORCH_PINS ?= --torch-backend cpu
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# A test process starts in 2.5 s of a core with compiled bytecode, in 6 s without: keep it, wherever
# the environment says not to, and apart from the sources.
test test-all test-rooms card card-search fresh style types doctest check: export PYTHONDONTWRITEBYTECODE =
test test-all test-rooms fresh style types doctest check: export PYTHONPYCACHEPREFIX = $(CURDIR)/$(VENV)/bytecode
PYTEST = $(BIN)/python -m pytest -n auto --dist loadgroup
# Needs Triton, which builds of PyTorch for a card bring.
TRITON = src/vertizo/core/arrays/fused.py
# What has tests that need a card.
OF_CARD = tests/contracts/test_graphs.py tests/contracts/test_levels.py tests/contracts/test_sensitivity.py \
	tests/models/test_device.py tests/zeroth_order/test_card_directions.py
ROOMS ?= tests
BUDGET ?= 90

.PHONY: demo test test-all test-rooms test-triton card card-search fresh lint style types doctest check lowest docs bench bench-network install pins sbom audit clean

demo: $(INSTALLED)  ## train DPZV on digits, 4 clients, no download
	$(BIN)/vertizo train

test: $(WITH_TESTS)  ## the gate
	@echo "The gate: behaviour, contracts in pairs, one job under mutual TLS, one kill and resume. Five minutes on two cores."
	$(PYTEST) -m "not full and not fresh"

test-all: $(WITH_TESTS)  ## the gate and the full tier
	@echo "The full tier: every combination, processes, kills, browser, notebooks, FLARE, Ray, memory. About half an hour on two cores."
	$(PYTEST) -m "not fresh"
	$(MAKE) doctest

test-rooms: $(WITH_TESTS)  ## the full tier of some rooms: make test-rooms ROOMS="tests/privacy tests/run" BUDGET=600
	@echo "The full tier of $(ROOMS): as much as begins within $(BUDGET) seconds, and nothing that takes minutes."
	$(PYTEST) -m "full and not long" --budget $(BUDGET) $(ROOMS) || test $$? = 5  # no test of these rooms is full

card: $(WITH_TESTS)  ## on a graphics card: its tests, and speed, memory and precision there; TORCH_INDEX as above
	@echo "On a card: tests, speed, memory, precision. Six minutes on an H200; what fails stops nothing that follows."
	@failed=0; try() { echo "$$@"; "$$@" || failed=1; }; \
	try $(BIN)/python -m pytest -m "not fresh" -k "(cuda or processor or on_a_card) and not cuda-full" $(OF_CARD); \
	try $(BIN)/python benchmarks/devices.py --json $(RESULTS)/devices.json; \
	try $(BIN)/python benchmarks/memory.py --device cuda --json $(RESULTS)/memory_card.json; \
	try $(BIN)/python benchmarks/precision.py --json $(RESULTS)/precision_card.json; \
	exit $$failed

card-search: $(WITH_TESTS)  ## on a graphics card: the search for records that move a release too far, five minutes
	$(BIN)/python -m pytest -m "full" -k "cuda-full" tests/contracts/test_sensitivity.py

test-triton: $(WITH_TESTS)  ## kernels of a card, compiled and by Triton's interpreter; installs Triton, 300 MB
	$(INSTALL) triton
	$(BIN)/python -m pytest tests/zeroth_order/test_card_directions.py -k compile
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/zeroth_order/test_card_directions.py tests/models/test_losses.py

fresh: $(WITH_TESTS)  ## pages against results, a sample of reruns, the lowest versions
	@echo "Freshness: pages against results files, a sample of reruns, the lowest versions. Six minutes on two cores."
	$(PYTEST) -m "fresh"
	PYTHON=$(PYTHON) .ci/lowest

lint: style types  ## two minutes, and less with -j2

style: $(WITH_TESTS)
	@echo "Format, lint, floors: half a minute."
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(WITH_TESTS)
	@echo "Types: two minutes, and seconds where little changed."
	$(BIN)/mypy

check: lint test  ## what CI runs first: format, lint, types, floors, and the gate

doctest: $(WITH_TESTS)  ## the examples in docstrings
	$(BIN)/python -m pytest --doctest-modules --ignore=$(TRITON) src/vertizo

lowest:  ## core tests with the lowest versions allowed, and with Python 3.13
	@echo "The gate's core tests with the lowest versions, and with Python 3.13: four minutes."
	PYTHON=$(PYTHON) .ci/lowest

docs: $(WITH_TESTS)  ## the documentation, to build/docs; warnings are errors
	$(BIN)/python docs/generate
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

bench: $(WITH_JAX)  ## speed, memory, bytes, growth; ratios of one run on one core; one table
	$(BIN)/python benchmarks/rounds.py --json $(RESULTS)/rounds.json
	$(BIN)/python benchmarks/coding.py --json $(RESULTS)/coding.json
	$(BIN)/python benchmarks/images.py --json $(RESULTS)/images.json
	$(BIN)/python benchmarks/memory.py --json $(RESULTS)/memory.json
	$(BIN)/python benchmarks/large.py --json $(RESULTS)/large.json
	$(BIN)/python benchmarks/million.py --json $(RESULTS)/million.json
	$(BIN)/python benchmarks/table.py --json $(RESULTS)/table.json
	$(BIN)/python benchmarks/bytes.py --json $(RESULTS)/bytes.json
	$(BIN)/python benchmarks/precision.py --json $(RESULTS)/precision.json
	$(BIN)/python benchmarks/summary.py $(RESULTS)

bench-network: $(WITH_TESTS)  ## the network against bare gRPC streams, and FLARE; loopback, mutual TLS
	$(BIN)/python benchmarks/network.py --json $(RESULTS)/network.json
	$(BIN)/python benchmarks/network_job.py --json $(RESULTS)/network_job.json
	$(BIN)/python benchmarks/alignment.py --json $(RESULTS)/alignment.json
	$(BIN)/python benchmarks/scoring.py --json $(RESULTS)/scoring.json
	$(BIN)/python benchmarks/flare.py --json $(RESULTS)/flare.json
	$(BIN)/python benchmarks/summary.py $(RESULTS)

install: $(WITH_TESTS)

pins: build/pins.txt  ## what a party installs, each with its hashes: pip install --require-hashes -r build/pins.txt

sbom: build/sbom.json  ## the same as a CycloneDX bill of materials

audit: build/pins.txt  ## known vulnerabilities of the same; asks a service on the network
	.ci/audit $(TOOLS)/bin/pip-audit build/pins.txt

build/pins.txt: $(TOOLS)/installed pyproject.toml constraints.txt
	mkdir -p build
	$(TOOLS)/bin/uv pip compile --quiet --no-header --generate-hashes --no-emit-index-url $(TORCH_PINS) \
		$(PINNED) -c constraints.txt pyproject.toml -o $@

build/sbom.json: build/pins.txt
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application \
		--output-reproducible --of JSON -o $@ build/pins.txt

$(TOOLS)/installed: Makefile
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9' 'cyclonedx-bom>=7' 'pip-audit>=2.9'
	touch $@

$(INSTALLED): pyproject.toml setup.py constraints.txt $(wildcard src/vertizo/core/kernels/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --no-deps --retries 1 --index-url $(TORCH_INDEX) torch
	$(INSTALL) -e .
	touch $@

$(WITH_TESTS): $(INSTALLED)
	$(INSTALL) -e '.[dev]'
	touch $@

$(WITH_JAX): $(WITH_TESTS)
	$(INSTALL) -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) $(TOOLS) .venv-lowest build/pins.txt build/sbom.json .mypy_cache .ruff_cache .pytest_cache

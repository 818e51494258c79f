# `make demo` and `make test` install everything they need into .venv; only Python is required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# Two workers with one thread each: more only wait for each other.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-cpus test-slow test-integrations lint types unit reproduction-smoke benchmarks docs wheel clean

demo: $(VENV)/.demo  ## Train with and without scdro on data with hidden groups; prints a table, draws a picture
	OMP_NUM_THREADS=2 $(BIN)/python examples/hidden_digits.py

test: lint types unit  ## Lint, type-check and test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(PYTEST)

test-cpus: $(VENV)/.dev  ## The tests with the kernels of other CPUs, which round differently, and with more threads
	# Inductor's cache does not notice a different CPU: each run gets its own.
	TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(VENV)/inductor/haswell OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=2 $(PYTEST)
	TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(VENV)/inductor/zen OPENBLAS_CORETYPE=Zen OPENBLAS_NUM_THREADS=2 $(PYTEST)
	! grep -q avx512bw /proc/cpuinfo || TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(VENV)/inductor/skylakex OPENBLAS_CORETYPE=SkylakeX ATEN_CPU_CAPABILITY=default $(PYTEST)

test-slow: $(VENV)/.dev  ## The tests that take minutes
	$(BIN)/python -m pytest -n 2 -m slow --timeout 1800

test-integrations: $(VENV)/.integrations  ## The tests with Lightning, transformers, accelerate, skorch, tensorboard and Dask installed
	$(BIN)/python -m pytest -n 2 -m integration tests reproduction
	$(BIN)/python -m pytest -o addopts="-q --doctest-modules" src/scdro/integrations

reproduction-smoke: $(VENV)/.dev  ## Run one of the paper's experiments at the smallest scale
	$(BIN)/python -m reproduction figure1 --scale smoke

benchmarks: $(VENV)/.dev  ## Measure what the docs claim about stability and cost
	$(BIN)/python benchmarks/stability.py
	$(BIN)/python benchmarks/nonstationary.py
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/distributed.py
	$(BIN)/python benchmarks/pipeline.py

docs: $(VENV)/.docs  ## Build the documentation site, site/index.html; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --no-isolation

$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25.1"  # the first to read [dependency-groups]
	$(PIP) torch
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e . --group demo
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) -e . --group dev
	touch $@ $(VENV)/.demo

$(VENV)/.integrations: $(VENV)/.dev
	$(PIP) -e . --group integrations
	touch $@

$(VENV)/.docs: $(VENV)/.torch pyproject.toml
	$(PIP) -e . --group docs
	touch $@

clean:
	rm -rf $(VENV) dist build site .mypy_cache .pytest_cache .ruff_cache

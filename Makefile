# Each target works alone from a fresh clone: it makes the virtual environment it needs.
# Needed: Python >= 3.11 with venv, make, git. PYTHON=... chooses an interpreter, VENV=... another place.

PYTHON ?= $(firstword $(foreach v,python3 python3.11 python3.12 python3.13 python,$(shell command -v $(v) >/dev/null 2>&1 && $(v) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 && echo $(v))))
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
DEMO_OUT ?= runs/demo

RESULTS ?= benchmarks/results

.PHONY: help setup demo test test-long test-distributed test-network test-torch test-extras test-lowest test-fast test-all faults fuzz attacks soak reproductions docs bench bench-peers audit lint format lock clean

help:            ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/  /'

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11, 3.12 or 3.13 is needed and none was found; give PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; install it (Debian: python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY)  ## make the virtual environment

demo: $(READY)   ## compare adaptive optimizers on non-iid digits; ends with the path of the report
	$(BIN)/fedoptax compare --task digits --algorithms fedavg,fedavgm,fedadagrad,fedadam,fedyogi,fedams --seeds 3 --rounds 100 --out $(DEMO_OUT) --overwrite

test: lint       ## lint, types and tests (about 14 minutes of tests on 2 idle cores; slow: XLA compiles a program for most laws, engine and task tests)
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not long"

test-long: $(READY) ## every algorithm with its preset on digits and MNIST, the largest tasks (half an hour or so, not measured as a whole; what has no files is skipped)
	$(BIN)/python -m pytest -q -m long --ignore=tests/deploy --ignore=tests/torch --ignore=tests/experiments/test_distributed.py

test-network: $(READY) ## real servers and nodes on loopback: rounds, faults, resuming (about 15 minutes; needs no other machine)
	$(BIN)/python -m pytest -q -m long tests/deploy/test_deploy_network.py tests/deploy/test_deploy_faults.py tests/deploy/test_deploy_resume.py

test-distributed: $(READY) ## two processes killed, hung, stopped, resumed, and every mesh (about 25 minutes on two busy cores)
	$(BIN)/python -m pytest -q -m long tests/experiments/test_distributed.py tests/engine/test_sharded.py

test-torch: $(READY) ## the PyTorch clients, alone and on a real network; installs PyTorch (about 5 minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pytest -q tests/torch

.venv-extras/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear .venv-extras
	.venv-extras/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	.venv-extras/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e ".[optuna,tensorboard,mlflow,wandb]"
	@touch $@

test-extras: .venv-extras/.ready ## Optuna, TensorBoard, MLflow and W&B, in an environment of their own (about 5 minutes with installing)
	.venv-extras/bin/python -m pytest -q tests/experiments/test_tuning.py tests/experiments/test_trackers.py

.venv-lowest/.ready: pyproject.toml
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct -e ".[flower,huggingface,mlflow,optuna,privacy,tensorboard,wandb]"
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python pytest pytest-timeout pytest-xdist hypothesis ruff
	@touch $@

test-lowest: .venv-lowest/.ready ## the fast tests with the oldest versions that pyproject.toml allows (about 10 minutes); their own warnings are no errors
	.venv-lowest/bin/python -m pytest -n 2 --dist worksteal -q -m "not slow and not long" -o filterwarnings=default

test-fast: $(READY) ## tests without the slow suites
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow and not long"

test-all:        ## the tests under every Python of 3.11, 3.12, 3.13 that is installed
	@for v in 3.11 3.12 3.13; do \
	  if command -v python$$v >/dev/null 2>&1 && python$$v -c '' >/dev/null 2>&1; then \
	    echo "== Python $$v"; $(MAKE) --no-print-directory test PYTHON=python$$v VENV=.venv-$$v || exit 1; \
	  else echo "== Python $$v: not installed, skipped"; fi; \
	done

faults: $(READY) ## the real program killed, filled up, damaged, raced: cases tried, survived, refused, lost (about 25 minutes)
	$(BIN)/python benchmarks/faults.py --out $(RESULTS)

fuzz: $(READY)   ## every reader of foreign bytes, a minute each (about 30 minutes)
	$(BIN)/python benchmarks/fuzz.py --seconds 60 --out $(RESULTS)

attacks: $(READY) ## algorithms against attacks under every aggregator (about 15 minutes)
	$(BIN)/python benchmarks/attacks.py

soak: $(READY)   ## half an hour of one run: memory and time of a round stay flat
	$(BIN)/python benchmarks/soak.py --minutes 30 --out $(RESULTS)

.venv-audit/.ready:
	$(PYTHON) -m venv --clear .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check "pip-audit>=2.9"
	@touch $@

audit: .venv-audit/.ready ## known vulnerabilities of the locked packages; status 3: the advisories cannot be reached
	.venv-audit/bin/python tools/audit.py

reproductions: $(READY) ## the gallery of published claims, reduced to two cores (hours; goes on where it was stopped)
	for name in $$(ls benchmarks/reproductions/*.toml); do \
	  $(BIN)/python benchmarks/reproductions/run.py $$(basename $$name .toml) || exit 1; done

docs: $(READY)   ## the documentation site, in build/site; a warning is an error
	$(BIN)/python -m sphinx -c docs -W --keep-going -q . build/site
	@echo build/site/index.html

bench: $(READY)  ## times against the peers and the machine's limit (about an hour; nothing else should run meanwhile)
	$(BIN)/python benchmarks/bench/run.py --out $(RESULTS)

bench-peers:     ## the peers' environments, .venv-peer-*: torch, pfl-research, FedJAX, Flower's simulation
	for peer in "torch torch==2.13.0 numpy" "pfl pfl==0.6.0 torch==2.13.0" "fedjax fedjax==0.0.17" "flower flwr[simulation]==1.40.0 torch==2.13.0"; do \
	  set -- $$peer; place=.venv-peer-$$1; shift; \
	  $(PYTHON) -m venv --clear $$place && $$place/bin/python -m pip install --quiet --disable-pip-version-check "$$@" || exit 1; done

lint: $(READY)   ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:            ## pin the newest allowed versions for all supported Pythons
	uv pip compile --universal --python-version 3.11 --fork-strategy fewest --group dev pyproject.toml --no-header --generate-hashes -o requirements.lock

clean:           ## remove the virtual environments and caches
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .mypy_cache

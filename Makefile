# A fresh clone needs make and a Python >= 3.11; every target makes .venv itself. Tests also need Linux and a C compiler.
#
#   PYTHON=python3.13 make test     chooses the interpreter (while .venv does not exist yet)
#   make bench ARGS="--help"        ARGS goes to the program behind the target

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Stamps lie inside .venv, so that deleting it forgets them too.
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check docs coverage faults bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO) ## run the incident triage example; it kills itself, and the same command goes on
	@$(BIN)/python -m examples.incident_triage $(ARGS)

# Hundreds of processes of the tests import the same modules: each would compile them anew.
test coverage: export PYTHONDONTWRITEBYTECODE :=
# worksteal: the tests of a file stay together, and so does what is made once for all of them, such as a wheel.
test: check docs ## check, build the documentation, then run all tests (README, docs and examples are run too)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

coverage: $(DEV) ## run all tests and say which lines they miss; takes twice as long
	$(BIN)/python -m pytest -n 2 --cov=holdfast $(ARGS)

check: $(DEV) ## formatting, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(DOCS) ## build the documentation as a site in build/site; links that lead nowhere are errors
	@$(BIN)/python scripts/build_docs.py

faults: $(DEV) ## kill, stop and race processes, fail their calls, cut the power, thousands of times (a short form is in make test)
	$(BIN)/python -m tests.faults.sigkill --store sqlite --kills 1000 $(ARGS)
	$(BIN)/python -m tests.faults.sigkill --store file --kills 1000 $(ARGS)
	set -e; for store in sqlite file late; do \
	  $(BIN)/python -m tests.faults.sigkill --store $$store --kills 300 --durability async; \
	done
	$(BIN)/python -m tests.faults.sigkill --store sqlite --kills 300 --durability exit
	$(BIN)/python -m tests.faults.journal --store sqlite --kills 200 $(ARGS)
	$(BIN)/python -m tests.faults.journal --store file --kills 200 $(ARGS)
	$(BIN)/python -m tests.faults.sleepers --store sqlite --runs 10000 --kills 10 --spread 120 $(ARGS)
	$(BIN)/python -m tests.faults.sleepers --store file --runs 1000 --kills 10 --spread 20 $(ARGS)
	$(BIN)/python -m tests.faults.sleepers --store sqlite --memory 2000 10000
	$(BIN)/python -m tests.faults.sleepers --store file --memory 2500 4000 --allocated
	set -e; for store in sqlite file; do \
	  $(BIN)/python -m tests.faults.corruption --store $$store --count 500; \
	  $(BIN)/python -m tests.faults.repairs --store $$store --kills 200; \
	  $(BIN)/python -m tests.faults.hammer --store $$store --rounds 100; \
	  $(BIN)/python -m tests.faults.answers --store $$store --rounds 100; \
	  $(BIN)/python -m tests.faults.zombies --store $$store; \
	  $(BIN)/python -m tests.faults.poison --store $$store; \
	  $(BIN)/python -m tests.faults.letters --store $$store; \
	  $(BIN)/python -m tests.faults.cancels --store $$store; \
	  $(BIN)/python -m tests.faults.retention --store $$store --kills 200 killed-writers killed-sweeps beside-writers; \
	  $(BIN)/python -m tests.faults.retention --store $$store --kills 100 --steps 10000 room; \
	  $(BIN)/python -m tests.faults.power_loss --store $$store; \
	  $(BIN)/python -m tests.faults.errors --store $$store --count 1000; \
	  $(BIN)/python -m tests.faults.call_kills --store $$store --count 1000; \
	done

bench: $(DEV) ## measure beside peers and limits; ARGS=--quick for a rough answer
	@$(BIN)/python -m bench $(ARGS)

clean: ## remove .venv and everything that was generated
	rm -rf $(VENV) build dist htmlcov .bench .cache .demo .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -f .coverage .coverage.*
	find . -name .git -prune -o -type d -name __pycache__ -exec rm -rf {} +

# The upgrade is for --group, which the pip that comes with Python 3.11 and 3.12 lacks.
$(DEMO): pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh $(VENV) "$(PYTHON)"
	@echo "installing holdfast[demo] into $(VENV)"
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --editable '.[demo]'
	@touch $@

$(DEV): pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh $(VENV) "$(PYTHON)"
	@echo "installing holdfast[cli,demo] with the development tools into $(VENV)"
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --editable '.[cli,demo]' --group dev
	@touch $@

$(DOCS): $(DEV)
	@echo "installing the tools of the documentation into $(VENV)"
	@$(BIN)/python -m pip install -qq --group docs
	@touch $@

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

# Code 3 says that the run waits for an answer, where there is no terminal to ask at: nothing failed.
demo: $(DEMO) ## run the incident triage; it kills itself, and the same command goes on
	@$(BIN)/holdfast demo $(ARGS) || [ $$? -eq 3 ]

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

faults: $(DEV) ## kill, stop and race processes, fail their calls, cut the power, tamper, fuzz: one table (short forms are in make test)
	@$(BIN)/python -m pip install -qq --group faults || echo "atheris does not install here: fuzzing goes by chance"
	$(BIN)/python -m tests.faults $(ARGS)

bench: $(DEV) ## measure beside peers and limits; ARGS=--quick for a rough answer
	@$(BIN)/python -m bench $(ARGS)

clean: ## remove .venv and everything that was generated
	rm -rf $(VENV) build dist htmlcov .bench .cache .demo .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .schemathesis
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
	@echo "installing holdfast[cli,demo,server] with the development tools into $(VENV)"
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --editable '.[cli,demo,server]' --group dev
	@touch $@

$(DOCS): $(DEV)
	@echo "installing the tools of the documentation into $(VENV)"
	@$(BIN)/python -m pip install -qq --group docs
	@touch $@

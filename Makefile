# Every target does its own set-up: a virtualenv in .venv, the locked tools, and the package with its
# guest image. Needed: Python 3.11 or newer with venv and pip, and make. No root.
#
# Set-up is remembered in stamp files inside .venv, one per step, so a second start costs nothing.
# Another interpreter: make clean, then make PYTHON=/path/to/python test.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# The slow steps of the set-up are silent: a line every few seconds says that they are not stuck.
PATIENT := tools/with_progress.py
RESOLVE = $(VENV)/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
    --generate-hashes --no-emit-index-url --custom-compile-command "make lock"
# Compiled tests are kept, whatever the environment says: to rewrite their asserts takes every worker
# longer than any test.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
PRELUDE := src/tallystick/guest/prelude

# Candidates are run, not looked up: a version manager's shim can stand in PATH and still refuse.
# The first use keeps what was found, since each search takes about half a second.
PYTHON ?= $(eval PYTHON := $(shell for python in python3.14 python3.13 python3.12 python3.11 python3; do \
    if $$python -c "$(FIT)" >/dev/null 2>&1; then echo $$python; break; fi; done))$(PYTHON)
FIT := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

# What the build hook reads. The image it writes is left out, or it would make itself stale.
BUILD_INPUTS := pyproject.toml hatch_build.py $(shell find src/tallystick/guest tools/guest -type f \
    ! -path '*/_image/*' ! -path '*/__pycache__/*' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help run test check docs reference soak bench lock setup clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s%s\n", $$1, $$2}'

run: setup ## Answer a question over sample data, replay it and verify it.
	@echo "starting the demo"
	@$(BIN)/tally demo

test: setup ## Run the default test suite, on every core.
	@$(PYTEST) -n auto --dist loadfile

check: setup ## Check format, lint, types and import contracts.
	@echo "format" && $(BIN)/ruff format --check --quiet --output-format concise .
	@echo "lint" && $(BIN)/ruff check --quiet --output-format concise .
	@echo "types" && $(BIN)/mypy --no-error-summary
	@echo "types in the guest" && MYPYPATH=$(PRELUDE) $(BIN)/mypy --no-error-summary \
	    --python-version 3.14 --cache-dir .mypy_cache/guest -p tallystick_guest -m entry
	@echo "imports" && $(BIN)/lint-imports --no-logo >$(VENV)/imports.log 2>&1 \
	    || { cat $(VENV)/imports.log; exit 1; }

docs: $(VENV)/site ## Build the site of the docs, strictly, into build/site.
	@NO_COLOR=1 $(BIN)/zensical build --clean --strict

reference: setup ## Write the pages of docs/reference from the code.
	@$(BIN)/python -m tools.reference && $(BIN)/python -m tools.completion

# The header and the durations make the result a record: which commit, where, how long each took.
# What measures lateness comes first and alone; the sweeps after it use every core.
SOAK := TALLYSTICK_SOAK=full $(PYTEST) -m soak -v --no-header --durations=0 --hypothesis-profile=soak
soak: setup ## Run the full-size sweeps; the result goes to bench/results/soak.txt.
	@mkdir -p bench/results
	@{ git describe --always --dirty 2>/dev/null || echo "no commit"; \
	   date -u +%Y-%m-%dT%H:%MZ; uname -srm; $(BIN)/python --version; \
	   $(SOAK) tests/escape; alone=$$?; \
	   $(SOAK) tests --ignore=tests/escape -n auto --maxschedchunk=1; together=$$?; \
	   echo $$((alone + together)) >$(VENV)/soak.status; } 2>&1 | tee bench/results/soak.txt; \
	exit $$(cat $(VENV)/soak.status)

# Exit code 2 is a bench of memory that was skipped, and it said why.
bench: setup ## Measure, and compare with what else is installed.
	@$(BIN)/python bench/run.py
	@$(BIN)/python -m bench.memory.tokens || test $$? -eq 2
	@$(BIN)/python -m bench.memory.locomo || test $$? -eq 2
	@$(BIN)/python -m bench.memory.scale 100000
	@$(BIN)/python -m bench.vocabulary.run
	@$(BIN)/python -m bench.process.run
	@$(BIN)/python -m bench.process.memory_limit
	@$(BIN)/python -m bench.shape

# The tools of the site are resolved under the versions of all others: both go into one virtualenv.
lock: $(VENV)/created ## Resolve the dependencies again and rewrite requirements/dev.txt and docs.txt.
	@echo "resolving into requirements/dev.txt and requirements/docs.txt"
	@test -x $(VENV)/lock/bin/uv || { $(BIN)/python -m venv $(VENV)/lock && \
	    $(VENV)/lock/bin/python -m pip -qq --disable-pip-version-check install uv; }
	@$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'], sep='\n')" \
	    | $(RESOLVE) - pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	@$(RESOLVE) requirements/docs.in --constraint requirements/dev.txt --output-file requirements/docs.txt

clean: ## Remove the virtualenv, the guest image and every cache in this directory.
	@rm -rf $(VENV) .cache build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	    .import_linter_cache src/tallystick/guest/_image
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(VENV)/installed

$(VENV)/created:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with venv and pip was found;" \
	    "name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c "$(FIT)" 2>/dev/null || { echo "$(PYTHON) is not Python 3.11 or newer with venv and pip" >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) $(PATIENT) $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/locked: $(VENV)/created requirements/dev.txt
	@echo "installing the locked dependencies (10 to 60 s)"
	@$(BIN)/python $(PATIENT) $(PIP) install --require-hashes --requirement requirements/dev.txt
	@touch $@

$(VENV)/site: $(VENV)/created requirements/docs.txt
	@echo "installing what builds the site"
	@$(BIN)/python $(PATIENT) $(PIP) install --require-hashes --requirement requirements/docs.txt
	@touch $@

# Without isolation the hook runs on the locked versions, and nothing is downloaded twice.
$(VENV)/installed: $(VENV)/locked $(BUILD_INPUTS)
	@echo "installing tallystick and building its guest (about a minute when its sources changed)"
	@$(BIN)/python $(PATIENT) $(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

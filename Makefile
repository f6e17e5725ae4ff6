# Two commands set up everything they need: `make demo` runs the main job, `make test` runs the tests.
# The only requirements are Python 3.11 or newer (PYTHON=python3.12 to choose one) and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION = 1
export NO_MKDOCS_2_WARNING = 1
# Tests start hundreds of processes; where bytecode is kept nowhere each of them compiles everything again.
export PYTHONDONTWRITEBYTECODE =
export PYTHONPYCACHEPREFIX = $(CURDIR)/$(VENV)/pycache

.PHONY: setup demo check test test-all faults lint format docs bench claims clean

setup: $(STAMP)

# Re-installs only when pyproject.toml changed since the last successful installation.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fedsyn needs Python 3.11 or newer; found %s. Set PYTHON=..." % sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing fedsyn and every extra into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -e '.[all,dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/fedsyn demo

# The working loop, a minute: what ruff and mypy say, and the quick tests of the folders that all others stand on.
# FOLDER=inference: the tests of tests/unit/inference instead.
check: lint
	$(BIN)/python $(if $(FOLDER),-m pytest tests/unit/$(FOLDER) -n 2 --dist loadgroup,tests/shards.py check)

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadgroup

# Every test, in the shards of tests/shards.py; SHARD=deployed: that one alone.
test-all: setup
	$(BIN)/python tests/shards.py $(SHARD)

# The faults of tests/planted_faults.py, each planted in a copy of the tree: the default tests find all of them.
faults: setup
	$(BIN)/python tests/planted_faults.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/docs_lint.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, into site/: strict, so that a dead link is an error. It fetches nothing. reference.py writes docs/reference.
docs: setup
	$(BIN)/python docs/site/reference.py
	$(BIN)/mkdocs build --strict

bench: setup
	@for f in benchmarks/bench_*.py; do echo "== $$f"; PYTHONPATH=tests $(BIN)/python $$f || exit 1; done

# Which published figures are stale. MINUTES=30: then measures the stalest again; ACCEPT=NAME (or 1, all): right after measuring.
claims: setup
	$(BIN)/python -m claims $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ACCEPT),--accept $(if $(filter 1,$(ACCEPT)),all,$(ACCEPT))) $(if $(ELSEWHERE),--elsewhere $(ELSEWHERE)) $(if $(NOTES),--notes)

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache

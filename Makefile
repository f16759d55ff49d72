# The one entry to everything: `make` prints what there is.
#
# Stamps under .venv say when a step was last done; a step runs again only when what it was made
# from is newer, so that with nothing changed every target starts its real work at once.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Where rustup puts cargo; login shells have it on PATH, others often not.
export PATH := $(HOME)/.cargo/bin:$(PATH)
# clippy must see pyo3 as maturin builds it: for the interpreter of .venv, as an extension module.
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python
export PYO3_BUILD_EXTENSION_MODULE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

BIN := .venv/bin
EXTRAS := demo,chromium,metrics,top,bench,test,dev
MATURIN := 'maturin>=1.16,<2'
RUST_SOURCES := $(shell find Cargo.toml $(wildcard Cargo.lock) rust \
	-name '*.rs' -o -name '*.toml' -o -name 'Cargo.lock' -o -name '*.c' -o -name '*.h')
# Quick rings first, so that a typo is told in seconds and not after the long ones.
TESTS := $(wildcard tests/test_tidy.py tests/test_docs.py tests/unit tests/native)
TESTS += $(filter-out $(TESTS) tests/conftest.py, $(wildcard tests/test_*.py))
TESTS += $(filter-out $(TESTS) tests/__pycache__, $(patsubst %/,%,$(wildcard tests/*/)))

.PHONY: help setup packages demo test fuzz lint fmt bench clean

help: ## print the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

# ── set-up ────────────────────────────────────────────────────────────────────────────────────────
setup: packages .venv/stamp-built ## make .venv with agentzip in it; install what is missing

packages:
	@scripts/bootstrap.sh --tests

.venv/stamp-venv:
	@scripts/bootstrap.sh
	@rm -rf .venv
	@echo "setup: .venv with $$(scripts/bootstrap.sh --find-python)"
	@"$$(scripts/bootstrap.sh --find-python)" -m venv .venv
	@touch $@

# The package, editable, with everything that pyproject.toml declares; when only Rust changed, only
# the compiled module.
.venv/stamp-built: .venv/stamp-venv pyproject.toml $(RUST_SOURCES)
	@echo "setup: Python packages and Rust core (minutes at first; see .venv/setup.log)"
	@{ $(if $(filter-out $(RUST_SOURCES),$?),$(BIN)/python -m pip install $(MATURIN) &&) \
	  VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --release \
	    $(if $(filter-out $(RUST_SOURCES),$?),--extras $(EXTRAS),--skip-install); \
	} >.venv/setup.log 2>&1 </dev/null || { tail -n 60 .venv/setup.log >&2; exit 1; }
	@touch $@

# ── use ───────────────────────────────────────────────────────────────────────────────────────────
demo: .venv/stamp-built ## real agents, paged out and back; ARGS="--sandboxes 8 --json"
	@$(BIN)/agentzip demo $(ARGS)

bench: .venv/stamp-built ## figures beside the kernel's own, as a table and JSON; ARGS=...
	@$(BIN)/python -m agentzip.bench $(ARGS)

# ── checks ────────────────────────────────────────────────────────────────────────────────────────
test: setup ## all tests: Rust, then pytest; ARGS="-k word" goes to pytest
	@cargo test --quiet --release -p agentzip-pager
	@$(BIN)/python -m pytest -n 2 --dist loadgroup $(TESTS) $(ARGS)

# How many times as many cases as in `make test`: 200 are more than ten million executions.
TIMES := 200
# What reads bytes of others, and tables against naive models (rust/pager/src/fuzz.rs).
FUZZED := arbitrary damaged garbage changed_byte right_checksum any_text extents \
	behaves_like a_kill_between every_entry is_understood

fuzz: setup ## the fuzz targets of make test for long; TIMES=200 is ten million cases
	@AGENTZIP_FUZZ_TIMES=$(TIMES) cargo test --release -p agentzip-pager --lib -- \
	  --nocapture $(FUZZED)
	@AGENTZIP_FUZZ_TIMES=$(TIMES) $(BIN)/python -m pytest tests/fuzz \
	  tests/unit/config/test_config.py tests/unit/test_patterns.py --timeout 0 \
	  --hypothesis-show-statistics -q $(ARGS)

lint: .venv/stamp-built ## ruff, mypy, layers, rustfmt, clippy; all must be silent
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --quiet --check . || { echo "lint: run make fmt" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports >.venv/layers.log 2>&1 || { cat .venv/layers.log >&2; exit 1; }
	@cargo fmt --all --check
	@cargo clippy --quiet --release --workspace --all-targets -- -D warnings

fmt: .venv/stamp-built ## format Python and Rust in place
	@$(BIN)/ruff check --quiet --fix --exit-zero .
	@$(BIN)/ruff format --quiet .
	@cargo fmt --all

clean: ## remove .venv and everything built
	@rm -rf .venv target dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -f python/agentzip/_native*.so
	@find python tests -name __pycache__ -type d -prune -exec rm -rf {} +

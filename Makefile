# One environment in .venv, made on first use and made good again when pyproject.toml or constraints.txt change.
#   make PYTHON=python3.12 demo      another Python
#   make ARGS="-k gantt -x" test     more arguments for pytest (test, test-slow, test-gpu) or the benchmarks (bench)
# pip reads its own settings: PIP_EXTRA_INDEX_URL, for instance, adds an index with other builds of torch.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=
RUN := .venv/bin/python

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A user-wide "install into my home" or "ask before leaving a virtual environment" must not reach this environment.
export PIP_USER := 0
export PIP_REQUIRE_VIRTUALENV := 0

# The environment knows where it was made: in a moved or copied checkout it would go on running the old one's code.
ifneq ($(shell test -x .venv/bin/python && test -e .venv/made-in && test "$$(cat .venv/made-in)" = "$$(pwd -P)" && echo here),here)
.PHONY: .venv/made-in
endif

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: .venv/installed-demo ## Train, look, apply the suggested cuts, train again: the whole loop in a few minutes
	@.venv/bin/pptoolkit demo

.PHONY: test
test: .venv/installed-dev ## Run every check: those of lint, then pytest
	@$(start_checks) $(lint_checks) check "pytest" $(RUN) -m pytest $(ARGS); $(end_checks)

.PHONY: test-slow
test-slow: .venv/installed-dev ## Run the tests that `make test` leaves out
	@$(RUN) -m pytest -m slow $(ARGS)

.PHONY: test-gpu
test-gpu: .venv/installed-dev ## Run the tests that need a GPU; without one each says what is missing
	@$(RUN) -m pytest -m gpu $(ARGS)

.PHONY: lint
lint: .venv/installed-dev ## Run ruff, mypy and import-linter
	@$(start_checks) $(lint_checks) $(end_checks)

.PHONY: format
format: .venv/installed-dev ## Format the code, and mend what ruff can mend
	@$(RUN) -m ruff check --fix-only . && $(RUN) -m ruff format .

.PHONY: bench
bench: .venv/installed-dev ## Run all benchmarks and write docs/benchmarks.md
	@$(RUN) -m benchmarks $(ARGS)

.PHONY: clean
clean: ## Remove the environment and all caches; runs/ stays
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed-demo: .venv/made-in pyproject.toml constraints.txt
	@$(call install,train$(comma)dashboard)
	@touch $@

.venv/installed-dev: .venv/made-in pyproject.toml constraints.txt
	@$(call install,train$(comma)dashboard$(comma)grafana$(comma)dev)
	@touch .venv/installed-demo $@

comma := ,

# The build backend comes from the constraints too. A person sees pip's progress bars; a log has no use for them.
define install
[ -t 1 ] && quiet=() || quiet=(--quiet); \
echo "Installing pptoolkit[$(1)] into .venv. The first time this downloads torch and takes some minutes."; \
$(RUN) -m pip install $${quiet[@]+"$${quiet[@]}"} -c constraints.txt hatchling editables; \
$(RUN) -m pip install $${quiet[@]+"$${quiet[@]}"} -c constraints.txt --no-build-isolation -e ".[$(1)]"
endef

# All checks run, so that one look shows everything that is wrong.
define start_checks
failed=(); check() { local name="$$1"; shift; printf '\n== %s\n' "$$name"; "$$@" || failed+=("$$name"); };
endef
define lint_checks
check "ruff check" $(RUN) -m ruff check .; \
check "ruff format" $(RUN) -m ruff format --check .; \
check "mypy" $(RUN) -m mypy; \
check "import-linter" $(RUN) .venv/bin/lint-imports --no-logo;
endef
define end_checks
if (( $${#failed[@]} )); then printf '\nFAILED:'; printf ' [%s]' "$${failed[@]}"; echo; exit 1; fi; printf '\nAll checks passed.\n'
endef

.venv/made-in:
	@command -v "$(PYTHON)" > /dev/null || \
	  { echo "There is no '$(PYTHON)' here. pptoolkit needs Python 3.11 or newer: on Debian and Ubuntu, apt install python3 python3-venv." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "'$(PYTHON)' is $$("$(PYTHON)" --version 2>&1), and pptoolkit needs 3.11 or newer: name one with make PYTHON=python3.12 demo" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null || \
	  { package=$$("$(PYTHON)" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    echo "'$(PYTHON)' cannot make virtual environments: on Debian and Ubuntu, apt install $$package" >&2; exit 1; }
	@$(RUN) -m pip --version > /dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	@pwd -P > $@

# `make bench` and `make test` work in a fresh clone: what they need is installed in .venv first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help bench parity list asv test thorough mutants lint install clean

ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest --durations=20 --durations-min=1
thorough: TIER := --thorough
# Without a GPU two processes run the tests. One begins with the slowest files, the other with the rest; each file is run by the one that
# comes to it first, so that both end at about the same time.
SLOWEST := $(addprefix tests/test_,parity.py ahead_of_time.py readme.py command_line.py isolation.py asv.py contributing.py)
OTHERS := $(filter-out $(SLOWEST),$(sort $(wildcard tests/test_*.py)))
# Lies in .venv and is written last, so that an interrupted install leaves none.
STAMP := .venv/.installed

# torch.compile looks for g++ alone unless CXX names another compiler.
ifeq ($(origin CXX),default)
export CXX := $(shell for c in g++ c++ clang++; do if command -v $$c; then break; fi; done)
endif

help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	echo '  PYTHON=…      the interpreter to install with, for example PYTHON=python3.13'

bench: $(STAMP) ## time implementations: make bench ARGS="kernel=lola implementation=[triton,torch_compile]"
	@$(BIN)/fusebench bench $(ARGS)

parity: $(STAMP) ## compare implementations with the float64 reference, without timing them
	@$(BIN)/fusebench parity $(ARGS)

list: $(STAMP) ## kernels, implementations and cases
	@$(BIN)/fusebench list $(ARGS)

asv: $(STAMP) ## track figures over the history: make asv ARGS="kernel=softmax implementation=[torch_eager,triton]"
	@$(BIN)/fusebench asv $(ARGS)

test: $(STAMP) ## run the tests: make test ARGS="-k lola"
thorough: $(STAMP) ## run the tests that make test leaves out without a GPU
test thorough:
ifneq ($(strip $(ARGS)),)
	@$(PYTEST) $(TIER) $(ARGS)
else
	@if nvidia-smi >/dev/null 2>&1; then exec $(PYTEST) $(TIER); fi # a card is for one at a time
	# each command that a test runs imports the kernels anew, also where PYTHONDONTWRITEBYTECODE is set
	$(BIN)/python -m compileall -q fusebench implementations
	claims=$$(mktemp -d)
	export FUSEBENCH_TEST_CLAIMS="$$claims"
	# NumPy's products here are small: by several threads beside another process one took 2 ms, by one thread 0.06
	export OPENBLAS_NUM_THREADS=1
	$(PYTEST) $(TIER) -o cache_dir=.pytest_cache/slowest $(SLOWEST) $(OTHERS) >"$$claims.log" 2>&1 &
	slowest=$$!
	trap 'kill $$slowest 2>/dev/null || true; rm -rf "$$claims" "$$claims.log"' EXIT
	failed=0
	$(PYTEST) $(TIER) $(OTHERS) $(SLOWEST) || failed=1
	echo 'waiting for the other process, which began with the slowest files'
	wait $$slowest || failed=1
	cat "$$claims.log"
	exit $$failed
endif

mutants: $(STAMP) ## do the tests notice a slip in what a change touches? make mutants ARGS="fusebench/report.py"
	@$(BIN)/python tests/mutants $(ARGS)

lint: $(STAMP) ## ruff and mypy
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP) ## only make .venv

clean: ## remove what make made; results stay
	@rm -rf .venv .asv/env .asv/html build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Told to use another Python than .venv has: make it anew.
ifdef PYTHON
version = $(shell $(1) -c 'import sys; print(sys.version_info[:2])' 2>/dev/null)
ifneq ($(call version,$(PYTHON)),$(call version,$(BIN)/python))
.PHONY: $(STAMP)
endif
endif

$(STAMP): pyproject.toml $(wildcard constraints/*.txt)
	@fail() { echo "make: $$*" >&2; exit 1; }
	# A python3.x on PATH may be a shim that does not run, so each is tried.
	python=
	candidates="$(or $(PYTHON),python3.12 python3.13 python3.11 python3)"
	for p in $$candidates; do
	    if "$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then python=$$p; break; fi
	done
	[ -n "$$python" ] || fail "Python 3.11, 3.12 or 3.13 is needed; none of these is one that runs: $$candidates." \
	    "Install one, or name it: make PYTHON=/path/to/python3.12"
	v=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	"$$python" -c 'import ensurepip, venv' 2>/dev/null \
	    || fail "$$python has no venv with pip: install it (Debian and Ubuntu: python$$v-venv)"
	[ -n "$(CXX)" ] || fail "no C++ compiler, which torch.compile needs: install g++ or clang++, or set CXX"
	"$$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
	    || fail "$$python has no Python.h, which torch.compile and Triton need: install it (Debian and Ubuntu: python$$v-dev)"
	if nvidia-smi >/dev/null 2>&1; then extras=dev,gpu; else extras=dev; fi
	echo "Installing in .venv with $$python ($$v) and the extras $$extras: some minutes, up to 9 GB"
	# A finished .venv of the same Python is brought up to date, anything else made anew.
	if [ -e $@ ] && [ "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$$v" ]; then
	    rm $@
	else
	    "$$python" -m venv --clear .venv
	fi
	$(PIP) --constraint constraints/py$$v.txt --editable ".[$$extras]"
	# jax-triton imports the CUDA plugin's lowering rules even where there is no GPU; without one, its CUDA libraries can stay away.
	[ $$extras != dev ] || $(PIP) --no-deps --constraint constraints/py$$v.txt jax-cuda13-plugin
	touch $@

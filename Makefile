# Every target sets the machine up by itself: `make test` works in a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
LIGHT  := $(VENV)/.installed-demo
EXTRAS := cluster,dashboard,demo,docs,examples,export,hardware,route,search,serve,test,train

# Where no bytecode is to be written, every process would compile the thousands of files of torch
# and transformers anew: it is then kept in $(VENV), out of the tree.
ifneq ($(PYTHONDONTWRITEBYTECODE),)
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(abspath $(VENV))/__pycache__
endif

.PHONY: install tools demo-tools test fast slow nightly lint demo bench guard coverage docs figures screenshots clean FORCE
.DELETE_ON_ERROR:
.NOTPARALLEL:

install: tools $(STAMP)

# Programs that PyPI has no wheel for on this machine, each with the Debian package that has it: a
# simulator for the demonstration; for the tests also a second one, a browser to look at reports
# with and a database server. Without root nothing is installed; what needs them says what is
# missing.
DEMO_TOOLS := g++:g++ $(if $(filter x86_64,$(shell uname -m)),,verilator:verilator)
TOOLS := $(DEMO_TOOLS) iverilog:iverilog chromium:chromium /usr/include/lz4.h:liblz4-dev \
         initdb:postgresql
define get_tools
	@for tool in $(1); do \
	  [ -e "$${tool%:*}" ] || command -v "$${tool%:*}" > /dev/null \
	    || ls /usr/lib/postgresql/*/bin/"$${tool%:*}" > /dev/null 2>&1 \
	    || missing="$$missing $${tool#*:}"; \
	done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  apt-get update -qq; \
	  for package in $$missing; do \
	    apt-get install -y -qq --no-install-recommends $$package > /dev/null \
	      || echo "could not install: $$package"; \
	  done; \
	elif [ -n "$$missing" ]; then echo "not installed, what needs them will say so:$$missing"; fi
endef

tools:
	$(call get_tools,$(TOOLS))

demo-tools:
	$(call get_tools,$(DEMO_TOOLS))

# `make test TORCH=2.11.0` takes another torch than constraints.txt names, and lets go of the pins
# that belong to it. The file changes, and all is installed anew, only when what it holds changes.
TORCH  ?=
PINS   := $(VENV)/constraints.txt
$(PINS): FORCE | $(BIN)/python
	@if [ -z "$(TORCH)" ]; then cat constraints.txt; \
	 else sed -E '/^(torch|setuptools)==/d' constraints.txt; echo "torch==$(TORCH)"; fi > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Python compiles a module when it is first imported: most of what comes along never is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(PINS)
$(LIGHT): pyproject.toml $(PINS)
	$(PIP) -e ".[demo]"
	touch $@

# Collecting the tests once compiles what they import: else each of two workers would compile it.
$(STAMP): pyproject.toml $(PINS)
	$(PIP) -e ".[$(EXTRAS)]"
	-$(BIN)/python -m pytest -q --collect-only -p no:cacheprovider > /dev/null
	touch $@ $(LIGHT)

lint: install
	$(BIN)/python .ci/checks.py lint

test: install
	$(BIN)/python .ci/checks.py lint tests

fast: install
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not sim and not gpu"

# What takes too long for every change: coverage with its floor, and the slow tests.
nightly: install
	$(BIN)/python .ci/checks.py nightly

slow: install
	$(BIN)/python -m pytest -q -n 2 -m "slow and not gpu"

demo: demo-tools $(LIGHT)
	$(BIN)/mase demo

coverage: install
	$(BIN)/python docs/make_coverage.py --workers 2

docs: install
	$(BIN)/mkdocs build --strict --quiet

screenshots: install
	$(BIN)/python docs/make_gallery.py

figures: install
	$(BIN)/python docs/make_results.py
	$(BIN)/python docs/make_journeys.py
	$(BIN)/python docs/make_how.py
	$(BIN)/python docs/make_notebooks.py
	$(BIN)/python docs/make_formats.py
	$(BIN)/python docs/make_passes.py
	$(BIN)/python docs/make_names.py
	$(BIN)/python docs/make_coming_from.py
	$(BIN)/python docs/tutorials/refresh.py

bench: install
	$(BIN)/python bench/run.py --only "$(ONLY)"

# Today's code against the commit in bench/guard_baseline.txt: 1 if a row is over 10 % slower.
guard: install
	$(BIN)/python bench/guard.py --only "$(ONLY)"

clean:
	rm -rf $(VENV) out site build dist .coverage* src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

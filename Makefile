# Every target sets the machine up by itself: `make test` works in a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install tools test fast slow lint demo bench coverage docs figures clean
.DELETE_ON_ERROR:

install: tools $(STAMP)

# Programs that PyPI has no wheel for on this machine: simulators, a database server, and a
# browser to look at reports with. Without root nothing is installed, and the tests that need them
# skip and say what is missing.
TOOLS := iverilog chromium $(if $(filter x86_64,$(shell uname -m)),,verilator)
tools:
	@for tool in $(TOOLS); do \
	  command -v $$tool > /dev/null || missing="$$missing $$tool"; \
	done; \
	[ -e /usr/include/lz4.h ] || missing="$$missing liblz4-dev"; \
	ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null \
	  || missing="$$missing postgresql"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  apt-get update -qq; \
	  for package in $$missing; do \
	    apt-get install -y -qq --no-install-recommends $$package > /dev/null \
	      || echo "could not install: $$package"; \
	  done; \
	elif [ -n "$$missing" ]; then echo "not installed, tests that need them will skip:$$missing"; fi

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[cluster,dashboard,docs,examples,hardware,search,test,train]"
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Coverage is measured on a few cases of each test: measuring doubles the time.
test: lint
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not gpu and repeat"
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not gpu and not repeat" --cov --cov-report=term

fast: install
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not sim and not gpu"

slow: install
	$(BIN)/python -m pytest -q -n 2 -m "slow and not gpu"

demo: install
	$(BIN)/mase demo

coverage: install
	$(BIN)/python docs/make_coverage.py --workers 2

docs: install
	$(BIN)/mkdocs build --strict --quiet

figures: install
	$(BIN)/python docs/make_formats.py
	$(BIN)/python docs/make_passes.py
	$(BIN)/python docs/tutorials/refresh.py

bench: install
	for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) out site build dist .coverage* src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

# Every target sets the machine up by itself: `make test` works in a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install test fast lint demo bench coverage clean
.DELETE_ON_ERROR:

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[examples,hardware,test,train]"
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -q -n 2 -m "not gpu"

fast: install
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not sim and not gpu"

demo: install
	$(BIN)/python examples/demo.py

coverage: install
	$(BIN)/python docs/make_coverage.py

bench: install
	for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) out build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

# make quickstart and make test do all of their set-up themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements.lock
INSTALL = $(BIN)/python -m pip install --quiet --constraint $(LOCK)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: quickstart test test-extensions test-data test-browser lint dist clean clean-data

quickstart: $(VENV)/ready
	$(BIN)/python -m benchmarks quickstart

test: $(VENV)/ready
	$(BIN)/python -m pytest -m "not data" -n 2

$(VENV)/ready: $(LOCK) setup.py
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[dev]'
	touch $@

# torch_scatter and torch_sparse are built from source, which takes a quarter
# of an hour; their wheels are kept for each version of torch and Python. Of
# the wheels there, those with the names and versions of the lock are taken.
EXTENSIONS = --no-deps --constraint $(LOCK) torch_scatter torch_sparse
WHEELS = $(or $(HOME),$(CURDIR)/$(VENV))/.cache/torch_agcn/wheels/$(shell $(BIN)/python -c \
	"import sys, torch; print('torch-%s-cp%d%d' % (torch.__version__, *sys.version_info[:2]))")

test-extensions: $(VENV)/extensions
	$(BIN)/python -m pytest -m extensions

$(VENV)/extensions: $(VENV)/ready
	$(INSTALL) setuptools wheel ninja
	wheels="$(WHEELS)"; mkdir -p "$$wheels"; \
	install="$(BIN)/python -m pip install --quiet --no-index $(EXTENSIONS)"; \
	$$install --find-links "$$wheels" 2> /dev/null || { \
		PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip wheel \
			--no-build-isolation --wheel-dir "$$wheels" $(EXTENSIONS) && \
		$$install --find-links "$$wheels"; }
	touch $@

test-data: $(VENV)/ready
	$(INSTALL) --editable '.[images,hetero]'
	$(BIN)/python -m pytest -m data

# Opens the report in headless Chromium, which has to be there:
test-browser: $(VENV)/ready
	$(BIN)/python -m pytest tests/browser

# What a package index would be given, checked as it checks it:
dist: $(VENV)/ready
	$(INSTALL) build twine
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist > /dev/null
	$(BIN)/python -m twine check --strict dist/*

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

clean-data:
	rm -rf data

clean: clean-data
	rm -rf $(VENV) quickstart quick build dist *.egg-info .*_cache

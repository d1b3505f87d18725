# `make demo` and `make test` set everything up by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow bench docs lint format clean

demo: .venv/ready  ## 20 workers, 12 of them faulty: which rule survives?
	$(BIN)/zeno compare

# Those that start a Ray cluster have deadlines to keep, and the machine for themselves.
test: lint  ## Everything that must hold before a commit, under 10 minutes on two cores.
	$(BIN)/pytest --numprocesses 2 --dist worksteal --ignore-glob 'tests/test_ray*'
	$(BIN)/pytest tests/test_ray*

test-slow: .venv/ready  ## The tests that take minutes.
	$(BIN)/pytest -m slow

bench: .venv-bench/ready  ## The rules beside those of other packages, and the parts of a step.
	.venv-bench/bin/zeno bench all --json runs/bench.json

# The variable is of the theme, which would print a notice of its own otherwise. Not --quiet: what is not shown is no error.
docs: .venv/ready  ## The documentation as a site, without network; a broken link is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site is in $(CURDIR)/site: open index.html there, or, to search it as well,"
	@echo "$(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

# Peers ask for older versions of what our pins hold, so they have an environment of their own.
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

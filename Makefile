# `make up` runs the product, `make test` the tests. Both make .venv first if it is missing or old.
PORT ?= 8000
PYTHON = .venv/bin/python
PIP_TOOLS = 7.6.2
PAGES = $$(git ls-files '*.html')

.DEFAULT_GOAL = help
.PHONY: help setup up test chaos proof bench bench-ui check format requirements clean

help:
	@echo 'make up [PORT=8000]   the product: pages, API and workers, in the foreground'
	@echo 'make test [RING=…]    the tests, ring by ring: sqlite postgresql browser'
	@echo 'make chaos [DATABASE=…] [SECONDS=75] [SEED=…]   workers killed, databases broken, all checked'
	@echo 'make proof            long chaos runs and measurements, 3 hours; adds to docs/reliability.md'
	@echo 'make bench            how fast it is, as ratios to raw loops; writes docs/performance.md'
	@echo 'make bench-ui [TASKS=…] [KEEP=FOLDER]   what the pages take on 100,000 tasks; writes docs/performance.md'
	@echo 'make check            lint, format, types, import rules, deployment checks, migrations'
	@echo 'make format           write what `make check` asks of the format'
	@echo 'make requirements     pin requirements/*.in anew'
	@echo 'make clean            remove .venv and caches; var/ (the data) stays'

setup:
	@requirements/setup

# One exec'd line: a signal to make reaches the product itself, with no shell in between.
up: setup
	@exec $(PYTHON) manage.py up --port $(PORT)

test: setup
	@exec $(PYTHON) -m tests.rings $(RING)

chaos: setup
	@exec $(PYTHON) -m tests.chaos $(if $(DATABASE),--database $(DATABASE)) \
	    $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

proof: setup
	@exec $(PYTHON) -m tests.chaos.proof $(if $(SEED),--seed $(SEED))

bench: setup
	@exec $(PYTHON) -m benchmarks --report docs/performance.md

bench-ui: setup
	@exec $(PYTHON) -m benchmarks.pages $(if $(TASKS),--tasks $(TASKS),--report docs/performance.md) \
	    $(if $(KEEP),--keep $(KEEP))

check: setup
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	@if [ -n "$(PAGES)" ]; then set -x; .venv/bin/djade --target-version 6.1 --check $(PAGES); fi
	.venv/bin/lint-imports --no-logo
	$(PYTHON) -m mypy
	LONGWATCH_URL=https://longwatch.example $(PYTHON) manage.py check --deploy --fail-level WARNING
	$(PYTHON) manage.py makemigrations --check --dry-run

format: setup
	$(PYTHON) -m ruff check --fix-only
	$(PYTHON) -m ruff format
	@if [ -n "$(PAGES)" ]; then set -x; .venv/bin/djade --target-version 6.1 $(PAGES); fi

# pip-tools lives in a throw-away environment, so that it is not among what it pins.
requirements: setup
	@set -e; tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; \
	$(PYTHON) -m venv $$tools; $$tools/bin/pip install --quiet pip-tools==$(PIP_TOOLS); \
	for name in run dev; do \
	    $$tools/bin/pip-compile --quiet --upgrade --generate-hashes --strip-extras --no-header \
	        --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	        --no-emit-options --output-file requirements/$$name.txt requirements/$$name.in; \
	done

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

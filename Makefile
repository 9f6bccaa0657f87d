# Every target sets up what it needs in .venv; nothing else has to be installed first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
# What pip says goes to a file, which is shown when pip fails: its warnings would drown what a target has to say.
LOGGED := >>.venv/pip.log 2>&1 || { cat .venv/pip.log; exit 1; }

# Two test workers with one thread each suit a small machine; raise it on a larger one: make test WORKERS=8
WORKERS ?= 2
# A worker that has nothing left to do takes tests from the others.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

export ORT_DISABLE_TELEMETRY := 1
export HF_HUB_OFFLINE := 1

.PHONY: help demo test test-fast test-slow fuzz zoo bench docs build clean

help:
	@echo "make demo       five methods prune and train a network on real digits; 3 minutes, a report at the end"
	@echo "make test       lint, types, tests; about 6 minutes on two cores"
	@echo "make test-fast  the tests of the core; about 75 seconds on two cores"
	@echo "make test-slow  the tests that take minutes"
	@echo "make fuzz       fast engine against plain engine, and the laws, on 20,000 random networks"
	@echo "make zoo        every architecture of docs/zoo.md, pruned and certified"
	@echo "make bench      the benchmarks, side by side in one run"
	@echo "make docs       the documentation, in site/"
	@echo "make build      wheel and source archive, tried in a fresh environment"
	@echo "make clean      remove everything that was made"

.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing; what pip says goes to .venv/pip.log"
	$(PIP) install -c constraints.txt -e . $(LOGGED)
	touch $@

.venv/demo: .venv/core
	$(PIP) install -c constraints.txt -e ".[cli,experiments]" $(LOGGED)
	touch $@

.venv/docs: .venv/core
	$(PIP) install -c constraints.txt -e ".[docs]" $(LOGGED)
	touch $@

.venv/dev: .venv/core
	$(PIP) install -c constraints.txt -e ".[dev]" $(LOGGED)
	touch $@

# The report is tested in a real browser. Where it can't be installed those tests are skipped, and say so.
.venv/browser: .venv/core
	command -v chromedriver >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends \
		chromium chromium-driver fonts-dejavu-core) >/dev/null 2>&1 || echo "no chromium: tests of the report are skipped"
	touch $@

demo: .venv/demo
	$(BIN)/synflow demo --out runs/demo --force

test: .venv/dev .venv/browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST) -m "not slow"

# Fewer random networks than `make test` tries, not all combinations, and no other processes: for the inner loop.
test-fast: .venv/dev
	SYNFLOW_EXAMPLES=7 $(PYTEST) -m "not slow and not integration and not exhaustive"

test-slow: .venv/dev
	$(PYTEST) -m slow

fuzz: .venv/dev
	SYNFLOW_FUZZ=1 SYNFLOW_EXAMPLES=2000 $(PYTEST) tests/pruning/test_laws.py
	SYNFLOW_FUZZ=1 SYNFLOW_EXAMPLES=1050 $(PYTEST) -rP tests/pruning/test_engines.py  # shows how many masks were equal
	SYNFLOW_FUZZ=1 SYNFLOW_EXAMPLES=400 $(PYTEST) tests/compaction/test_compaction_laws.py

zoo: .venv/dev
	$(BIN)/python tools/zoo.py --out docs/zoo.md

# Figures are kept in runs/, row by row; ratios need a quiet machine.
bench: .venv/dev
	mkdir -p runs
	$(BIN)/python benchmarks/pruning.py --json runs/pruning.json
	$(BIN)/python benchmarks/scale.py --json runs/scale.json
	$(BIN)/python benchmarks/masked_step.py --json runs/masked_step.json
	$(BIN)/python benchmarks/compaction.py

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build: .venv/core
	$(PIP) install -c constraints.txt build $(LOGGED)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tools/smoke.py dist

clean:
	rm -rf .venv build dist site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis lightning_logs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

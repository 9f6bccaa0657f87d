# Every target sets up what it needs in .venv; nothing else has to be installed first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check -q

export ORT_DISABLE_TELEMETRY := 1
export HF_HUB_OFFLINE := 1
export PYTHONHASHSEED := 0

.PHONY: demo test lint types fuzz zoo bench test-slow build clean

.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt -e .
	touch $@

.venv/dev: .venv/core
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis lightning_logs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

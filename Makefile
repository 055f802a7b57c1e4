# `make demo` and `make test` do all of their own set-up; `make help` lists the targets.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Give further arguments with ARGS, e.g. make demo ARGS=\"stage1.steps=4\" or make test-unit ARGS=\"-k config\"."

$(STAMP): pyproject.toml requirements/setup.sh requirements/cpu.txt requirements/torch-cpu.txt
	@bash requirements/setup.sh $(PYTHON) $(VENV)
	@touch $@

.PHONY: setup
setup: $(STAMP) ## Make .venv with the tested CPU packages (the other targets do it themselves)

.PHONY: demo
demo: $(STAMP) ## Train and compare all stages with a 135M model on this machine's CPU (under 25 minutes)
	@$(PY) -m driver train configs/demo.yaml $(ARGS)

.PHONY: demo-ask
demo-ask: $(STAMP) ## Learn when and how to ask an advisor, from random weights, on this machine's CPU (about 40 minutes)
	@$(PY) -m driver train configs/ask-demo.yaml $(ARGS)

.PHONY: test
test: $(STAMP) ## Run every test that needs no GPU (under 30 minutes on two cores)
	@OMP_NUM_THREADS=1 $(PY) -m pytest tests/unit -n 2 $(ARGS)
	@$(PY) -m pytest tests/ray tests/e2e $(ARGS)

.PHONY: test-unit
test-unit: $(STAMP) ## Run the unit tests: no Ray, seconds
	@OMP_NUM_THREADS=1 $(PY) -m pytest tests/unit -n 2 $(ARGS)

.PHONY: verify-full
verify-full: $(STAMP) ## Check the verifier on every gold and 880,000 pairs of different golds (minutes)
	@APPRENTICE_VERIFY=full $(PY) -m pytest tests/unit/test_verify_golds.py -s -o timeout=3600 $(ARGS)

.PHONY: test-gpu
test-gpu: ## Run the tests that need a CUDA device, in the environment that is active
	@$(PYTHON) -m pytest tests/gpu $(ARGS)

.PHONY: check
check: $(STAMP) ## Check formatting, lint and types
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy

.PHONY: bench
bench: $(STAMP) ## Measure the ratios that the project promises; writes runs/bench.json
	@$(PY) -m driver.bench $(ARGS)

.PHONY: soak
soak: $(STAMP) ## Run 12,000 mixed cells in the sandbox, kill zygotes meanwhile; nothing may grow (minutes)
	@$(PY) -m driver.bench.soak $(ARGS)

.PHONY: lock
lock: $(STAMP) ## Pin the versions that .venv has now as the tested ones
	@bash requirements/lock.sh $(VENV)

.PHONY: clean
clean: ## Remove caches and builds; runs and .venv stay
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

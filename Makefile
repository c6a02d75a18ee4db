# Every target makes the virtual environment it needs in .venv; nothing has to be installed by hand.
# Written for GNU make 3.81, the one macOS ships.

VENV    := .venv
BIN     := $(VENV)/bin
PYTHON  ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
             $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PIP     := $(BIN)/python -m pip --disable-pip-version-check -qq
# BACKEND=cuda13 runs on an NVIDIA GPU (Linux); the default is Metal on macOS, the CPU on Linux.
BACKEND ?=

MODEL ?=
PORT  ?=
HOST  ?=
ARGS  ?=
FLAGS  = $(if $(MODEL),--model '$(MODEL)') $(if $(HOST),--host '$(HOST)') $(if $(PORT),--port '$(PORT)') $(ARGS)

RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev
INPUTS    := pyproject.toml constraints.txt mlx_server/__init__.py

.DEFAULT_GOAL := help
.PHONY: help serve chat test check format bench fuzz chaos soak install dev docs openblas constraints clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  variables: MODEL=<folder or repository id>  PORT=<number>  HOST=<address>  ARGS='<more flags>'"

serve: $(RUN_STAMP) | openblas ## start the daemon (MODEL=..., PORT=...)
	@$(BIN)/mlx-serve serve $(FLAGS)

chat: $(RUN_STAMP) | openblas ## chat in the terminal, with the daemon if one runs (MODEL=..., PORT=...)
	@$(if $(PORT),MLX_SERVE_PORT='$(PORT)') $(BIN)/mlx-serve chat $(if $(MODEL),--model '$(MODEL)') $(ARGS)

test: $(DEV_STAMP) | openblas ## run the tests (ARGS='-k name')
	@$(BIN)/python -m pytest $(ARGS)

check: $(DEV_STAMP) ## lint, format, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV_STAMP) ## format the code and apply safe lint fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(DEV_STAMP) | openblas ## run the benchmark (ARGS='...')
	@$(BIN)/python -m tests.bench $(ARGS)

fuzz: $(DEV_STAMP) | openblas ## five minutes of requests made from the OpenAPI document (ARGS='--minutes 5 --out DIR')
	@$(BIN)/python -m tests.fuzz $(ARGS)

chaos: $(DEV_STAMP) | openblas ## disturb a loaded daemon, check every answer (ARGS='--minutes 10 --seed 1')
	@$(BIN)/python -m tests.chaos chaos $(ARGS)

soak: $(DEV_STAMP) | openblas ## load a daemon for long, look for leaks (ARGS='--minutes 60')
	@$(BIN)/python -m tests.chaos soak $(ARGS)

install: $(RUN_STAMP) ## install into .venv
dev: $(DEV_STAMP) ## install into .venv with the development tools

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "mlx-serve needs Python 3.11 or newer; name one with PYTHON=..." >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# The CUDA and the CPU library of MLX are the same file: the last one installed wins, so the CPU one goes first.
define install
	@echo "installing into $(VENV)"
	@$(PIP) install --constraint constraints.txt --editable '.$(1)'
	@if [ -n "$(BACKEND)" ]; then \
	  $(PIP) install --constraint constraints.txt 'mlx[$(BACKEND)]' && \
	  $(PIP) uninstall --yes mlx-cpu && \
	  $(PIP) install --constraint constraints.txt --no-deps --force-reinstall "mlx-$$(echo $(BACKEND) | sed 's/cuda/cuda-/')"; \
	fi
endef

$(RUN_STAMP): $(INPUTS) | $(BIN)/python
	$(call install,)
	@touch $@

$(DEV_STAMP): $(INPUTS) | $(BIN)/python
	$(call install,[dev])
	@touch $(RUN_STAMP) $@

# MLX's CPU wheels carry the reference BLAS. OpenBLAS, when present, is loaded in its place and is many times faster.
openblas:
	@[ "$$(uname -s)" = Linux ] || exit 0; \
	! $(PYTHON) -c 'import ctypes; ctypes.CDLL("libopenblas.so.0")' 2>/dev/null || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing OpenBLAS (libopenblas0-pthread)"; \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends libopenblas0-pthread; } >/dev/null 2>&1 \
	    || echo "OpenBLAS could not be installed; MLX will be slow on the CPU" >&2; \
	else \
	  echo "MLX is slow on this CPU without OpenBLAS. On Debian or Ubuntu: sudo apt-get install libopenblas0-pthread" >&2; \
	fi

docs: $(RUN_STAMP) ## write the settings table of docs/configuration.md
	@$(BIN)/python scripts/write_settings_table.py

constraints: ## resolve the newest dependencies into constraints.txt
	@PYTHON=$(PYTHON) scripts/update_constraints.sh

clean: ## remove the virtual environment, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find mlx_server tests scripts -type d -name __pycache__ -prune -exec rm -rf {} +

# Every command that a clone needs. `make` alone lists them.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz check bench

help: ## List the commands
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10
	@printf '\nPYTHON=python3.12 chooses the Python, TORCH_INDEX=ADDRESS a package index with the torch build you want.\n'

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e ".[dev]"
	touch $@

demo: $(VENV)/installed ## Train a standard and an identifiable classifier and compare them
	$(BIN)/identiformer train layer=standard name=demo
	$(BIN)/identiformer train layer=identifiable name=demo
	$(BIN)/identiformer compare runs/demo/*

test: $(VENV)/installed ## Run the tests
	$(BIN)/pytest --numprocesses=auto --dist=worksteal

fuzz: $(VENV)/installed ## Try 500 files and command lines of each kind by chance; FUZZ=5000 tries more
	FUZZ=$(or $(FUZZ),500) $(BIN)/pytest --numprocesses=auto --dist=worksteal tests/train/test_fuzz.py

check: $(VENV)/installed ## Run the linter, the formatter's check and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/installed ## Time our code beside its peers and print the ratios
	for file in tests/benchmarks/[a-z]*.py; do $(BIN)/python $$file; done

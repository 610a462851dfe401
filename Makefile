# `make demo` and `make test` do everything from a fresh clone; both begin with `make setup`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEMO := $(VENV)/.ready-demo
TORCH := $(shell sed -n 's|.*"\(torch==[^"]*\)".*|\1|p' pyproject.toml)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup setup-demo demo test parts lint bench soak clean

setup: $(READY)

# the extra `service` alone, without torch: what a person needs who only wants to see it work
setup-demo: $(READY_DEMO)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "logdoctor needs Python 3.11 or newer: set PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null && $(PYTHON) -m venv $(VENV); } || { \
	  echo "cannot make a virtual environment: install python3-venv" >&2; exit 2; }

$(READY): requirements.lock pyproject.toml | $(BIN)/python
	$(INSTALL) --require-hashes --no-deps -r requirements.lock
	$(INSTALL) $(TORCH) # not in the lock: one file for each kind of accelerator
	$(INSTALL) --no-deps --no-build-isolation -e .
	$(BIN)/logdoctor rules list >/dev/null
	@touch $(READY) $(READY_DEMO)

$(READY_DEMO): requirements-service.lock pyproject.toml | $(BIN)/python
	$(INSTALL) --require-hashes --no-deps -r requirements-service.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	$(BIN)/logdoctor rules list >/dev/null
	@touch $(READY_DEMO)

# a service comes up, a job that dies is run with `logdoctor run`, its verdict is printed with the link to its page
demo: setup-demo
	$(BIN)/python eval/demo.py

test: setup lint parts
	$(BIN)/python -m pytest -n auto

# real parts that the tests run, from Debian: a browser, a log shipper, a Slurm cluster, SSH servers in network namespaces
PARTS := chromium fonts-dejavu-core syslog-ng-core syslog-ng-mod-http zstd slurm-wlm munge openssh-server openssh-client iproute2 procps
parts:
	@PATH="$$PATH:/usr/sbin:/sbin"; for program in chromium syslog-ng zstd slurmctld slurmd srun munged sshd ssh ssh-keygen ip tc pgrep; do command -v $$program >/dev/null || missing="$$missing $$program"; done; [ -z "$$missing" ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PARTS) >/dev/null; } || echo "missing:$$missing; install the packages $(PARTS), or what is like them" >&2

lint: setup
	$(BIN)/ruff check logdoctor eval tests
	$(BIN)/ruff format --check logdoctor eval tests
	$(BIN)/lint-imports
	$(BIN)/mypy

LOGHUB ?= ../loghub # a checkout of logpai/loghub; without it one measure is left out
bench: setup
	@command -v rg >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq ripgrep >/dev/null; } || echo "ripgrep is missing: apt-get install ripgrep" >&2
	$(BIN)/python eval/bench.py --json
	$(BIN)/python eval/bench_service.py --json
	$(BIN)/python eval/bench_nodes.py
	$(BIN)/python eval/bench_pages.py
	$(BIN)/python eval/bench_parsing.py $(LOGHUB)
	$(BIN)/python eval/bench_log.py --gb 1 # without --gb: 10 GB

# a real language model of 135 M parameters, in a folder of its own: whatever it says must do no harm
SILLY := build/silly-model
$(SILLY)/.ready: $(READY) tests/soak/requirements.txt
	rm -rf $(SILLY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(SILLY) -r tests/soak/requirements.txt
	@touch $@

soak: setup $(SILLY)/.ready
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n auto tests -k "property or fuzz or chunk or machine"
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n auto tests -m more_in_soak
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest tests/crash
	SILLY_MODEL=$(SILLY) $(BIN)/python -m pytest -s tests/soak
	$(BIN)/python eval/bench.py --huge --json

clean:
	rm -rf $(VENV) build dist *.egg-info

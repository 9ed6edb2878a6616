# Two commands for a new clone: `make train` and `make test`. Both make the virtual environment themselves.
PYTHON ?= python3
VENV   := .venv
INSTALL = @command -v $(PYTHON) >/dev/null || { echo "$(PYTHON): there is no such Python; what works: install Python 3.11 to 3.14, then make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }; \
  $(PYTHON) tools/install.py
BIN    := $(VENV)/bin
RANKS  ?= 4
WORKERS ?= 2
BENCHMARK ?= data_parallel

.PHONY: train explore page site page-types page-check test test-rest test-benchmarks test-all tests-of test-faults test-slurm test-exports lint docs wheel benchmark clean help

help:
	@echo "make train      train a small model on this machine's Python standard library, on $(RANKS) ranks (some four minutes on two cores)"
	@echo "make explore    the page on which to change a layout and see memory, time and communication"
	@echo "make page       build that page anew after a change of its sources (takes Node.js, or installs it); make page-check: compare, and check"
	@echo "make site       the page as a static site in docs/_build/page, with the planner in the browser"
	@echo "make test       every law, on a cover of its cases, on $(WORKERS) processes"
	@echo "make tests-of FILE  the tests that execute a file of src, those that execute much of it first"
	@echo "make test-rest  the other cases, larger shapes, real kills; make test-benchmarks: published rows, benchmarks/"
	@echo "make test-faults  ranks that are killed, stopped, broken and cut off in every way (some forty minutes)"
	@echo "make test-all   all of these and long sweeps (hours), recording which tests execute which file"
	@echo "make test-slurm the job script on a real Slurm of two nodes on this machine (some four minutes; installs Debian's packages as root)"
	@echo "make test-exports  exports with DeepSpeed and torchtitan themselves, in an environment of their own"
	@echo "make lint       ruff, mypy, import-linter, the glossary's words, links between Markdown files"
	@echo "make docs       this documentation as a site in docs/_build: warnings are errors, links are checked"
	@echo "make wheel      wheel and source distribution in dist, tried in a fresh environment without torch"
	@echo "make benchmark  side by side with DDP, FSDP2 and DeepSpeed; BENCHMARK=model_parallel: with torch's pipelines, tensor and context parallelism"

train: $(VENV)/ready
	$(BIN)/fourfold train examples/stdlib.toml --ranks $(RANKS) $(ARGS)

explore: $(VENV)/ready
	$(BIN)/fourfold explore $(ARGS)

page: $(VENV)/page-ready
	$(BIN)/python -m tools.build_page

site: $(VENV)/page-ready
	$(BIN)/python -m tools.build_site $(ARGS)

page-check: $(VENV)/test-ready $(VENV)/page-ready $(VENV)/browser-ready
	$(BIN)/python -m tools.build_page check
	$(PYTEST) -m "page and not sweep" $(ARGS)

page-types: $(VENV)/test-ready
	$(BIN)/python -m tools.page_types

# What other targets run: long ones, cases beyond a cover of a grid, and what looks at the page or at the documentation.
LONGER = sweep or faults or rest or page or docs
SPREAD = -n $(WORKERS) --dist worksteal
PYTEST = $(BIN)/python -m pytest $(SPREAD)

test: $(VENV)/test-ready $(VENV)/browser-ready
	$(PYTEST) -m "not ($(LONGER))" --ignore tests/benchmarks $(ARGS)

test-rest: $(VENV)/test-ready
	$(PYTEST) -m "rest and not (sweep or faults or page or docs)" --ignore tests/benchmarks $(ARGS)

test-benchmarks: $(VENV)/test-ready
	$(PYTEST) tests/benchmarks -m "not sweep" $(ARGS)

test-faults: $(VENV)/test-ready
	$(BIN)/python -m pytest tests/supervise tests/checkpoint/test_killed_saves.py tests/cli/test_exhausted.py $(ARGS)

# Every test, and which lines each one executes: tests/reach.json, from which `make tests-of` finds the tests of a file.
test-all: $(VENV)/test-ready $(VENV)/browser-ready $(VENV)/page-ready
	$(BIN)/python -m tools.reach record $(SPREAD) $(ARGS)

tests-of: $(VENV)/test-ready
	@$(BIN)/python -m tools.reach of $(filter-out tests-of,$(MAKECMDGOALS)) $(ARGS)

# The file or module behind `tests-of` is no target.
ifeq (tests-of,$(firstword $(MAKECMDGOALS)))
.PHONY: $(filter-out tests-of,$(MAKECMDGOALS))
$(filter-out tests-of,$(MAKECMDGOALS)): ;@:
endif

test-slurm: $(VENV)/test-ready
	$(BIN)/python -m tools.check_slurm

test-exports: $(VENV)-exports/ready
	$(VENV)-exports/bin/python -m pytest tests/export $(ARGS)

lint: $(VENV)/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.words
	$(BIN)/python -m tools.host_waits
	$(BIN)/python -m tools.check_links

docs: $(VENV)/docs-ready
	rm -rf docs/_build
	$(BIN)/python -m sphinx -q -W --keep-going -j auto -b html -d docs/_build/doctrees docs docs/_build/site
	$(BIN)/python -m tools.check_links docs/_build/site
	$(PYTEST) -m docs $(ARGS)
	@echo "the site: docs/_build/site/index.html"

wheel: $(VENV)/release-ready
	$(BIN)/python -m tools.check_wheel

benchmark: $(VENV)/benchmark-ready
	$(BIN)/python benchmarks/$(BENCHMARK).py $(ARGS)

# What `make train` and `make explore` need. tools/install.py says which step failed and what to do.
$(VENV)/ready: pyproject.toml constraints.txt tools/install.py
	$(INSTALL) $(VENV) train $(MAKECMDGOALS)
	@touch $@

$(VENV)/test-ready: $(VENV)/ready
	$(INSTALL) $(VENV) test $(MAKECMDGOALS)
	@touch $@

# The page is built by the system's Node.js, 20 or newer, else by the one that PyPI has.
$(VENV)/page-ready: $(VENV)/ready
	$(INSTALL) $(VENV) page $(MAKECMDGOALS)
	@touch $@

# Tests of the page drive Chromium. Root on Debian installs it; elsewhere they are skipped, and make says so each time.
$(VENV)/browser-ready: $(VENV)/test-ready
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive \
	    && apt-get -qq update && apt-get -qq install -y chromium >/dev/null; } && touch $@ \
	  || echo "NO CHROMIUM: TESTS OF THE PAGE IN A BROWSER ARE SKIPPED; what works: apt-get install chromium"

$(VENV)/benchmark-ready: $(VENV)/test-ready
	$(INSTALL) $(VENV) benchmark $(MAKECMDGOALS)
	@touch $@

# torchtitan wants an older fsspec than constraints.txt has; transformers imports DeepSpeed wherever it is installed.
$(VENV)-exports/ready: pyproject.toml constraints-exports.txt tools/install.py
	$(INSTALL) $(VENV)-exports exports $(MAKECMDGOALS)
	@touch $@

$(VENV)/docs-ready: $(VENV)/test-ready
	$(INSTALL) $(VENV) docs $(MAKECMDGOALS)
	@touch $@

$(VENV)/release-ready: $(VENV)/ready
	$(INSTALL) $(VENV) release $(MAKECMDGOALS)
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-exports runs fourfold-data docs/_build docs/reference dist src/fourfold/explore/page/node_modules

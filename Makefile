# make demo    match two example pictures and show the result      make test    run the test suite
# make reconstruct   from eight example pictures to a COLMAP model and a report
# make check   lint and types                                      make clean   remove the environment
# make fuzz    read thousands of damaged files of every kind       make docs    make the manual, as a site
# make dist    build and check wheel and sdist
# make test-release   install the wheel into fresh environments of every Python, and match there
#
# All set up .venv with pip first. Variables:
#   PYTHON=python3.12        the interpreter (3.11 or newer)
#   TORCH_INDEX=URL          another package index for torch, for example https://download.pytorch.org/whl/cpu
#   VENV=.venv               where the environment goes
#   PYTHONS="3.11 3.12"      those of test-release, of 3.11, 3.12 and 3.13 as far as they are here

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
TESTS ?= tests
PYTHONS ?= 3.11 3.12 3.13

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TORCH_OPTION := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: demo reconstruct test test-release fuzz check format docs dist clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.steerers
	@mkdir -p demo
	$(BIN)/python examples/rotate.py examples/maupertuis_1.jpg demo/rotated.jpg --degrees 135
	$(BIN)/steerers match examples/maupertuis_0.jpg demo/rotated.jpg --verify fundamental \
		--out demo/matches.png --json demo/matches.json
	$(BIN)/steerers match examples/board_0.jpg examples/board_1.jpg --out demo/board.png --json demo/board.json
	@echo "open demo/matches.png and demo/board.png"

reconstruct: $(VENV)/.colmap
	@mkdir -p demo
	$(BIN)/steerers reconstruct examples/village -o demo/reconstruction --cameras one
	@echo "open demo/reconstruction/report.html"

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(TESTS)

test-release: $(VENV)/.dev
	RELEASE_PYTHONS="$(PYTHONS)" TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python -m pytest -m slow --durations=0 tests/test_release.py

fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --hypothesis-profile=fuzz tests/test_damaged_files.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs
	$(BIN)/python docs/build.py
	@echo "open site/index.html; to search it, serve it: $(BIN)/python -m http.server --directory site"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "steerers needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.steerers: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install torch -c constraints.txt $(TORCH_OPTION)
	$(PIP) install -e . -c constraints.txt
	@touch $@

$(VENV)/.colmap: $(VENV)/.steerers
	$(PIP) install -e ".[colmap]" -c constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.steerers
	$(PIP) install -e ".[dev]" -c constraints.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.steerers
	$(PIP) install -e ".[docs]" -c constraints.txt
	@touch $@

clean:
	rm -rf $(VENV) demo site

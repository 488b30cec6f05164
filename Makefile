# make demo    match two example pictures and show the result      make test    run the test suite
# make reconstruct   from eight example pictures to a COLMAP model and a report
# make check   lint and types                                      make clean   remove the environment
# make fuzz    read thousands of damaged files of every kind       make docs    make the manual, as a site
# make web     build the page that steerers web serves (Node)       make test-web   test it, in Node and in Chromium
# make dist    build and check wheel and sdist, with the page
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

.PHONY: demo reconstruct test test-release test-web fuzz check format web docs dist clean
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

test-web: $(VENV)/.dev web
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m web tests/web

fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --hypothesis-profile=fuzz tests/test_damaged_files.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

web: $(VENV)/.onnx web/node_modules/.package-lock.json
	$(BIN)/python web/prepare.py
	npm run --prefix web --silent build
	@echo "serve it: $(BIN)/steerers web --open; or put the folder src/steerers/web on any host"

dist: $(VENV)/.dev web
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

$(VENV)/.onnx: $(VENV)/.steerers
	$(PIP) install -e ".[onnx]" -c constraints.txt
	@touch $@

web/node_modules/.package-lock.json: web/package-lock.json
	@node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' || \
		{ echo "the page is built with Node 20.19 or newer"; exit 1; }
	npm ci --prefix web --no-audit --no-fund

clean:
	rm -rf $(VENV) demo site web/node_modules web/assembly/build web/static/model web/static/examples src/steerers/web

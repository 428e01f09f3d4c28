# make run   build .venv if needed, execute the course, write build/*.html
# make test  build .venv if needed, run the whole test suite
# make lab   build .venv if needed, open the course in JupyterLab

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
RELEASES := .venv/releases-installed
BROWSER := .venv/browser-installed

.PHONY: run test lab checksums

run: $(INSTALLED)
	$(BIN)/casestudy run

test: $(INSTALLED) $(RELEASES) $(BROWSER)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

lab: $(INSTALLED)
	$(BIN)/casestudy lab

# after a change to data/
checksums:
	cd data && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum > SHA256SUMS

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

# the other streamer releases that the tests compare; each in a folder of its own
$(RELEASES): $(INSTALLED) casestudy/releases.py
	$(BIN)/python -m casestudy.releases
	@touch $@

# the browser for tests/browser; where it cannot be had these tests are skipped, except in CI
$(BROWSER): $(INSTALLED) tools/install_browser.py
	$(BIN)/python tools/install_browser.py && touch $@ || [ -z "$$CI" ]

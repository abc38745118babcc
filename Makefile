# make demo: sensor localisation, from a bare clone to a table and a picture
# make test: style and tests, from a bare clone
# Real data are used where PYROGRAPH_DATA names their folder.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed

# Small tensors gain nothing from threads, and threads that outnumber free cores cost dearly.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test format clean

demo: $(STAMP)
	$(BIN)/python tutorials/sensor_localization.py

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n $(WORKERS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis *.egg-info

$(STAMP): setup.cfg setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	touch $@

# Two commands: `make demo` and `make test`. Both set up what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo browser test bench clean

setup: $(VENV)/.ready

# Debian's Python may come without ensurepip: then pip is put into the environment from outside.
# torch is installed first and pinned, so that the CPU build is taken where one is offered.
$(VENV)/.ready: requirements.lock pyproject.toml
	@echo "Setting up $(VENV) (once; some minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || \
		( rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install -q pip )
	@$(BIN)/python -m pip install -q "$$(grep '^torch==' requirements.lock)"
	@$(BIN)/python -m pip install -q --no-deps -r requirements.lock
	@$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	@$(BIN)/holdfast compare --task fashion-mini --clients 4 --partition dirichlet:0.1 --rounds 18 \
		--scenario none,sequential --method fedavg,fedprox,fednova --seed 0 --out runs/demo-$$(date +%Y%m%d-%H%M%S)

# The tests of the report need a browser; Debian's is installed where that is possible.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends chromium chromium-driver fonts-dejavu-core; } >/dev/null 2>&1 || \
		echo "No Chromium here and none could be installed (apt-get install chromium chromium-driver): browser tests are skipped."

test: setup browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

bench: setup
	@$(BIN)/python benchmarks/engine.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

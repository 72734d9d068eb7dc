# Two commands: `make demo` and `make test`. Both set up what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE  # a process that has to compile the package first starts a third of a second later

.PHONY: setup demo browser lint style types check test bench bench-speed bench-peers evidence reference site dist bom image coverage clean

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

DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)

demo: setup
	@echo "1. All four members leave for ever, one after the other. Who forgets?"
	@$(BIN)/holdfast compare --task fashion-mini --clients 4 --partition dirichlet:0.1 --rounds 18 --set model=features:512 \
		--scenario none,sequential --method fedavg,fedprox,fednova,feddig --seed 0 --out $(DEMO)/leaving
	@$(BIN)/holdfast report $(DEMO)/leaving --out $(DEMO)/leaving.html
	@echo "2. Three of twelve members are hostile: they send random weights, or lie about the others as well. Who holds?"
	@$(BIN)/holdfast compare --task fashion-mini --clients 12 --partition dirichlet:0.5 --rounds 12 --set model=features \
		--scenario none --attack none,random,liar --attackers 3 --method fedavg,fedtest,jury --seed 0 --out $(DEMO)/hostile
	@$(BIN)/holdfast report $(DEMO)/hostile --out $(DEMO)/hostile.html

# The tests of the report need a browser; Debian's is installed where that is possible.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends chromium chromium-driver fonts-dejavu-core; } >/dev/null 2>&1 || \
		echo "No Chromium here and none could be installed (apt-get install chromium chromium-driver): browser tests are skipped."

lint: style types

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

TYPES = $(BIN)/mypy holdfast tests && $(BIN)/lint-imports

types: setup
	$(TYPES)

# Tests with types and layers checked beside them; what those say is shown last, and either failing fails both.
define beside
	@mkdir -p build; { $(TYPES); } > build/types.log 2>&1 & types=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(1); tests=$$?; \
	wait $$types; types=$$?; cat build/types.log; test $$tests = 0 && test $$types = 0
endef

# What to run after each change: lint, types, and the tests that take seconds.
check: style
	$(call beside,-n 2 -m "not slow and not flower and not browser")

test: style browser
	$(call beside,-n 4)
	@cat tests/coverage.txt 2>/dev/null || echo "Coverage: not measured yet (make coverage)."

# The long proofs, whose small versions are among the tests: what lies cost, how strong the audits are, that no bit changed.
evidence: setup
	$(BIN)/python benchmarks/one_hostile.py
	$(BIN)/python benchmarks/audits.py
	PYTHONPATH=tests/support $(BIN)/python tests/support/curious_letters.py 10000
	$(BIN)/python benchmarks/trust.py --seed 0,1,2 --attackers 4 --attack none,random,signflip:1,labelflip,liar,backdoor
	$(BIN)/python benchmarks/adversary.py --data fashion --seed 0,1,2,3,4
	$(BIN)/python benchmarks/adversary.py --data fashion-cnn --rule jury --seed 0,1
	$(BIN)/python benchmarks/adversary.py --data heart,five --hostile 1 --attack none,late,slander,frame --seed 0,1,2,3,4
	$(BIN)/python benchmarks/adversary.py --data breast --rule jury --hostile 2 --attack none,late,slander,frame --seed 0,1,2,3,4
	$(BIN)/python benchmarks/adversary.py --data twelve --rule moments+jury --hostile 3 --attack 'none,label flips,late' --seed 0,1,2,3,4
	$(BIN)/python benchmarks/stamps.py --rule jury,feddig+jury --seed 0,1,2,3,4
	$(BIN)/python benchmarks/stamps.py --data fashion-cnn --rule fedavg,jury --stamp 'bright square;stripe;inversion' --seed 0,1
	$(BIN)/python benchmarks/stamps.py --data fashion-long --rule fedavg,jury --stamp 'stripe, a tenth of the records' --seed 0,1,2,3,4
	$(if $(FILES),$(BIN)/python benchmarks/adversary.py --data letters,cifar --files $(FILES) --hostile 4,6 --attack none,late,slander,frame --seed 0,1,2,3,4)
	$(BIN)/python benchmarks/constants.py
	$(BIN)/holdfast attack-search benchmarks/search.toml --attackers 6 --budget 64 --seeds 0,1
	$(BIN)/holdfast attack-search benchmarks/search-feddig.toml --attackers 6 --budget 64 --seeds 0,1

# A wheel in dist/.
dist: setup
	@rm -rf dist build
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
	@rm -rf build
	@ls dist

# A bill of materials (CycloneDX): what is installed from requirements.lock, and under which licences.
bom: setup
	@mkdir -p build
	@$(BIN)/python deploy/bom.py > build/bom.json
	@echo "build/bom.json"

# A container of it: docs/deploying.md.
image: dist
	docker build -t holdfast -f deploy/Dockerfile .

# What of the package the quick tests reach; `make test` shows what was measured last.
coverage: setup
	@mkdir -p build
	OMP_NUM_THREADS=1 $(BIN)/python -m slipcover --source holdfast --json --out build/coverage.json -m pytest -n 2 -m "not slow and not flower and not browser"
	@$(BIN)/python tests/support/covered.py build/coverage.json > tests/coverage.txt && cat tests/coverage.txt

# docs/reference.md and docs/errors.md, made of the code; new sentences of errors get their codes. Tables of saved results.
reference: setup
	$(BIN)/python -m holdfast.cli.reference > docs/reference.md
	$(BIN)/python -m holdfast.cli.codes
	$(BIN)/python benchmarks/saved.py tables

# The pages of docs/ for any static host, in build/site; a warning is an error.
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q --strict -f site/mkdocs.yml
	@echo "build/site/index.html"

bench: setup
	@$(BIN)/python benchmarks/engine.py

# Ratios of things done in turns, for a table; on a machine with an accelerator also benchmarks/gpu.py.
bench-speed: setup
	@$(BIN)/python benchmarks/speed.py
	@$(BIN)/python benchmarks/scale.py
	@$(BIN)/python benchmarks/one_step.py

# The same work beside the peers, each in an environment of its own under build/peers: downloads some 100 MB.
bench-peers: setup
	@$(BIN)/python benchmarks/peers.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

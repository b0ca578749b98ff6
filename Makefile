# `make` alone lists the targets.
.PHONY: help demo containers check test test-library matrix faults verify lint audit peers lock clean
.DEFAULT_GOAL := help

SETUP := sh tools/python.sh
BIN := .venv/bin
# Python images set it. Then each process that a test starts compiles all its packages again.
unexport PYTHONDONTWRITEBYTECODE
JOBS ?= 4
DJANGO ?= 5.2
PYTHONS ?= python3.11 python3.12 python3.13
ON_POSTGRESQL = tests/inventory $(addprefix tests/shop/,administration orders payments platform purchase reservations)
UV ?= uv
EXPORT = $(UV) export --quiet --no-header --no-annotate --no-emit-project --no-default-groups

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile

demo: ## serve the shop with embedded stores, a worker, a consumer and beat; PORT=8000, REDLOCK=1 adds five masters
	@exec $(SETUP) tools/setup.py demo tools/demo.py

containers: ## run docker-compose.yml in podman, as root on Debian, with images made of Debian's packages; PORT=8000
	@$(SETUP) --install tools/setup.py test
	@exec $(BIN)/python tools/containers/containers.py $(ARGS)

check: lint ## lint, and run the tests of the modules that changed since the last commit; SINCE=main
	@{ git diff --name-only --diff-filter=d $${SINCE:-HEAD}; git ls-files --others --exclude-standard; } \
		| sed -E 's#^(\w+/)?(.*/)?(\w+)\.py$$#& tests/\1\2test_\3.py#' | tr ' ' '\n' | grep -E '^tests/.*test_\w+\.py$$' | sort -u \
		| xargs -r ls -d 2>/dev/null | xargs $(BIN)/pytest -n $(JOBS) --dist loadfile -m "not long" tests/test_layout.py

test: ## install the tests' requirements and run the tests on private real servers; JOBS=4
	@$(SETUP) --install tools/setup.py test
	@status=0; \
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not long" || status=$$?; \
	echo "The tests that depend on the database, again on MariaDB:"; \
	TEST_STORE=mariadb $(BIN)/pytest -n $(JOBS) --dist loadfile -m "stores and not long" || status=$$?; \
	echo "What the shop's statements and their errors depend on, on PostgreSQL:"; \
	TEST_STORE=postgresql $(BIN)/pytest -n $(JOBS) --dist loadfile -m "stores and not long" $(ON_POSTGRESQL) || status=$$?; \
	exit $$status

test-library: ## test the library's wheel without shop and lab; PYTHON=python3 DJANGO=5.2 ARGS="-k redis"
	@$(SETUP) tools/library.py test $(DJANGO) $(ARGS)

matrix: ## test the wheel with each of PYTHONS="python3.11 ..." and every Django, and print a table
	@$(SETUP) tools/library.py matrix $(PYTHONS)

faults: ## run the fault suite, print its rows and write var/faults-*.json; SEED=42 ROUNDS=3 repeat it
	@$(SETUP) --install tools/setup.py test
	@status=0; \
	TEST_STORE=mariadb $(BIN)/pytest -n $(JOBS) --dist loadfile -m faults \
		--faults-report=var/faults-mariadb.json || status=$$?; \
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "faults and stores and not long" \
		--faults-report=var/faults-sqlite.json || status=$$?; \
	exit $$status

verify: ## search for broken promises, for hours: WHAT=all|long|torture|histories|interleavings|models|mutants|soak
	@$(SETUP) --install tools/setup.py test
	@$(MAKE) --no-print-directory verify-$${WHAT:-all}

verify-all: faults verify-long verify-histories verify-interleavings verify-models verify-mutants verify-torture verify-soak

verify-long:
	@TEST_STORE=mariadb $(BIN)/pytest -n $(JOBS) --dist loadfile -m "long and not faults"

verify-histories:
	@HISTORIES=$${HISTORIES:-10000} $(BIN)/pytest -n $(JOBS) tests/verification/histories/test_linearizability.py -k brute_force

verify-interleavings:
	@$(BIN)/python manage.py verify interleavings --keep

verify-models:
	@$(BIN)/python manage.py verify models

verify-mutants:
	@ALL_MUTANTS=1 $(BIN)/pytest -n0 -v -m "" --faults-report=var/mutants.json \
		tests/verification/mutants tests/verification/torture/test_mutants.py

verify-torture:
	@$(BIN)/python manage.py verify torture --minutes $${MINUTES:-60} --seed $${SEED:-1}

verify-soak:
	@$(BIN)/python manage.py verify soak

lint: ## run ruff (with bandit's and pydocstyle's rules), import-linter and mypy (strict)
	@$(SETUP) --install tools/setup.py test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy .

audit: ## look up every pinned package in the advisory database (needs the network)
	@$(SETUP) tools/setup.py demo
	@$(BIN)/pip install --quiet --disable-pip-version-check --target=.venv/audit pip-audit==2.10.1
	@PYTHONPATH=.venv/audit $(BIN)/python -m pip_audit --strict --require-hashes --disable-pip --progress-spinner=off \
		$(patsubst %,-r requirements/%.txt,demo production dev)

peers: ## install the lock libraries that `manage.py lab bench` compares with
	@$(SETUP) tools/setup.py demo
	@$(SETUP) tools/setup.py peers

lock: ## pin the newest versions that pyproject.toml allows (needs uv)
	$(UV) lock --upgrade
	$(EXPORT) --group shop --group lab -o requirements/demo.txt
	$(EXPORT) --group shop --group mysql --group postgresql -o requirements/production.txt
	$(EXPORT) --group shop --group lab --group mysql --group dev -o requirements/dev.txt
	$(EXPORT) --only-group peers -o requirements/peers.txt

clean: ## remove the virtual environment and the demo's data
	rm -rf .venv var .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

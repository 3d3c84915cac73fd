"""The cards of all backends: those that come with stubserve, by the table here, and those of installed packages.

A backend of stubserve is a folder and its line in `BUILT_IN`; a folder may have the cards of several. A package has an
entry point in the group `stubserve.backends` that names its card. Packages are looked for only when the cards of the
table do not suffice.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Dict, Iterator, Mapping, Sequence

from stubserve_stub.backends.card import Card

PYTHON = "python"
# The folders of backends, in the order in which Triton tries their files; then those whose files Triton does not know
BUILT_IN = (
    "tensorflow",
    "tensorrt",
    "onnxruntime",
    "openvino",
    "pytorch",
    PYTHON,
    "identity",
    "repeat",
    "remote",
    "llamacpp",
    "tracking",
    "video",
)
GROUP = "stubserve.backends"

log = logging.getLogger("stubserve.backends")


def all_cards() -> Iterator[Card]:
    """Those of the table, and then those of packages."""
    yield from built_in().values()
    yield from installed().values()


def card_of(name: str) -> Card:
    """The card of the backend with this name. One that nobody knows has a card with defaults."""
    return built_in().get(name) or (installed().get(name) if name else None) or Card(name)


def model_files() -> Iterator[str]:
    """The names of files, and folders, that are models which stubserve can run."""
    return (file.name for card in all_cards() if card.program for file in card.files)


@functools.lru_cache(maxsize=None)
def built_in() -> Mapping[str, Card]:
    return {card.name: card for folder in BUILT_IN for card in _cards_in(folder)}


def _cards_in(folder: str) -> Sequence[Card]:
    cards: Sequence[Card] = importlib.import_module(f"stubserve_stub.backends.{folder}.card").CARDS
    return cards


@functools.lru_cache(maxsize=None)
def installed() -> Mapping[str, Card]:
    """The cards of packages. One that cannot be used is left out, and the log says why."""
    from importlib.metadata import entry_points  # not at the top: most servers do not need it

    found: Dict[str, Card] = {}
    owners = dict.fromkeys(built_in(), "stubserve")
    named = ((entry.dist.name if entry.dist else "", entry) for entry in entry_points(group=GROUP))
    for package, entry in sorted(named, key=lambda one: (one[0], one[1].name)):
        try:
            card = entry.load()
        except Exception as error:
            wrong = f"its card {entry.value} cannot be imported: {type(error).__name__}: {error}"
        else:
            if not isinstance(card, Card) or card.name != entry.name or not card.program:
                wrong = f"{entry.value} is not a stubserve_stub.backends.card.Card with this name and a program"
            elif card.name in owners:
                wrong = f"{owners[card.name]} has a backend of this name"
            else:
                found[card.name] = card
                owners[card.name] = f"the package {package}"
                continue
        log.warning("the backend '%s' of the package %s is left out: %s", entry.name, package, wrong)
    return found

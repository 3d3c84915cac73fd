"""The cards of all backends: those that come with stubserve, by the table here, and those of installed packages.

A backend of stubserve is a folder and its line in `BUILT_IN`; a folder may have the cards of several. A package has an
entry point in the group `stubserve.backends` that names its card. Packages are looked for only when the cards of the
table do not suffice.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any, Dict, Iterator, Mapping, Sequence, get_type_hints

from stubserve_stub.backends.card import Card

PYTHON = "python"
# The folders of backends, in the order in which Triton tries their files; last those that Triton does not know
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
    """The cards of the table, and then the cards of packages."""
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
    named = (((entry.dist and entry.dist.name) or "", entry) for entry in entry_points(group=GROUP))
    for name, entry in sorted(named, key=lambda one: (one[0], one[1].name)):
        # A removal that was broken off leaves entry points without a name.
        package = f"the package {name}" if name else "an unnamed package"
        try:
            card = entry.load()
            wrong = _mistake(card, entry)
        except (Exception, SystemExit) as error:
            wrong = f"its card {entry.value} cannot be imported: {type(error).__name__}: {error}"
        if not wrong and card.name in owners:
            wrong = f"{owners[card.name]} has a backend of this name"
        if wrong:
            log.warning("the backend '%s' of %s is left out: %s", entry.name, package, wrong)
        else:
            found[card.name] = card
            owners[card.name] = package
    return found


def _mistake(card: Any, entry: Any) -> str:
    """Why an entry point's card cannot be used; empty if it can. A card that is read must not fail its readers."""
    if not isinstance(card, Card) or card.name != entry.name or ":" not in str(card.program):
        return f"{entry.value} is not a stubserve_stub.backends.card.Card with this name and a program"
    for field, kind in get_type_hints(Card).items():
        value = getattr(card, field)
        if not _fits(value, kind):
            return f"'{field}' of {entry.value} is {value!r}, and has to be {Card.__annotations__[field]}"
    for file in card.files:
        if file.name in ("", ".", "..") or "/" in file.name or "\0" in file.name:
            return f"the file {file.name!r} in 'files' of {entry.value} does not lie in a version's folder"
    return ""


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has the type of a card's field: a simple one, a NamedTuple, or a tuple of them."""
    if not isinstance(value, getattr(kind, "__origin__", kind)):
        return False
    kinds = getattr(kind, "__args__", None) or tuple(get_type_hints(kind).values() if isinstance(value, tuple) else ())
    if kinds[-1:] == (...,):
        kinds = kinds[:1] * len(value)
    return not kinds or (len(value) == len(kinds) and all(map(_fits, value, kinds)))

"""The checks of a backend's models without its packages, by what its card names."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stubserve_stub.backends.card import Card, FileProblem
from stubserve_stub.backends.loading import lacks
from stubserve_stub.runtime.failure import Refusal

from stubserve.environments.resolve import PARAMETER
from stubserve.model_config.render import to_json_dict


def config_problems(card: Card, config: Any) -> Iterator[tuple[str, bool]]:
    """What the backend would refuse in the configuration, or has a remark on; or a missing package if the model has no
    environment. Each with whether it is a warning.
    """
    if card.checks_config:
        try:
            options = _function(card.checks_config)(to_json_dict(config))
        except Refusal as refusal:
            yield str(refusal), False
        else:
            for remark in getattr(options, "remarks", ()):
                yield remark, True
    if card.package and PARAMETER not in config.parameters and importlib.util.find_spec(card.package) is None:
        yield lacks(card.package, card.extra), False


def file_problems(card: Card, config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the files of a version, as far as they and the configuration show it."""
    if card.checks_files:
        yield from _function(card.checks_files)(to_json_dict(config), str(version_dir))


def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)

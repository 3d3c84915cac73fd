"""The checks of a backend's models without its packages, by what its card names."""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stubserve_stub.backends.card import Card, FileProblem
from stubserve_stub.backends.loading import lacks
from stubserve_stub.runtime.failure import Refusal

from stubserve.environments.resolve import named_in
from stubserve.model_config.render import to_json_dict


def config_problems(card: Card, config: Any) -> Iterator[tuple[str, bool]]:
    """What the backend would refuse in the configuration, or has a remark on; or a missing package if the model has no
    environment. Each with whether it is a warning.
    """
    if card.checks_config:
        try:
            options = pkgutil.resolve_name(card.checks_config)(to_json_dict(config))
            for remark in getattr(options, "remarks", ()):
                yield str(remark), True
        except Refusal as refusal:
            yield str(refusal), False
        except Exception as error:
            yield _broken(card, card.checks_config, error), True
    in_environment = card.in_environments and named_in(config)
    if card.package and not in_environment and importlib.util.find_spec(card.package.partition(".")[0]) is None:
        yield lacks(card.package, card.extra, card.name), False


def file_problems(card: Card, config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the files of a version, as far as they and the configuration show it."""
    if card.checks_files:
        try:
            check = pkgutil.resolve_name(card.checks_files)
            for file, text, is_warning in check(to_json_dict(config), str(version_dir)):
                yield FileProblem(str(file), str(text), bool(is_warning))
        except Exception as error:
            yield FileProblem(str(version_dir), _broken(card, card.checks_files, error), is_warning=True)


def _broken(card: Card, place: str, error: Exception) -> str:
    """A check of a package may be wrong itself, and the other models are checked nevertheless."""
    return f"the check {place} of the backend '{card.name}' has failed: {type(error).__name__}: {error}"

"""Which models need which others: ensembles need the models of their steps.

An ensemble has no processes and no memory, so loading it costs only the checks against its members. That makes the
rules simple. From outside they are upstream's:

- an ensemble is loaded after its members (`rounds`), and with explicit control brings missing ones;
- a model that depends on itself is refused (`circle`);
- an ensemble is unloaded with a member, comes back when that is loaded again, and is loaded again when a member is
  (`ensembles`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from stubserve.errors import ServeError, invalid


def version_not_loaded(ensemble: str, step: Any) -> ServeError:
    """The refusal of a step with a model that lacks the version; upstream takes a missing version for 0."""
    where = f"ensemble '{ensemble}' depends on '{step.model_name}'"
    hint = "" if step.model_version else " (model_version: -1 means the latest)"
    return invalid(f"{where} whose required version {step.model_version} is not loaded.{hint}")


def rounds(needs: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The models in rounds. Each needs only models of earlier rounds, or models that are not among them.

    Models that need each other in a circle, and the models that need these, come last.
    """
    left = dict(needs)
    found = []
    while left:
        free = [name for name, members in left.items() if not any(member in left for member in members)]
        if not free:
            free = list(left)
        found.append(free)
        for name in free:
            del left[name]
    return found


def circle(name: str, members: Collection[str], needs: Callable[[str], Collection[str]]) -> ServeError | None:
    """The refusal of a model that needs itself, through any number of ensembles; `needs` is for the others."""
    seen: set[str] = set()
    todo = [(name, member) for member in members]
    while todo:
        by, member = todo.pop()
        if member == name:
            return invalid(f"circular dependency between ensembles: {name} -> ... -> {by} -> {name}")
        if member not in seen:
            seen.add(member)
            todo += [(member, further) for further in needs(member)]
    return None


def no_longer_needed(name: str, needs: Mapping[str, Collection[str]], asked_for: Collection[str]) -> list[str]:
    """The models to unload with `name` and its dependents: members not loaded by name and not needed by others.

    `needs` are the serving models, with their members.
    """
    gone = [name]
    for going in gone:
        for member in needs.get(going, ()):
            users = [user for user, members in needs.items() if member in members and user not in gone]
            if member in needs and member not in gone and member not in asked_for and not users:
                gone.append(member)
    return gone[1:]

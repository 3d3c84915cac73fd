"""Which models need which others: ensembles need the models of their steps.

An ensemble has no processes and no memory, so loading it costs nothing but the checks against its members. That makes
the rules simple, and they are upstream's as seen from outside:

- what has members is loaded after them (`rounds`), and with explicit control brings those that are not loaded;
- what depends on itself is refused (`circle`);
- an ensemble goes with a member that is unloaded, comes back when that is loaded again, and is loaded anew when a
  member is (`ensembles`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from stubserve.errors import ServeError, invalid


def version_not_loaded(ensemble: str, step: Any) -> ServeError:
    """What is said of a step whose version of its model is not there; upstream takes a missing version for 0."""
    where = f"ensemble '{ensemble}' depends on '{step.model_name}'"
    hint = "" if step.model_version else " (model_version: -1 means the latest)"
    return invalid(f"{where} whose required version {step.model_version} is not loaded.{hint}")


def rounds(needs: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The models in rounds, each of which needs only what is in rounds before, or is not among them.

    Those that need each other in a circle, and who needs them, come last.
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
    """The refusal of a model that needs itself, through however many ensembles. `needs` tells of the others."""
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
    """What goes with `name` where its dependents are to go: members that nobody asked for, and nothing else needs.

    `needs` are the models that serve, with their members.
    """
    gone = [name]
    for going in gone:
        for member in needs.get(going, ()):
            users = [user for user, members in needs.items() if member in members and user not in gone]
            if member in needs and member not in gone and member not in asked_for and not users:
                gone.append(member)
    return gone[1:]

"""Imports point one way: no module is imported, however indirectly, by what it imports itself."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import stubserve

ROOT = Path(stubserve.__file__).parent


@cache
def modules() -> dict[str, Path]:
    """Every module of the server, by name."""
    files = {}
    for file in ROOT.rglob("*.py"):
        parts = ("stubserve", *file.relative_to(ROOT).with_suffix("").parts)
        files[".".join(parts).removesuffix(".__init__")] = file
    return files


@cache
def imports(module: str) -> frozenset[str]:
    """The server's modules that a module imports, be it in a function, or for the type checker only."""
    found = set()
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found & modules().keys())


def circle(module: str) -> list[str]:
    """The way from a module back to itself, empty if there is none."""
    ways = [[module]]
    seen = set()
    for way in ways:
        for other in sorted(imports(way[-1])):
            if other == module:
                return [*way, module]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


@pytest.mark.parametrize(
    "place", ["repository", "model_config", "environments", "instances", "inference", "schedulers", "serving", "server"]
)
def test_nothing_is_imported_by_what_it_imports(place: str) -> None:
    members = [name for name in modules() if f"{name}.".startswith(f"stubserve.{place}.")]
    assert members
    assert [circle(name) for name in members if circle(name)] == []

"""Imports point one way, those for types included: no circles among modules, and an order of the rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"stubserve": ROOT / "src" / "stubserve", "stubserve_stub": ROOT / "stub" / "stubserve_stub"}


def modules() -> dict[str, Path]:
    """Name -> file; a package is its `__init__`."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the project that a module imports when it is itself imported, or for its types.

    What a function imports is not among them: that is done when it is called.
    """
    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                parents = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        yield from (one for one in names if one in known and one != name)


def _statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _statements(node)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules each of which leads to each other one (Tarjan's strongly connected components)."""
    found: list[set[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            circle = set(stack[at:])
            del stack[at:]
            if len(circle) > 1:
                found.append(circle)

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def test_imports_point_one_way() -> None:
    known = modules()
    graph = {name: set(imported(name, path, known)) for name, path in known.items()}
    found = [sorted(circle) for circle in circles(graph)]
    assert not found, f"modules that import each other: {found}"


def test_each_room_imports_only_from_the_rows_above_it() -> None:
    """Rooms are what `docs/architecture.md` has in its table: packages and single modules."""
    table = (ROOT / "docs" / "architecture.md").read_text().partition("| in `src/stubserve/` | what |\n")[2]
    rows = table.partition("\n\n")[0].splitlines()[1:]
    height = {"stubserve": 0, "stubserve_stub": 0, "__main__": len(rows)}
    for at, row in enumerate(rows):
        height |= {name.removesuffix(".py").strip("/"): at for name in re.findall("`([^`]+)`", row.split("|")[1])}
    known = modules()

    def room(name: str) -> str:
        top, _, rest = name.partition(".")
        return rest.partition(".")[0] or top if top == "stubserve" else top

    wrong = [
        f"{name} -> {other}"
        for name, path in sorted(known.items())
        for other in imported(name, path, known)
        if room(name) not in (room(other), "stubserve", "stubserve_stub")
        if room(other) not in ("stubserve", "stubserve_stub") and height[room(other)] >= height[room(name)]
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [{"a", "b"}]),
        ({"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}, [{"a", "b", "c"}, {"d", "e"}]),
    ],
)
def test_circles_are_found(graph: dict[str, set[str]], expected: list[set[str]]) -> None:
    assert sorted(map(sorted, circles(graph))) == sorted(map(sorted, expected))


def test_the_client_and_the_server_know_nothing_of_each_other() -> None:
    known = modules()
    client = {name for name in known if name.startswith("stubserve.client.") or name == "stubserve.client"}
    assert client
    for name, path in known.items():
        others = set(imported(name, path, known)) - {"stubserve"}
        assert (others <= client) if name in client else not (others & client), name


def test_the_server_knows_nothing_of_the_driver_of_gpus() -> None:
    """A driver that crashes, or takes memory, does so in a stub."""
    known = modules()
    device = {name for name in known if name.startswith("stubserve_stub.device")}
    assert device
    # What a stub imports on servers with GPUs only, within functions
    users = {"stubserve_stub.runtime.devices", "stubserve_stub.api.device_tensors"}
    users.add("stubserve_stub.backends.on_gpu")
    # This backend runs on GPUs only.
    users |= {name for name in known if name.startswith("stubserve_stub.backends.tensorrt.")}
    for name, path in known.items():
        assert name in device | users or not set(imported(name, path, known)) & device, name

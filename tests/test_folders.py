"""Tests lie where their subjects do, and what they share where it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Tests of whole servers and of what is done with them, of pages, and at the top of the whole tree
ELSEWHERE = {"", "server", "client", "conformance", "deploy", "documentation", "model_repository"}
# Tests of programs that they start
PROGRAMS = {
    "commands/test_fetch.py",
    "stub/backends/python/test_forks.py",
    "stub/runtime/test_control.py",
    "testing/test_wheel.py",
}
FILES = sorted(path.relative_to(ROOT) for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py"))


def imported(file: Path) -> Iterator[str]:
    """What a file imports, by its whole name, and of a `from` each name."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            beside = file.parts[: -node.level] if node.level else ()
            yield from (".".join([*beside, *filter(None, [node.module]), name.name]) for name in node.names)


def test_tests_lie_in_the_mirror_of_what_they_test() -> None:
    """They import something of the folder of the same name in src/stubserve, stub/stubserve_stub, or tools, or what
    lies beside them. Tests that start programs need not.
    """
    wrong = set()
    for file in FILES:
        _, first, *rest = (*file.parent.parts, "")[:2] + file.parent.parts[2:]
        if file.name.startswith("test_") and first not in ELSEWHERE:
            mirrored = {"stub": ["stubserve_stub"], "tools": ["tools"]}.get(first, ["stubserve", first]) + rest
            near = tuple(".".join(parts) + "." for parts in (mirrored, file.parent.parts))
            used = set(imported(file))
            if any(name.startswith("stubserve") for name in used) and not any(f"{n}.".startswith(near) for n in used):
                wrong.add(str(file.relative_to("tests")))
    assert wrong == PROGRAMS


def test_what_lies_at_the_top_is_used_in_several_folders() -> None:
    """What the tests of one folder use lies there, and what one test uses stands in it."""
    top = {file.stem for file in FILES if file.parent.name == "tests" and not file.name.startswith(("test_", "__"))}
    users: dict[str, set[Path]] = {name: set() for name in top - {"conftest"}}
    for file in FILES:
        for name in imported(file):
            package, module, *_ = (*name.split("."), "")
            if package == "tests" and module in users:
                users[module].add(file.parent)
    assert {name for name, folders in users.items() if len(folders) < 2} == set()

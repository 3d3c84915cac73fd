"""What docs/architecture.md says of the modules: that they are there, all of them, and which may import which."""

from __future__ import annotations

import re

import pytest

from tests.documentation.pages import DOCS, ROOT
from tests.test_imports import imported, modules

PAGE = (DOCS / "architecture.md").read_text()
SOURCES = ROOT / "src" / "stubserve"


def table(heading: str) -> list[list[str]]:
    """The names in the first column of the table with this heading: a list for each row."""
    rows = PAGE.partition(f"| in `{heading}` |")[2].partition("\n\n")[0].splitlines()[2:]
    return [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in rows]


ROWS = table("src/stubserve/")


def row_of(module: str) -> int | None:
    """The row that has a module of the server; None for the package itself, and what runs it as a program."""
    name = module.partition(".")[2].partition(".")[0]
    found = [number for number, row in enumerate(ROWS) if {f"{name}/", f"{name}.py"} & set(row)]
    return found[0] if found else None


@pytest.mark.parametrize("heading", ["src/stubserve/", "stub/stubserve_stub/"])
def test_every_folder_and_module_has_a_row(heading: str) -> None:
    folder = ROOT / heading
    there = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in folder.iterdir()
        if (path.is_dir() and any(path.glob("*.py"))) or (path.suffix == ".py" and not path.name.startswith("__"))
    }
    assert {name for row in table(heading) for name in row} == there


def test_rows_import_from_rows_above() -> None:
    known = modules()
    against = [
        f"{name} imports {other}"
        for name, path in known.items()
        for other in imported(name, path, known)
        if (row := row_of(name)) is not None and (above := row_of(other)) is not None and above > row
    ]
    assert not against


def test_what_it_names_is_there() -> None:
    files = [
        str(path.relative_to(ROOT)) for top in ("src", "stub", "tests", "tools") for path in (ROOT / top).rglob("*.py")
    ]
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE)) - {"model.py"}
    missing = [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)]
    assert not missing

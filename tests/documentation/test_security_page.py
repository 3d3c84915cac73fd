"""docs/guides/security.md and docs/attacking.md name a test for each weakness and each misfortune: they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "table", "most_untested"),
    [
        ("guides/security.md", "| class |", 0),
        ("guides/security.md", "| a model may |", 5),
        ("attacking.md", "| what | test |", 0),
    ],
)
def test_each_row_names_a_test_that_is_there(page: str, table: str, most_untested: int) -> None:
    text = (ROOT / "docs" / page).read_text()
    rows = text.partition(table)[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) > 10
    untested = 0
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        if not named:
            assert row.endswith("| \u2013 |"), row
            untested += 1
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text())
            assert not name or name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, row
    assert untested <= most_untested

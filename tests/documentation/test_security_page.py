"""docs/security.md names a test for each class of weaknesses: they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_row_names_a_test_that_is_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    rows = text.partition("| class |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (path, name)

"""The messages that the page about troubleshooting explains are messages that there are."""

from __future__ import annotations

import ast
import re

import pytest

from tests.documentation.pages import DOCS, ROOT

PAGE = (DOCS / "guides" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^\| `(.*?)` (?:in the log )?\|", PAGE, re.MULTILINE)


def _texts(tree: ast.AST) -> list[str]:
    """The texts of a module; what is put into them is a NUL."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


TEXTS = [
    text
    for folder in ("src", "stub")
    for path in (ROOT / folder).rglob("*.py")
    for text in _texts(ast.parse(path.read_text()))
]


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 30


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_exists(message: str) -> None:
    """Each of its parts is part of one and the same text."""
    parts = [part for part in message.split("...") if part.strip(" '.:;,")]
    assert parts
    assert any(all(part.strip() in text for part in parts) for text in TEXTS)

"""Placeholders such as `${triton_max_batch_size}` in a `config.pbtxt`, which a script should have filled in.

Repositories of TensorRT-LLM and others are kept in this form. Where a value belongs, a placeholder cannot be read; in a
string it can, and is handed to the model as it stands, which some models take for "not set".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TOKEN = re.compile(r"""(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>#[^\n]*)|\$\{\w+\}""")
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Template:
    """One placeholder. `start` is its offset in the text; line and column count from 1."""

    name: str
    start: int
    line: int
    column: int
    in_string: bool

    @property
    def place(self) -> str:
        return f"${{{self.name}}}"


def find_templates(text: str) -> list[Template]:
    """All placeholders outside of comments, in the order of the text."""
    found = []
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "comment":
            for match in _PLACEHOLDER.finditer(text, token.start(), token.end()):
                start = match.start()
                line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
                found.append(Template(match[1], start, line, column, token.lastgroup == "string"))
    return found


def unfilled_templates(text: str) -> list[Template]:
    """The templates that stand in the place of a value."""
    return [one for one in find_templates(text) if not one.in_string]


def kept_templates(text: str) -> list[Template]:
    """The templates within strings, which are kept as they are."""
    return [one for one in find_templates(text) if one.in_string]


def with_words(text: str, templates: Sequence[Template]) -> str:
    """The text with a word of the same length in the place of each of these placeholders."""
    for one in templates:
        length = len(one.place)
        text = text[: one.start] + "_" * length + text[one.start + length :]
    return text


def unfilled(template: Template) -> str:
    """What is wrong with a placeholder in the place of a value, and what to do."""
    return (
        f"{template.place} is a template that has not been filled in. Write a value in its place, or have a script do "
        f"it: tensorrtllm_backend's is tools/fill_template.py -i config.pbtxt {template.name}:VALUE"
    )


def kept(template: Template) -> str:
    """What is said of a placeholder in a string."""
    return f"{template.place} is a template that has not been filled in; the model gets it as it stands"

"""The headers of a client (gRPC: metadata) that become parameters of its request.

A pattern selects them, in the syntax of RE2, which Triton's flags take; here it is translated to Python's `re`. Most of
the syntax is the same. These differ: flags in the middle of a pattern (`(?-i)`), which count to the end of their group
and for which Python needs a group of their own; named classes; quoted text; and the end of the text. Syntax that only
Python has (looking ahead and back, references) is refused, as Triton refuses it at its start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stubserve.api.request_options import PREFIX, RESERVED
from stubserve.errors import invalid
from stubserve.inference.request import Request
from stubserve.inference.tensor import drop_blocks

_RESERVED = frozenset((*RESERVED, "headers", "binary_data_output"))

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7F",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1F\x7F",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": r"0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_FLAGS = re.compile(r"\(\?([ims]*(?:-[ims]+)?)\)")
_NAMED_CLASS = re.compile(r"\[:(\w+):\]")
_ONLY_PYTHON = re.compile(r"\(\?(?:=|!|<=|<!|\(|P=|P>|#|>)|\\[1-9]|[*+?}]\+")
_UNICODE = {r"\pL": r"[^\W\d_]", r"\pN": r"\d"}


class HeaderForwarding:
    """Forwards the headers with a match of the pattern (RE2's syntax) in their names."""

    def __init__(self, pattern: str) -> None:
        self._search = compile_re2(pattern).search

    def parameters(self, headers: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
        """The parameters from these headers. Raises ServeError for a name that means something to the server."""
        forwarded: dict[str, str] = {}
        for name, value in headers:
            if not self._search(name):
                continue
            lower = name.lower()
            if lower in _RESERVED or lower.startswith(PREFIX):
                raise invalid(f"Header '{lower}' is reserved for Triton usage and cannot be forwarded.")
            forwarded[name] = value if isinstance(value, str) else value.decode("utf-8", "replace")
        return forwarded

    def forward(self, request: Request, headers: Iterable[tuple[bytes, bytes]]) -> Request:
        """The request with the parameters from its headers. If it raises ServeError, nothing of the request is held."""
        try:
            return request.with_headers(self.parameters([(name.decode("latin-1"), value) for name, value in headers]))
        except BaseException:
            drop_blocks(request.inputs)
            raise


def compile_re2(pattern: str) -> re.Pattern[str]:
    """The pattern; as in Triton case does not count unless the pattern says otherwise. Raises re.error."""
    return re.compile(_translated(pattern), re.IGNORECASE)


def _translated(pattern: str) -> str:
    out: list[str] = []
    # Per open group: the flags set inside it, each of which has opened one more group
    scopes: list[list[str]] = [[]]
    at = 0
    while at < len(pattern):
        if found := _ONLY_PYTHON.match(pattern, at):
            raise re.error(f"RE2 knows no '{found[0]}'", pattern, at)
        if found := _FLAGS.match(pattern, at):
            if found[1]:
                scopes[-1].append(f"(?{found[1]}:")
                out.append(scopes[-1][-1])
            at = found.end()
        elif pattern.startswith(r"\Q", at):
            end = pattern.find(r"\E", at)
            end = len(pattern) if end < 0 else end
            out.append(re.escape(pattern[at + 2 : end]))
            at = end + 2
        elif pattern[at] == "\\":
            escape = pattern[at : at + (3 if pattern.startswith(r"\p", at) else 2)]
            out.append(r"\Z" if escape == r"\z" else _UNICODE.get(escape, escape))
            at += len(escape)
        elif pattern[at] == "[":
            text, at = _class(pattern, at)
            out.append(text)
        else:
            letter = pattern[at]
            if letter == "(":
                scopes.append([])
            elif letter == ")" and len(scopes) > 1:
                out.append(")" * len(scopes.pop()))
            elif letter == "|":
                # An alternative closes the groups that stand for flags, and opens them again.
                letter = ")" * len(scopes[-1]) + "|" + "".join(scopes[-1])
            out.append(letter)
            at += 1
    return "".join(out) + ")" * len(scopes[0])


def _class(pattern: str, start: int) -> tuple[str, int]:
    """The class in brackets that begins at `start`, and its end."""
    at = start + 1
    out = ["["]
    if pattern.startswith("^", at):
        out.append("^")
        at += 1
    first = at
    while at < len(pattern) and (pattern[at] != "]" or at == first):
        if found := _NAMED_CLASS.match(pattern, at):
            if found[1] not in _CLASSES:
                raise re.error(f"there is no class '{found[0]}'", pattern, at)
            out.append(_CLASSES[found[1]])
            at = found.end()
        else:
            size = 2 if pattern[at] == "\\" else 1
            text = pattern[at : at + size]
            out.append("\\" + text if text in ("[", "]") else text)
            at += size
    return "".join([*out, pattern[at : at + 1]]), at + 1

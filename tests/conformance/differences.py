"""What the table of accepted differences means: the check of its promises, and its page for readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .accepted import SECTIONS, Accepted

PAGE = Path(__file__).parents[2] / "docs" / "differences-cases.md"

_HEAD = """\
# Differences, case by case

[Known differences](differences.md) says the same in plain words; this page is the table that the tests check.

`make conformance` sends the same raw requests to real Triton 2.51 and to stubserve, over HTTP and gRPC, and compares
status, headers or metadata, body or messages, and statistics. All answers are equal, except in the cases below.
A listed case that no longer differs fails the run, and so does a case with another answer than this page promises.

These are never compared: the reason phrase, the headers Date, Server and Retry-After, the type of an error or an empty
body (Triton sends `text/plain`, stubserve the true type or none), durations and clock times, addresses, and
installation paths.

This page is written by `python -m tests.conformance --write-differences` from `tests/conformance/accepted.py`.
"""


def broken_promise(accepted: Accepted, case: str, outcome: Mapping[str, Any]) -> str:
    """Why ``outcome`` (stubserve's for ``case``) is not what ``accepted`` promises; empty when it is."""
    last = _last_response(outcome.get("steps", []))
    if accepted.status is not None and last.get("status") != accepted.status:
        return f"promised status {accepted.status}, got {last.get('status')}"
    text = accepted.text_for(case)
    if text is not None and not _contains([last.get("json"), last.get("text")], text):
        return f"promised text {text!r} is missing"
    return ""


def _contains(value: Any, text: str) -> bool:
    """Whether some string inside JSON data contains ``text``."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(_contains(item, text) for item in value)
    return isinstance(value, str) and text in value


def _last_response(steps: list[Any]) -> dict[str, Any]:
    answer = steps[-1] if steps else {}
    if isinstance(answer, list):
        answer = answer[-1]
    responses = answer.get("responses") or [{}]
    return dict(responses[-1])


def page() -> str:
    """The text of docs/differences-cases.md."""
    lines = [_HEAD]
    for title, entries in SECTIONS.items():
        lines += [f"## {title}", "", "| why | what stubserve answers | cases |", "|---|---|---|"]
        lines += [_row(entry) for entry in entries]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(entry: Accepted) -> str:
    promise = [str(entry.status)] if entry.status else []
    if entry.text:
        promise.append(f"`{entry.text.strip()}`")
    names = ", ".join(f"`{name}`" for name in entry.cases)
    return f"| {entry.reason} | {' '.join(promise)} | {names} |"

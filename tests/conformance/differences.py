"""The accepted differences between stubserve and the real Triton 2.51 the suite runs beside.

Every entry names one case, says why its answers may differ, and, where a fixed answer is promised instead, pins it:
``status`` and ``text`` are what stubserve's last response must then carry. An entry whose case no longer differs is
an error of its own, so the table cannot outlive its reasons. ``docs/differences.md`` is written from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


@dataclass(frozen=True)
class Accepted:
    reason: str
    status: int | None = None
    text: str | None = None


ACCEPTED: Mapping[str, Accepted] = {}


def broken_promise(accepted: Accepted, outcome: Mapping[str, Any]) -> str:
    """Why ``outcome`` (stubserve's) is not what ``accepted`` promises; empty when it is."""
    last = _last_response(outcome.get("steps", []))
    if accepted.status is not None and last.get("status") != accepted.status:
        return f"promised status {accepted.status}, got {last.get('status')}"
    if accepted.text is not None and accepted.text not in str(last.get("json", last.get("text", ""))):
        return f"promised text {accepted.text!r} is missing"
    return ""


def _last_response(steps: list[Any]) -> dict[str, Any]:
    answer = steps[-1] if steps else {}
    if isinstance(answer, list):
        answer = answer[-1]
    responses = answer.get("responses") or [{}]
    return dict(responses[-1])


def page() -> str:
    """The text of docs/differences.md."""
    lines = [
        "# Known differences",
        "",
        "`make conformance` sends the same requests to real Triton 2.51 and to stubserve. Apart from the cases below,",
        "every answer is the same. This page is written by `python -m tests.conformance --write-differences`.",
        "",
        "| case | why it differs |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {entry.reason.replace('|', chr(92) + '|')} |" for name, entry in sorted(ACCEPTED.items())]
    if not ACCEPTED:
        lines = [*lines[:4], "", "There are none."]
    return "\n".join(lines) + "\n"

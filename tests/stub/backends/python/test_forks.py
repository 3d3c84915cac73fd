"""Requests of processes that a model forks. Each test is a process of its own: what watches forks stays for good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import stubserve_stub

SCRIPT = Path(__file__).parent / "forking.py"


def run(what: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", SCRIPT, what],
        env={"PYTHONPATH": str(Path(stubserve_stub.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_answers() -> None:
    """One response, an error, all of an iterator, and what is too large for any message of the rings."""
    assert run("answers") == [
        "{'OUT': [2, 4, 6]}",
        "('less than nothing', 3)",
        "[{'OUT': [8, 10]}, {'OUT': [8, 10]}]",
        str(99_999 * 100_000),
    ]


def test_a_process_that_a_forked_one_forks() -> None:
    assert run("nested") == ["{'OUT': [14]}", "{'OUT': [16]}"]


def test_the_rings_are_out_of_reach() -> None:
    (text,) = run("refused")
    assert text.startswith("Model instance 'm_0' can do this only in its own process, not in one that it has forked")


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("not_allowed", "BLS is only supported during the 'execute' function."),
        (
            "orphaned",
            "The request to model 'other' cannot be made or was lost: this process was forked by model instance 'm_0', "
            "which has ended or had no file descriptor left.",
        ),
    ],
)
def test_a_request_that_cannot_be_made(what: str, text: str) -> None:
    assert run(what) == [text]

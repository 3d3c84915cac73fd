"""The examples, as a newcomer runs them: served out of the box, asked by their own clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import Serving

REPOSITORY = Path(__file__).parents[2] / "model_repository"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Serving(REPOSITORY) as running:
        yield running


def run_client(server: Serving, model: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / model / "client.py"), "--url", f"127.0.0.1:{server.port}", *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ocr_reads_the_scanned_page(server: Serving) -> None:
    words = run_client(server, "ocr")
    assert "Region-based segmentation" in words
    assert "the markers are found at the two extreme parts of the" in words


def test_add_sub(server: Serving) -> None:
    assert run_client(server, "add_sub")


def test_a_client_without_a_server_says_so() -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "add_sub" / "client.py"), "--url", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stdout + done.stderr

"""The tool that streams many chats at once, with few of them."""

from __future__ import annotations

import subprocess
import sys

from tests.examples import ROOT


def test_it_streams_chats_to_their_ends_and_tells_the_rate() -> None:
    few = ["--servers", "stubserve", "--streams", "20", "--tokens", "5", "--paces", "0.01", "0", "--rounds", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "tools.streams", *few], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in ran.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["10 ms", "stubserve"], ["0 ms", "stubserve"]]
    assert all(float(row[heads.index("tokens/s")]) > 0 for row in rows)

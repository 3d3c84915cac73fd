"""The rows of the bench for chats, with few of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.bench import chats, servers
from tools.bench.servers import Server
from tools.bench.workloads import Subject


@pytest.mark.parametrize("pace_s", [0.01, 0.0])
def test_chats_are_streamed_to_their_ends(tmp_path: Path, pace_s: float) -> None:
    program = servers.stubserve(Path(sys.executable))
    load = chats.Words(20, 5, pace_s)
    subject = Subject(program, Server(program, tmp_path, tmp_path / "log"), tmp_path)
    with subject.stack:
        load.prepare(subject)
        figures = load.measure(subject, 0)
    assert figures[chats.TOKENS] > 0
    assert figures[chats.FIRST_P50] <= figures[chats.FIRST_P99]

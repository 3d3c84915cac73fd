"""The queue before the server's standard output and error."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator

import pytest

from stubserve.observability.output import SOURCE_BYTES, OutputQueue, QueuedStream

F_SETPIPE_SZ = 1031
PIECE = b"x" * 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that holds one page, for reading and writing."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_what_is_written_comes_out_in_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = OutputQueue()
    for number in range(100):
        output.write(writing, b"%03d\n" % number, f"source {number % 3}")
    assert b"".join(os.read(reading, 4) for _ in range(100)) == b"".join(b"%03d\n" % number for number in range(100))
    output.close()


def test_a_source_is_full_alone_and_what_is_dropped_is_said(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    reading, writing = pipe
    output = OutputQueue()
    written = 0
    while not output.is_full("flood"):
        output.write(writing, PIECE, "flood")
        written += len(PIECE)
    assert SOURCE_BYTES < written <= SOURCE_BYTES + 3 * len(PIECE)
    assert not output.is_full("other")
    # Nobody has to wait; this one does not, and loses what is too much.
    for _ in range(1000):
        output.write(writing, PIECE, "flood")
    output.write(writing, b"end", "other")
    logging.getLogger("stubserve.log").propagate = True
    with caplog.at_level(logging.WARNING, "stubserve.log"):
        got = b""
        while not got.endswith(b"end"):
            got += os.read(reading, 1 << 20)
        output.close()
    missing = written + 1000 * len(PIECE) + 3 - len(got)
    assert 0 < missing < 1000 * len(PIECE)
    # On a busy machine the thread may have said it in several lines.
    told = re.findall(r"(\d+) bytes that flood wrote were dropped", caplog.text)
    assert sum(map(int, told)) == missing


def test_where_nothing_moves_nobody_waits(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = pipe
    output = OutputQueue()
    while not output.is_full("flood"):
        output.write(writing, PIECE, "flood")
    monkeypatch.setattr("stubserve.observability.output.STUCK_S", -1.0)
    assert output.is_stuck
    assert not output.is_full("flood")
    while len(os.read(reading, 1 << 20)) == len(PIECE) and output._queue:
        pass


def test_a_log_that_nobody_has_open_any_more_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = OutputQueue()
    output.write(writing, b"lost")
    output.close()
    assert not output.is_stuck
    os.close(writing)


def test_text_goes_the_same_way(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = OutputQueue()
    with open(writing, "w", encoding="ascii", closefd=False) as stream:
        handler = logging.StreamHandler(QueuedStream(stream, output))
        handler.emit(logging.LogRecord("x", logging.INFO, "", 0, "naïve \udcff", (), None))
    assert os.read(reading, 100) == b"na\\xefve \\udcff\n"
    output.close()


def test_what_a_full_disk_does_not_take_is_counted_and_said(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and only when something can be written again."""
    _, writing = pipe
    full = os.open("/dev/full", os.O_WRONLY)
    output = OutputQueue()
    logging.getLogger("stubserve.log").propagate = True
    with caplog.at_level(logging.WARNING, "stubserve.log"):
        for _ in range(3):
            output.write(full, b"one\ntwo\n")
        output.close()
        assert (output.lines_lost, caplog.records) == (6, [])
        output.write(writing, b"goes\n")
        output.write(writing, b"on\n")
        output.close()
    assert caplog.messages == ["6 lines of the log are missing here: No space left on device"]
    os.close(full)

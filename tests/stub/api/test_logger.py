"""Where a model's log lines go."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import pytest
from stubserve_stub.api import logger
from stubserve_stub.api.logger import Logger


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, str, int, str]]]:
    """What a connected logger emits."""
    emitted: list[tuple[int, str, int, str]] = []
    monkeypatch.setattr(logger, "_emit", None)
    monkeypatch.setattr(logger, "_levels", logger._levels)
    logger.connect(lambda *line: emitted.append(line))
    return emitted


def here() -> int:
    return sys._getframe(1).f_lineno


def test_connected(lines: list[tuple[int, str, int, str]]) -> None:
    Logger.log_info("info")
    Logger.log("plain")
    Logger.log_warn(message="warning")
    Logger.log_error(b"error")  # type: ignore[arg-type]
    Logger.log("named", level=Logger.ERROR)
    line = here()
    assert lines == [
        (0, __file__, line - 5, "info"),
        (0, __file__, line - 4, "plain"),
        (1, __file__, line - 3, "warning"),
        (2, __file__, line - 2, "error"),
        (2, __file__, line - 1, "named"),
    ]


def test_bytes_that_are_no_text(lines: list[tuple[int, str, int, str]]) -> None:
    Logger.log_info(b"a\xff")  # type: ignore[arg-type]
    Logger.log(b"\xfe")  # type: ignore[arg-type]
    assert [line[3] for line in lines] == ["a\\xff", "\\xfe"]


def test_levels(lines: list[tuple[int, str, int, str]]) -> None:
    def log_all() -> list[int]:
        lines.clear()
        for level in Logger.LogLevel:
            Logger.log("x", level)
        return [line[0] for line in lines]

    assert log_all() == [0, 1, 2]
    levels = 0b1110
    logger.connect(lambda *line: lines.append(line), lambda: levels)
    assert log_all() == [1, 2, 3]
    levels = 0b1000
    assert log_all() == [3]
    levels = 0
    assert log_all() == []


def test_not_connected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logger, "_emit", None)
    Logger.log_info('ac "quoted"\nnext')
    Logger.log_warn("warn")
    Logger.log_error("error")
    Logger.log_verbose("verbose")
    line = here()
    out, err = capsys.readouterr()
    assert out == ""
    # The form of Triton 2.51 before a model is initialized: two spaces, nothing escaped, verbose lines as I.
    prefix = r"([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} " + str(os.getpid()) + r" test_logger\.py:(\d+)\]  "
    assert re.sub(prefix, r"<\1\2>", err) == (
        f'<I{line - 4}>ac "quoted"\nnext\n<W{line - 3}>warn\n<E{line - 2}>error\n<I{line - 1}>verbose\n'
    )


def test_no_instances() -> None:
    with pytest.raises(TypeError, match="No constructor defined"):
        Logger()

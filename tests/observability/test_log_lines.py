"""The form of the log."""

from __future__ import annotations

import json
import logging
import re

import pytest

from stubserve.observability.logs import DEFAULT, ISO8601, JSON, LogFormatter


def record(message: str, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("stubserve.x", level, "/somewhere/server.py", 117, message, (), None)


def lines(message: str, form: str = DEFAULT, colored: bool = False) -> list[str]:
    formatter = LogFormatter(colored)
    formatter.form = form
    return formatter.format(record(message)).split("\n")


def test_a_line_has_upstreams_form() -> None:
    (line,) = lines('it "is"')
    assert re.fullmatch(r'E\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ server\.py:117\] "it \\"is\\""', line)
    (line,) = lines("it", ISO8601)
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ E \d+ server\.py:117\] "it"', line)


def test_a_line_of_no_file_names_none() -> None:
    logged = logging.LogRecord("stubserve.stub", logging.ERROR, "host.py", 0, "it", (), None)
    assert re.search(r' \d+ stubserve\.stub\] "it"$', LogFormatter().format(logged))


def test_more_lines_follow_below_and_look_like_no_record() -> None:
    first, *rest = lines("failed\u2028\nE1122 server.py:1] faked\n\tfile \x1b[31m\r é\n")
    assert first.endswith('] "failed\\u2028"')
    assert rest == ["    E1122 server.py:1] faked", "    \tfile \\x1b[31m\\r é"]


def test_the_environment_may_want_nothing_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0")
    assert [line.rpartition("] ")[2] for line in lines('a "b"\nc')] == ['a "b"', "c"]


def test_json_is_one_line_whatever_the_message() -> None:
    (line,) = lines('a "b"\nc', JSON)
    fields = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", fields.pop("time"))
    assert fields.pop("pid") > 0
    assert fields == {"level": "error", "place": "server.py:117", "message": 'a "b"\nc'}


def test_on_a_terminal_there_are_colours_and_no_quotes() -> None:
    first, second = lines('a "b"\x1b[31m\nc', colored=True)
    assert first.startswith("\x1b[1;31mE")
    assert first.endswith('] \x1b[0m \x1b[31ma "b"\\x1b[31m'.replace("] ", "]"))
    assert second == "    c\x1b[0m"

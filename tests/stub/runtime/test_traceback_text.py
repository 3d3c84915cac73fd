"""How the log shows an exception of a model."""

from __future__ import annotations

import sys

import pytest
from stubserve_stub.runtime.failure import Refusal, for_log


def raised_by(source: str) -> str:
    try:
        exec(compile(source, "/models/m/1/model.py", "exec"), {"__name__": "model"})
    except BaseException as error:
        return for_log(error)
    raise AssertionError("nothing was raised")


def test_a_traceback_has_lines_of_source() -> None:
    def execute() -> None:
        {}["a"]

    with pytest.raises(KeyError) as caught:
        execute()
    first, *rest = for_log(caught.value).splitlines()
    assert first == "KeyError: 'a'"
    assert rest[0] == "Traceback (most recent call last):"
    assert '{}["a"]' in [line.strip() for line in rest]
    if sys.version_info >= (3, 11):
        assert any(line.strip().startswith("~~^") for line in rest)


def test_the_head_has_the_type_where_the_message_has_several_lines() -> None:
    text = raised_by("raise TypeError('incompatible arguments:\\n\\nInvoked with: 3')")
    assert text.splitlines()[0] == "TypeError: incompatible arguments:"


def test_a_syntax_error_has_its_line_and_a_caret() -> None:
    lines = raised_by("x = 1\nif True x\n").splitlines()
    assert lines[0] == lines[-1]
    assert lines[0].startswith("SyntaxError: ")
    assert '  File "/models/m/1/model.py", line 2' in lines
    assert any(line.strip(" ^") == "" and "^" in line for line in lines)


def test_what_an_exception_comes_from_is_told() -> None:
    text = raised_by("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('x') from error\n")
    assert text.startswith("ValueError: x\n")
    assert "ZeroDivisionError" in text


def test_a_refusal_is_its_words() -> None:
    assert for_log(Refusal("not with me")) == "not with me"


def test_an_exception_without_a_text_of_its_own_is_told_anyhow() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert "Odd" in for_log(Odd())


def test_a_very_long_text_is_cut() -> None:
    text = for_log(ValueError("x" * 100_000))
    assert len(text) < 40_000
    assert "[...]" in text

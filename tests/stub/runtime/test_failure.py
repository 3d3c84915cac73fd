"""The text of a model's exception. The expected texts were seen in answers of Triton 2.51."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.python import model
from stubserve_stub.runtime import failure
from stubserve_stub.runtime.failure import Refusal, describe, format_exception

# A module under the name of the one that calls into models: what is above it belongs to the stub.
_entry = types.ModuleType(model.__name__)
exec("def call(function):\n    return function()\n", _entry.__dict__)


def raised(source: str, **names: Any) -> str:
    """The text for what `boom()` of the source raises, called as a model is."""
    namespace: dict[str, Any] = {"np": np, "Tensor": Tensor, "__name__": "1.model", **names}
    exec(compile(source, "model.py", "exec"), namespace)
    boom: Callable[[], Any] = namespace["boom"]
    with pytest.raises(BaseException) as caught:  # noqa: PT011  whatever it is
        _entry.call(boom)
    return format_exception(caught.value)


HELPER = "def f(): raise ValueError('x')\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (HELPER + "def boom(): f()", "ValueError: x\n\nAt:\n  model.py(1): f\n  model.py(2): boom\n"),
        ("def boom(): raise ValueError('a\\nb')", "ValueError: a\nb\n\nAt:\n  model.py(1): boom\n"),
        ("def boom(): {}['é']", "KeyError: 'é'\n\nAt:\n  model.py(1): boom\n"),
        (
            "def boom(): compile('a b', 'file.py', 'exec')",
            "SyntaxError: invalid syntax (file.py, line 1)\n\nAt:\n  model.py(1): boom\n",
        ),
        ("class E(Exception): pass\ndef boom(): raise E", "E: <EMPTY MESSAGE>\n\nAt:\n  model.py(2): boom\n"),
        (
            "class A:\n  class E(Exception): pass\ndef boom(): raise A.E(1, 2)",
            "E: (1, 2)\n\nAt:\n  model.py(3): boom\n",
        ),
        ("def boom(): raise SystemExit(3)", "SystemExit: 3\n\nAt:\n  model.py(1): boom\n"),
        (
            "def boom():\n  try: 1/0\n  except ZeroDivisionError as e: raise ValueError('outer') from e",
            "ValueError: outer\n\nAt:\n  model.py(3): boom\n",
        ),
        (
            HELPER + "def boom():\n  try: f()\n  except ValueError as e:\n    y = 1\n    raise e",
            "ValueError: x\n\nAt:\n  model.py(1): f\n  model.py(6): boom\n",
        ),
        (
            "class E(Exception):\n  def __str__(self): raise ValueError('bad')\ndef boom(): raise E()",
            "E: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>\n\nAt:\n  model.py(3): boom\n"
            "\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: ValueError: bad\n\nAt:\n  model.py(2): __str__\n",
        ),
        (
            "class E(Exception):\n  def __str__(self): return 5\ndef boom(): raise E()",
            "E: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>\n\nAt:\n  model.py(3): boom\n"
            "\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: TypeError: __str__ returned non-string (type int)",
        ),
        (
            "def boom(): Tensor('', np.zeros(1))",
            "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n  model.py(1): boom\n",
        ),
    ],
)
def test_text(source: str, expected: str) -> None:
    assert raised(source) == expected


def test_stored_exception_shows_where_its_frames_stood_last() -> None:
    source = (
        "def f(): raise ValueError('x')\n"
        "def a():\n"
        "  try: f()\n"
        "  except ValueError as e:\n"
        "    return e\n"
        "def boom():\n"
        "  raise a()\n"
    )
    lines = raised(source).splitlines()
    assert lines[3:] == ["  model.py(1): f", "  model.py(5): a", "  model.py(7): boom"]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="generators keep their callers")
def test_generator_stands_alone() -> None:
    source = "def g():\n  yield 1\n  raise ValueError('gen')\ndef boom(): list(g())"
    assert raised(source) == "ValueError: gen\n\nAt:\n  model.py(3): g\n"


def test_coroutine_stands_alone() -> None:
    source = "async def inner(): raise ValueError('co')\nasync def outer(): await inner()\ndef boom(): run(outer())"
    assert raised(source, run=asyncio.run) == "ValueError: co\n\nAt:\n  model.py(1): inner\n"


def test_frames_of_the_stub_are_left_out() -> None:
    source = (
        "class S:\n"
        "  def __str__(self): raise ValueError('bad')\n"
        "def boom(): Tensor('a', np.array([S()], dtype=object))\n"
    )
    assert raised(source) == "ValueError: bad\n\nAt:\n  model.py(2): __str__\n  model.py(3): boom\n"


def test_frames_of_libraries_are_shown() -> None:
    lines = raised("def boom(): np.linalg.inv(np.zeros((2, 2)))").splitlines()
    assert lines[0] == "LinAlgError: Singular matrix"
    assert lines[3].endswith(": _raise_linalgerror_singular")
    assert lines[-1] == "  model.py(1): boom"


def test_recursion_shows_every_frame() -> None:
    lines = raised("def f(n): f(n + 1)\ndef boom(): f(0)").splitlines()
    assert lines[0].startswith("RecursionError: maximum recursion depth exceeded")
    assert lines[-1] == "  model.py(2): boom"
    assert lines.count("  model.py(1): f") > 500


def test_exception_without_frames() -> None:
    assert format_exception(ValueError("x")) == "ValueError: x"


def test_text_can_be_encoded() -> None:
    assert raised("def boom(): raise ValueError('\\ud800')").startswith("ValueError: \\ud800\n")


def test_exception_whose_text_raises_itself() -> None:
    source = "class E(Exception):\n  def __str__(self): raise self\ndef boom(): raise E()"
    assert raised(source) == (
        "E: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>\n\nAt:\n  model.py(3): boom\n"
        "\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: E"
    )


def test_the_modules_that_call_into_models_are_where_they_are_looked_for() -> None:
    for name in failure._ENTRIES:
        assert importlib.util.find_spec(name) is not None


def test_a_refusal_speaks_for_itself() -> None:
    assert describe(Refusal("not that")) == "not that"
    assert describe(ValueError("x")) == "ValueError: x"


def test_an_exception_whose_text_fails_goes_without_the_garbage_collector() -> None:
    """Its frames have the inputs of its request, which count as held as long as they are there."""

    class Wordless(Exception):
        def __str__(self) -> str:
            raise ValueError("bad")

    def describe() -> weakref.ref[Wordless]:
        try:
            raise Wordless
        except Wordless as wordless:
            format_exception(wordless)
            return weakref.ref(wordless)

    gc.disable()
    try:
        assert describe()() is None
    finally:
        gc.enable()

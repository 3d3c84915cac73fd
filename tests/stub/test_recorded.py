"""The public module answers as upstream's did when it was asked the same."""

from __future__ import annotations

from typing import Any

import c_python_backend_utils
import numpy as np
import pytest
import triton_python_backend_utils

from .recorded import ANSWERS, HELPERS


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found = {"np": np, "pb_utils": triton_python_backend_utils, "c": c_python_backend_utils}
    exec(HELPERS, found)
    return found


def look(expression: str, names: dict[str, Any]) -> str:
    """The answer in the form in which upstream's was recorded."""
    try:
        return repr(eval(expression, names))
    except Exception as error:
        text = str(error).split("\n")[0] if isinstance(error, TypeError) else str(error)
        return f"{type(error).__name__}: {text}"


@pytest.mark.parametrize(("expression", "expected"), ANSWERS, ids=[row[0] for row in ANSWERS])
def test_answers_as_recorded(expression: str, expected: str, names: dict[str, Any]) -> None:
    assert look(expression, names) == expected

"""Errors as a model makes them."""

from __future__ import annotations

import pytest
from stubserve_stub.api.exceptions import TritonError, TritonModelException


def test_error_takes_no_other_arguments() -> None:
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        TritonError(3)  # type: ignore[arg-type]
    with pytest.raises(UnicodeDecodeError):
        TritonError(b"\xff")  # type: ignore[arg-type]
    assert issubclass(TritonModelException, Exception)

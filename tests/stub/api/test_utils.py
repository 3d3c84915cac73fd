"""Helpers beyond what test_recorded.py compares with upstream."""

from __future__ import annotations

import numpy as np
import pytest
from stubserve_stub.api import utils
from stubserve_stub.api.exceptions import TritonModelException


def test_malformed_blob() -> None:
    with pytest.raises(TritonModelException, match="Invalid bytes tensor data: incomplete length field"):
        utils.deserialize_bytes_tensor(b"\1\0")


def test_deserialized_array_is_writable() -> None:
    array = utils.deserialize_bytes_tensor(b"\1\0\0\0a")
    array[0] = b"b"
    assert array.tolist() == [b"b"]


def test_serialize_large() -> None:
    elements = [b"x" * 1000, b"y"]
    assert utils.deserialize_bytes_tensor(utils.serialize_byte_tensor(np.array(elements))).tolist() == elements


def test_model_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "_model_dir", "")
    utils.set_model_dir("/models/m/1")
    assert utils.get_model_dir() == "/models/m/1"

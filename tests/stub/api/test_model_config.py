"""ModelConfig beyond what test_recorded.py compares with upstream."""

from __future__ import annotations

import json

import pytest
from stubserve_stub.api.model_config import ModelConfig


def test_extra_keys_persist() -> None:
    config = ModelConfig('{"name": "M", "max_batch_size": 0, "input": [], "output": []}')
    config.as_dict()["mine"] = {"a": 1}
    config.add_output({"name": "o", "data_type": "TYPE_FP32", "dims": [-1]})
    assert json.loads(config._to_json()) == {
        "name": "M",
        "max_batch_size": 0,
        "input": [],
        "output": [{"name": "o", "data_type": "TYPE_FP32", "dims": [-1]}],
        "mine": {"a": 1},
    }


def test_a_nameless_tensor_with_unknown_properties() -> None:
    config = ModelConfig('{"name": "M", "input": []}')
    with pytest.raises(ValueError, match=r"^input '' in auto-complete-config function for model 'M' contains property"):
        config.add_input({"data_type": "TYPE_FP32", "dims": [1], "label_filename": "x"})


def test_malformed_text() -> None:
    with pytest.raises(json.JSONDecodeError):
        ModelConfig("{")

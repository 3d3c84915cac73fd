"""What the llamacpp backend reads of a configuration, and its file; without llama.cpp."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from stubserve_stub.backends.llamacpp import backend, options
from stubserve_stub.runtime.failure import Refusal


def config(**parameters: str) -> dict[str, Any]:
    return {"name": "m", "parameters": {name: {"string_value": value} for name, value in parameters.items()}}


def test_parameters() -> None:
    read = options.options_of(config(n_ctx="512", lora="a.gguf, b.gguf:0.5", n_parallel="3", EXECUTE_TIMEOUT_SECS="1"))
    assert (read.numbers, read.slots, read.threads) == ({"n_ctx": 512}, 3, 0)
    assert read.lora == [("a.gguf", 1.0), ("b.gguf", 0.5)]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ctx", "1", "parameter 'ctx' of model 'm' is none of the llamacpp backend, which has chat_template, "),
        ("n_ctx", "many", "parameter 'n_ctx' of model 'm' must be an integer from 0 on, got 'many'"),
        ("lora", "a.gguf:much", "a scale behind a colon if that is not 1, got 'a.gguf:much'"),
        ("pooling", "max", "must be none or mean or cls or last or rank, got 'max'"),
    ],
)
def test_parameters_that_mean_nothing(name: str, value: str, text: str) -> None:
    with pytest.raises(Refusal, match=re.escape(text)):
        options.options_of(config(**{name: value}))


def test_a_configuration_is_completed() -> None:
    speaking, embedding = config(), config(embedding="1")
    for one in speaking, embedding:
        options.complete(one)
        options.validate(one)
    assert speaking["model_transaction_policy"] == {"decoupled": True}
    assert [one["name"] for one in (*speaking["input"], *speaking["output"])] == ["openai_request", "openai_response"]
    assert (embedding["max_batch_size"], embedding["dynamic_batching"]) == (32, {})
    assert [one["name"] for one in (*embedding["input"], *embedding["output"])] == ["text_input", "embedding"]
    with pytest.raises(Refusal, match="the input of the llamacpp backend is 'text_input' of TYPE_STRING, got 'openai_"):
        options.validate({**embedding, "input": speaking["input"]})
    with pytest.raises(Refusal, match="max_batch_size must be 0, got 4"):
        options.validate({**speaking, "max_batch_size": 4})


@pytest.mark.parametrize("text", [b"x", b"[]", b'{"a":' * 100_000, b"\xff"])
def test_requests_that_are_no_object(text: bytes) -> None:
    with pytest.raises(Refusal, match="input 'openai_request' must be one JSON object"):
        backend._body([text])


@pytest.mark.parametrize(("n", "several"), [(2, True), (2.5, True), (1, False), ("x", False), ({}, False), (-1, False)])
def test_choices_are_the_engines_to_refuse(n: Any, several: bool) -> None:
    assert backend._Usage({"n": n}).several == several


def test_its_file(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=re.escape(f"unable to find '{tmp_path}/model.gguf' for model 'm': No such file")):
        options.find_file(str(tmp_path), config())
    (tmp_path / "other.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(Refusal, match="is no GGUF file; it is a pointer of Git LFS"):
        options.find_file(str(tmp_path), {**config(), "default_model_filename": "other.gguf"})
    (tmp_path / "model.gguf").write_bytes(b"GGUF\3\0\0\0")
    assert options.find_file(str(tmp_path), config()) == str(tmp_path / "model.gguf")

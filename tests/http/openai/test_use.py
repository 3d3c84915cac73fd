"""Which of OpenAI's routes a model serves, by its tensors and by the parameter OPENAI_ROUTES."""

from __future__ import annotations

from pathlib import Path

import pytest

from stubserve.checking.repository import check_repositories
from stubserve.errors import Code, ServeError
from stubserve.http.openai.use import OpenAiUse, openai_use
from stubserve.model_config.parse import parse_text
from tests.real_server import write_model

TEXT = ("text_input STRING", "text_output STRING")
EMBEDDING = ("TEXT STRING", "EMBEDDING FP32")


def config(inputs: str, outputs: str, routes: str | None = None) -> str:
    """Tensors are written as `A STRING, B FP32?`; the question mark makes an input optional."""
    text = ""
    for side, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors.split(","):
            name, datatype = tensor.rstrip("?").split()
            optional = "optional: true" if tensor.endswith("?") else ""
            text += f'{side} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ 1 ] {optional} }}\n'
    if routes is not None:
        text += f'parameters {{ key: "OPENAI_ROUTES" value {{ string_value: "{routes}" }} }}\n'
    return f'name: "m"\nbackend: "python"\n{text}'


def use(inputs: str, outputs: str, routes: str | None = None) -> OpenAiUse:
    return openai_use(parse_text(config(inputs, outputs, routes), "config.pbtxt"))


@pytest.mark.parametrize(
    ("inputs", "outputs", "chat", "completions", "embeddings"),
    [
        (*TEXT, "", "text_input", ""),
        ("text_input STRING, max_tokens INT32?", "text_output STRING", "", "text_input", ""),
        ("messages STRING", "text_output STRING", "messages", "", ""),
        ("messages STRING?, text_input STRING?", "text_output STRING", "messages", "text_input", ""),
        ("openai_request STRING", "text_output STRING", "openai_request", "openai_request", ""),
        ("openai_request STRING", "openai_response STRING", "openai_request", "openai_request", ""),
        ("messages STRING", "openai_response STRING", "messages", "", ""),
        ("messages INT32", "text_output STRING", "", "", ""),
        ("text_input STRING", "text_output FP32", "", "", ""),
        (*EMBEDDING, "", "", "TEXT"),
        ("TEXT STRING, size INT32?", "sentence_embedding FP16", "", "", "TEXT"),
        ("TEXT STRING, more STRING?", "EMBEDDING FP32, LENGTH INT32", "", "", "TEXT"),
        ("TEXT STRING, size INT32", "EMBEDDING FP32", "", "", ""),
        ("A STRING, B STRING", "EMBEDDING FP32", "", "", ""),
        ("TEXT STRING", "SCORES FP32", "", "", ""),
        ("TEXT STRING", "EMBEDDING FP32, embedding2 FP32", "", "", ""),
        ("A FP32", "B FP32", "", "", ""),
    ],
)
def test_routes_by_names(inputs: str, outputs: str, chat: str, completions: str, embeddings: str) -> None:
    found = use(inputs, outputs)
    assert found[:3] == (chat, completions, embeddings)


def test_the_output_of_objects_goes_before_that_of_text() -> None:
    assert use("messages STRING", "text_output STRING, openai_response STRING").output == "openai_response"
    assert use(*TEXT).output == "text_output"


@pytest.mark.parametrize(
    ("tensors", "routes", "expected"),
    [
        (TEXT, "chat, completions", ("text_input", "text_input", "")),
        (TEXT, "chat", ("text_input", "", "")),
        (TEXT, "none", ("", "", "")),
        (
            ("messages STRING?, text_input STRING?", "text_output STRING"),
            "chat,completions",
            ("messages", "text_input", ""),
        ),
        (("openai_request STRING", "text_output STRING"), " chat ", ("openai_request", "", "")),
        (("TEXT STRING", "SCORES FP32"), "embeddings", ("", "", "TEXT")),
        (EMBEDDING, "none", ("", "", "")),
    ],
)
def test_routes_by_the_parameter(tensors: tuple[str, str], routes: str, expected: tuple[str, str, str]) -> None:
    assert use(*tensors, routes)[:3] == expected


@pytest.mark.parametrize(
    ("tensors", "routes", "why"),
    [
        (TEXT, "chats", "there is no 'chats'; say chat, completions, embeddings, several with commas, or none"),
        (TEXT, "", "say chat, completions, embeddings, several with commas, or none alone"),
        (TEXT, "none, chat", "say chat, completions, embeddings, several with commas, or none alone"),
        (("messages STRING", "text_output STRING"), "completions", "'completions' needs an input 'text_input' or"),
        (("TEXT STRING", "OUT STRING"), "chat", "'chat' needs an input 'messages', 'openai_request' or 'text_input'"),
        (TEXT, "embeddings", "'embeddings' needs one input of TYPE_STRING"),
    ],
)
def test_a_wrong_parameter(tensors: tuple[str, str], routes: str, why: str) -> None:
    with pytest.raises(ServeError) as raised:
        use(*tensors, routes)
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.path == ("parameters", "OPENAI_ROUTES")
    assert raised.value.message.startswith(f"parameter OPENAI_ROUTES of model 'm': {why}")


def test_check_tells_a_wrong_parameter(tmp_path: Path) -> None:
    write_model(tmp_path, "m", config=config(*TEXT, "chats"))
    write_model(tmp_path, "good", config=config(*TEXT, "chat").replace('"m"', '"good"'))
    (problem,) = check_repositories([tmp_path], Path("/nowhere")).problems
    assert problem.file == tmp_path / "m" / "config.pbtxt"
    assert problem.line == 5
    assert not problem.is_warning
    assert problem.text.startswith("parameter OPENAI_ROUTES of model 'm': there is no 'chats'")


def test_check_waits_for_tensors_that_a_model_completes(tmp_path: Path) -> None:
    source = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                return config

            def execute(self, requests):
                return []
    """
    write_model(tmp_path, "m", source, config(*TEXT, "embeddings"))
    assert check_repositories([tmp_path], Path("/nowhere")).problems == ()

"""`--openai-port`: OpenAI's routes as Triton's own front end for them answers, and chats of models with a template."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real_server import PATIENCE_S, Answer, Serving
from tests.server.openai_models import text_input, write_models, write_words

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEMPLATE = """{{ bos_token }}{% for message in messages %}
{% if message.role == "bad" %}{{ raise_exception("no such role") }}{% endif %}
<{{ message.role }}>{{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}
{% endfor %}
{% if tools %}{{ tools[0].function.name }}{% endif %}
{% if add_generation_prompt %}<assistant>{% endif %}"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_models(repository)
    text = text_input("text_input") + text_input("stop_words", dims="1, -1", optional=True)
    folder = write_words(repository, "templated", text, text="text_input")
    config = {"bos_token": {"content": "show "}, "chat_template": TEMPLATE, "added_tokens_decoder": {}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    twice = write_words(repository, "twice", text_input("text_input"))
    (twice / "chat_template.jinja").write_text("{{ messages[0].content * 2 }}")
    broken = write_words(repository, "broken", text_input("text_input"))
    (broken / "chat_template.jinja").write_text("{% if %}")
    unread = write_words(repository, "unread", text_input("text_input"))
    (unread / "1" / "tokenizer_config.json").write_text("{")
    restricted = ["--openai-restricted-api", "model-repository", "admin-key", "admin-value"]
    explicit = ["--model-control-mode=explicit", "--load-model=words", "--load-model=chat", "--load-model=single"]
    explicit += ["--load-model=templated", "--load-model=broken", "--load-model=unread", "--load-model=twice"]
    with Serving(repository, "--openai-port=0", "--http-max-input-size=100000", *restricted, *explicit) as server:
        server.wait_until_ready()
        yield server


def ask(serving: Serving, method: str, path: str, body: Any = None, key: str = "admin-value") -> Answer:
    port = int(serving.wait_for(r"Started OpenAI HTTPService at [^ \n]*:(\d+)")[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Admin-Key": key})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def detail(answer: Answer) -> tuple[int, Any]:
    document = answer.json()
    assert list(document) == ["detail", "error"]
    return answer.status, document["detail"]


def names(serving: Serving) -> list[str]:
    answer = ask(serving, "GET", "/v1/models").json()
    assert all(row["owned_by"] == "Triton Inference Server" for row in answer["data"])
    return [row["id"] for row in answer["data"]]


def chat(serving: Serving, *messages: dict[str, Any], model: str = "templated", **more: Any) -> Answer:
    return ask(serving, "POST", CHAT, {"model": model, "messages": list(messages), **more})


def shown(answer: Answer) -> Any:
    assert answer.status == 200, answer
    return json.loads(answer.json()["choices"][0]["message"]["content"])


def test_health_and_metrics(serving: Serving) -> None:
    assert ask(serving, "GET", "/health/ready").status == 200
    answer = ask(serving, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert b"nv_inference_request_success" in answer.body


def test_metrics_stay_at_their_own_address(tmp_path: Path) -> None:
    write_words(tmp_path, "words", text_input("text_input"))
    with Serving(tmp_path, "--openai", "--openai-port=0", "--metrics-address=127.0.0.2") as server:
        server.wait_until_ready()
        assert server.get("/metrics").status == 404
        assert ask(server, "GET", "/metrics").status == 404


def test_loads_and_unloads(serving: Serving) -> None:
    assert "hidden" not in names(serving)
    loaded = ask(serving, "POST", "/v1/models/hidden/load")
    assert (loaded.status, loaded.json()["id"]) == (200, "hidden")
    assert "hidden" in names(serving)
    assert detail(ask(serving, "POST", "/v1/models/hidden/load")) == (400, "Model 'hidden' is already loaded")
    unloaded = ask(serving, "POST", "/v1/models/hidden/unload")
    assert unloaded.json() == {"status": "success", "model": "hidden"}
    assert detail(ask(serving, "POST", "/v1/models/hidden/unload")) == (400, "Unknown model: hidden")
    assert ask(serving, "GET", "/v1/models/hidden").status == 404
    status, text = detail(ask(serving, "POST", "/v1/models/nosuch/load"))
    assert status == 500
    assert "failed to poll from model repository" in text
    assert detail(ask(serving, "POST", "/v1/models/../load"))[0] == 400


def test_loads_need_explicit_control(tmp_path: Path) -> None:
    write_words(tmp_path, "words", text_input("text_input"))
    with Serving(tmp_path, "--openai") as server:
        server.wait_until_ready()
        error = server.request("POST", "/v1/models/words/load").json()["error"]
        assert error["message"] == "Model load/unload requires --model-control-mode=explicit"
        assert server.get("/health/ready").status == 200


def test_restricted_routes(serving: Serving) -> None:
    for method, path in ("GET", "/v1/models"), ("GET", "/v1/models/words"), ("POST", "/v1/models/words/unload"):
        assert detail(ask(serving, method, path, key="no"))[0] == 401
    # The port serves the other routes of HTTP, too, by the same rules.
    assert ask(serving, "POST", "/v2/repository/index", {}, key="no").status == 403
    body = {"model": "words", "prompt": "a"}
    assert ask(serving, "POST", COMPLETIONS, body, key="no").status == 200


@pytest.mark.parametrize(
    ("more", "status", "expected"),
    [
        ({"temperature": 2.5}, 422, "Input should be less than or equal to 2.0"),
        ({"max_tokens": -1}, 422, "Input should be greater than or equal to 1"),
        ({"messages": []}, 422, "List should have at least 1 item after validation, not 0"),
        ({"messages": [{}]}, 422, "Field required"),
        ({"model": 5}, 422, "Input should be a valid string"),
        ({"ignore_eos": 123}, 422, "'ignore_eos': expected `bool | null`, got `int`"),
        ({"tool_choice": "x - at `$.y"}, 422, "'tool_choice': invalid enum value 'x - at `$.y'"),
        ({"top_logprobs": 2}, 400, "`top_logprobs` can only be used when `logprobs` is True"),
        ({"model": "nosuch"}, 400, "Request for unknown model: 'nosuch' is not found"),
    ],
)
def test_what_is_wrong_stands_in_detail(serving: Serving, more: Any, status: int, expected: str) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "a"}], **more}
    found, told = detail(ask(serving, "POST", CHAT, body))
    assert found == status
    assert (told[0]["msg"] if status == 422 else told) == expected


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/models/words/load"])
def test_a_body_that_is_too_large(serving: Serving, path: str) -> None:
    answer = ask(serving, "POST", path, "x" * 100_000)
    assert answer.status == 413
    assert answer.json()["error"] == {
        "message": "Request size of 100002 bytes exceeds the maximum allowed input size of 100000 bytes. "
        "Use --http-max-input-size to increase the limit.",
        "type": "invalid_request_error",
        "param": None,
        "code": "content_too_large",
    }


def test_a_chat_is_rendered_by_the_template_of_the_model(serving: Serving) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    given = shown(chat(serving, *messages, tools=tools, stop=["x", "y"]))["inputs"]
    assert given["text_input"].split("\n") == [
        "show <user>one",
        'two<assistant>[{"type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}]f<assistant>',
    ]
    assert given["stop_words"] == ["x", "y"]


def test_a_chat_that_its_template_makes_too_large(serving: Serving) -> None:
    answer = chat(serving, {"role": "user", "content": "x" * 60_000}, model="twice")
    assert answer.status == 413
    assert answer.json()["error"]["message"] == (
        "a chat for model 'twice', rendered by its template, of 120000 bytes exceeds the maximum allowed input size of "
        "100000 bytes. Use --http-max-input-size to increase the limit."
    )


def test_what_a_template_refuses(serving: Serving) -> None:
    status, text = detail(chat(serving, {"role": "bad", "content": "a"}))
    assert (status, text) == (400, "the chat template of model 'templated' does not take these messages: no such role")
    status, text = detail(chat(serving, {"role": "user", "content": "a"}, model="broken"))
    assert status == 500
    assert "the chat template of model 'broken' is wrong" in text
    serving.wait_for(r"model 'unread': no chat template is taken from \S+/unread/1: ")
    status, text = detail(chat(serving, {"role": "user", "content": "a"}, model="unread"))
    assert status == 400
    assert "a tokenizer with a chat template in its folder" in text

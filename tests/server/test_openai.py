"""OpenAI's routes (`--openai`), talked to with raw HTTP: forms of answers and errors, streams, and how they end."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_server import PATIENCE_S, Answer, Serving, eventually
from tests.server.openai_models import write_models, write_objects, write_words

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TEXT_INPUT = 'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
NAMED = {"type": "function", "function": {"name": "f"}}
TIMES = ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
PENDING = 'nv_inference_pending_request_count{model="words",version="1"}'
NO_CHAT = (
    "model 'words' does not serve chat: it takes a plain text; give it an input 'messages' or 'openai_request', or a "
    "tokenizer with a chat template in its folder, or set its parameter OPENAI_ROUTES to 'chat,completions' to have "
    "the messages joined as '<role>: <text>'"
)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    with Serving(repository, "--openai", "--access-log") as server:
        server.wait_until_ready()
        yield server


def ask(serving: Serving, path: str, body: Any, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return serving.request("POST", path, data, {name.replace("_", "-"): value for name, value in headers.items()})


def completion(serving: Serving, prompt: Any, model: str = "words", **more: Any) -> Any:
    answer = ask(serving, COMPLETIONS, {"model": model, "prompt": prompt, **more})
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def texts(answer: Any) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def streamed(answer: Answer) -> list[Any]:
    """The events of a stream that has ended well."""
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, nothing = answer.body.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


def refusal(answer: Answer, status: int = 400, kind: str = "invalid_request_error") -> tuple[str, Any, Any]:
    """(message, param, code) of an error."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    (error,) = answer.json().values()
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == kind
    return error["message"], error["param"], error["code"]


# Completions


def test_a_completion(serving: Serving) -> None:
    answer = completion(serving, "one two three")
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "text_completion",
        "model": "words",
        "choices": [{"index": 0, "text": "one two three", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
    }


def test_a_streamed_completion(serving: Serving) -> None:
    body = {"model": "words", "prompt": "one two three", "stream": True, "max_tokens": 2}
    events = streamed(ask(serving, COMPLETIONS, body))
    common = {name: events[0][name] for name in ("id", "created")}
    assert events == [
        {
            **common,
            "object": "text_completion",
            "model": "words",
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
        }
        for text, reason in (("one", None), (" two", None), ("", "length"))
    ]
    with_usage = streamed(ask(serving, COMPLETIONS, {**body, "stream_options": {"include_usage": True}}))
    assert [event["usage"] for event in with_usage] == [
        *[None] * 3,
        {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    ]
    assert with_usage[-1]["choices"] == []


def test_choices_and_prompts(serving: Serving) -> None:
    answer = completion(serving, ["a b", "c"], n=2)
    assert texts(answer) == ["a b", "a b", "c", "c"]
    # A prompt counts once, an answer as often as there is one.
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    assert texts(completion(serving, ["a b", "c"], echo=True)) == ["a ba b", "cc"]
    events = streamed(ask(serving, COMPLETIONS, {"model": "words", "prompt": ["a b", "c"], "n": 2, "stream": True}))
    together = ["", "", "", ""]
    reasons = [None] * 4
    for event in events:
        (choice,) = event["choices"]
        together[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert (together, reasons) == (["a b", "a b", "c", "c"], ["stop"] * 4)


def test_members_reach_the_model(serving: Serving) -> None:
    """As inputs where it has them, else as parameters; what is a list or an object as JSON. Null is nothing."""
    answer = completion(
        serving, "show", temperature=1, top_p=None, top_k=4, logit_bias={"1": 2}, seed=7, n=2, user="me", max_tokens=3
    )
    seen = [json.loads(text) for text in texts(answer)]
    assert [one["inputs"] for one in seen] == [
        {"text_input": "show", "stream": False, "max_tokens": 3, "temperature": 1.0}
    ] * 2
    assert [one["parameters"] for one in seen] == [
        {"id": answer["id"], "top_k": 4, "logit_bias": '{"1":2}', "seed": seed, "user": "me"} for seed in (7, 8)
    ]


def test_models_as_those_of_vllm(serving: Serving) -> None:
    answer = completion(serving, "show", "vllm", temperature=1, top_k=4, stop=["x"], seed=7, n=2, user="me")
    inputs = [json.loads(text)["inputs"] for text in texts(answer)]
    sampling = [json.loads(one.pop("sampling_parameters")) for one in inputs]
    assert sampling == [{"temperature": 1, "top_k": 4, "stop": ["x"], "seed": seed} for seed in (7, 8)]
    names = ("exclude_input_in_output", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
    assert inputs == [{"text_input": "show", "stream": False, **dict.fromkeys(names, True)}] * 2


def test_stop_where_the_model_knows_none(serving: Serving) -> None:
    """The text ends before it, also where it comes in pieces, and the model need not go on."""
    (choice,) = completion(serving, "wait", stop=["nothing", "n on on"])["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("o", "stop")
    events = streamed(
        ask(serving, COMPLETIONS, {"model": "words", "prompt": "wait", "stop": "n on on", "stream": True})
    )
    assert "".join(event["choices"][0]["text"] for event in events) == "o"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    # What might have begun one is there in the end.
    assert texts(completion(serving, "one two", stop=["two three"])) == ["one two"]


def test_stop_where_the_model_has_an_input_for_it(serving: Serving) -> None:
    for stop, seen in ("x", "x"), (["x", "y"], ["x", "y"]):
        (text,) = texts(completion(serving, "show", "stops", stop=stop))
        assert json.loads(text)["inputs"] == {"text_input": "show", "stop": seen}


def test_characters_in_pieces(serving: Serving) -> None:
    assert texts(completion(serving, "bytes")) == ["é€"]
    events = streamed(ask(serving, COMPLETIONS, {"model": "words", "prompt": "bytes", "stream": True}))
    assert [event["choices"][0]["text"] for event in events] == ["é", "€", ""]


def test_no_usage_where_the_model_tells_none(serving: Serving) -> None:
    assert completion(serving, "bytes")["usage"] is None
    body = {"model": "words", "prompt": "bytes", "stream": True, "stream_options": {"include_usage": True}}
    assert streamed(ask(serving, COMPLETIONS, body))[-1]["usage"] is None


def test_large_texts(serving: Serving) -> None:
    """A body that another process reads, and responses whose JSON is made in steps."""
    text = "é: " * 200_000
    assert texts(completion(serving, text, "whole")) == [text]
    assert texts(completion(serving, "large")) == ["é" * 1_200_000]
    events = streamed(ask(serving, COMPLETIONS, {"model": "words", "prompt": "large", "stream": True}))
    assert "".join(event["choices"][0]["text"] for event in events) == "é" * 1_200_000
    answer = ask(serving, COMPLETIONS, {"model": "whole", "prompt": text, "n": 0})
    assert refusal(answer) == ("'n': expected `int` >= 1", "n", None)
    message, param, code = refusal(ask(serving, COMPLETIONS, {"model": "whole", "prompt": text, "n": 128}), 413)
    assert "exceeds the maximum allowed input size" in message
    assert (param, code) == ("n", "content_too_large")


def test_a_model_that_is_not_decoupled(serving: Serving) -> None:
    assert texts(completion(serving, "all of it", "whole")) == ["all of it"]
    events = streamed(ask(serving, COMPLETIONS, {"model": "whole", "prompt": "all of it", "stream": True}))
    assert [event["choices"][0]["text"] for event in events] == ["all of it", ""]


# Chats


def test_a_chat(serving: Serving) -> None:
    messages = [{"role": "system", "content": "be brief"}, *user([{"type": "text", "text": "hello"}, {"type": "x"}])]
    answer = ask(serving, CHAT, {"model": "chat", "messages": messages}).json()
    assert answer.pop("id").startswith("chatcmpl-")
    (choice,) = answer.pop("choices")
    assert json.loads(choice["message"].pop("content")) == messages
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert (answer["object"], answer["model"]) == ("chat.completion", "chat")


def test_a_streamed_chat(serving: Serving) -> None:
    events = streamed(ask(serving, CHAT, {"model": "joined", "messages": user("a b"), "stream": True}))
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    choices = [event["choices"][0] for event in events]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        *({"content": text} for text in ("user:", " a", " b", " assistant:")),
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [*[None] * 5, "stop"]


def test_messages_are_joined_only_where_the_model_says_so(serving: Serving) -> None:
    messages = [{"role": "system", "content": "be brief"}, *user([{"type": "text", "text": "a"}])]
    answer = ask(serving, CHAT, {"model": "joined", "messages": messages}).json()
    assert answer["choices"][0]["message"]["content"] == "system: be brief user: a assistant:"
    messages = user([{"type": "image_url", "image_url": {"url": "data:"}}])
    message, param, _ = refusal(ask(serving, CHAT, {"model": "joined", "messages": messages}))
    assert param == "messages[0].content[0]"
    assert message.startswith("'messages[0].content[0]' is no text, and model 'joined' gets the messages as text")
    assert refusal(ask(serving, CHAT, {"model": "words", "messages": user("a")})) == (NO_CHAT, "model", None)


# Models that make the objects themselves

CALL = [
    {"choices": [{"delta": {"role": "assistant", "tool_calls": [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a'}}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]}}]},
    {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
]  # fmt: skip


def test_a_model_gets_the_whole_body(serving: Serving) -> None:
    body = {
        "model": "objects",
        "messages": user("show"),
        "n": 2,
        "tools": [{"type": "function"}],
        "metadata": {"a": "b"},
    }
    answer = ask(serving, CHAT, body).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == body
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_pieces_become_an_answer(serving: Serving) -> None:
    answer = ask(serving, CHAT, {"model": "objects", "messages": user(json.dumps(CALL))}).json()
    (choice,) = answer["choices"]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert choice["message"] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert choice["finish_reason"] == "tool_calls"
    assert answer["usage"] == CALL[-1]["usage"]
    pieces = [{"choices": [{"index": at % 2, "text": str(at)}], "system_fingerprint": "fp"} for at in range(6)]
    answer = completion(serving, json.dumps(pieces), "objects")
    assert sorted(texts(answer)) == ["024", "135"]
    assert answer["system_fingerprint"] == "fp"


def test_pieces_become_events(serving: Serving) -> None:
    body = {"model": "objects", "messages": user(json.dumps(CALL)), "stream": True}
    events = streamed(ask(serving, CHAT, body))
    assert [event["choices"][0]["delta"] for event in events] == [piece["choices"][0]["delta"] for piece in CALL[:3]]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    events = streamed(ask(serving, CHAT, {**body, "stream_options": {"include_usage": True}}))
    assert [event["usage"] for event in events] == [None, None, None, CALL[-1]["usage"]]


def test_an_answer_becomes_an_event(serving: Serving) -> None:
    message = {"role": "assistant", "content": "hi"}
    body = {"model": "objects", "messages": user(json.dumps([{"choices": [{"message": message}]}])), "stream": True}
    (event,) = streamed(ask(serving, CHAT, body))
    assert event["choices"] == [{"index": 0, "delta": message, "finish_reason": None}]


@pytest.mark.parametrize(
    "piece",
    [
        *("{", "3", '{"choices":3}', '{"choices":[3]}', '{"choices":[{"delta":3}]}'),
        '{"choices":[{"delta":{"tool_calls":[3]}}]}',
    ],
)
def test_what_is_no_object_is_an_error(serving: Serving, piece: str) -> None:
    for stream in (False, True):
        body = {"model": "objects", "messages": user(json.dumps([piece])), "stream": stream}
        message, _, _ = refusal(ask(serving, CHAT, body), 500, "server_error")
        assert message.startswith("model 'objects'")


# Embeddings


def test_embeddings(serving: Serving) -> None:
    answer = ask(serving, EMBEDDINGS, {"model": "rows", "input": ["a", "bb", "ccc", "dddd", "e"]}).json()
    rows = [[1.0, 4.0, 0.5], [2.0, 4.0, 0.5], [3.0, 4.0, 0.5], [4.0, 4.0, 0.5], [1.0, 1.0, 0.5]]
    assert answer == {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": "rows",
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


@pytest.mark.parametrize("model", ["rows", "single"])
def test_embeddings_in_base64(serving: Serving, model: str) -> None:
    body = {"model": model, "input": ["word" * length for length in range(100)], "encoding_format": "base64"}
    data = ask(serving, EMBEDDINGS, body).json()["data"]
    found = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() for one in data]
    assert [row[0] for row in found] == [4.0 * length for length in range(100)]


def test_dimensions_that_the_model_does_not_have(serving: Serving) -> None:
    assert ask(serving, EMBEDDINGS, {"model": "single", "input": "a", "dimensions": 3}).status == 200
    answer = ask(serving, EMBEDDINGS, {"model": "single", "input": "a", "dimensions": 5})
    assert refusal(answer) == ("model 'single' makes embeddings of 3 numbers, not of 5", "dimensions", None)


# Errors


NOT_JSON = "the body of the request is not valid JSON"


@pytest.mark.parametrize(
    ("path", "body", "message", "param"),
    [
        (CHAT, b"{", f"{NOT_JSON}: unexpected end of data: line 1 column 2 (char 1)", None),
        (CHAT, [], "the body of the request must be a JSON object", None),
        (CHAT, {}, "'model' is missing", "model"),
        (CHAT, {"model": 3}, "'model': expected `str`, got `int`", "model"),
        (CHAT, {"model": "chat"}, "'messages' is missing", "messages"),
        (CHAT, {"model": "chat", "messages": []}, "'messages': expected `array` of length >= 1", "messages"),
        (CHAT, {"model": "chat", "messages": [{"content": "a"}]}, "'messages[0].role' is missing", "messages[0].role"),
        (CHAT, {"model": "chat", "messages": user("a"), "n": 129}, "'n': expected `int` <= 128", "n"),
        (CHAT, {"model": "chat", "messages": user("a"), "temperature": "hot"},
         "'temperature': expected `float | null`, got `str`", "temperature"),
        (CHAT, {"model": "chat", "messages": user("a"), "top_p": 2}, "'top_p': expected `float` <= 1.0", "top_p"),
        (CHAT, {"model": "chat", "messages": user("a"), "stream_options": {}},
         "`stream_options` can only be used when `stream` is True", "stream_options"),
        (CHAT, {"model": "chat", "messages": user("a"), "top_logprobs": 2},
         "`top_logprobs` can only be used when `logprobs` is True", "top_logprobs"),
        (CHAT, {"model": "chat", "messages": user("a"), "tool_choice": "required", "tools": []},
         "`tool_choice` is 'required', and there are no `tools`", "tool_choice"),
        (CHAT, {"model": "chat", "messages": user("a"), "tool_choice": "any"},
         "'tool_choice': invalid enum value 'any'", "tool_choice"),
        (CHAT, {"model": "chat", "messages": user("a"), "tool_choice": NAMED, "tools": [{**NAMED, "function": {}}]},
         "'tools[0].function.name' is missing", "tools[0].function.name"),
        (CHAT, {"model": "chat", "messages": user("a"), "tool_choice": NAMED,
                "tools": [{"type": "function", "function": {"name": "g"}}]},
         "`tool_choice` names a function that is not among the `tools`: f", "tool_choice"),
        (COMPLETIONS, {"model": "words", "prompt": "a", "min_tokens": -1},
         "'min_tokens': expected `int` >= 0", "min_tokens"),
        (COMPLETIONS, {"model": "words", "prompt": "a", "ignore_eos": 123},
         "'ignore_eos': expected `bool | null`, got `int`", "ignore_eos"),
        (COMPLETIONS, {"model": "words", "prompt": "a", "logprobs": 1}, "model 'words' gives no logprobs", "logprobs"),
        (CHAT, {"model": "chat", "messages": user("a"), "id": "x"}, "a request to this route has no member 'id'", "id"),
        (COMPLETIONS, {"model": "words", "prompt": [1, 2]},
         "'prompt' must be a text or a list of texts; numbers of tokens are not taken", "prompt"),
        (COMPLETIONS, {"model": "words", "prompt": []}, "'prompt' must not be an empty list", "prompt"),
        (COMPLETIONS, {"model": "words", "prompt": ["a"] * 65, "n": 2},
         "prompts times 'n' must be at most 128, got 130", "n"),
        (COMPLETIONS, {"model": "words", "prompt": "a", "stop": ["a"] * 5},
         "'stop': expected `array` of length <= 4", "stop"),
        (COMPLETIONS, {"model": "words", "prompt": "a", "stop": ["a" * 257]},
         "'stop[0]': expected `str` of length <= 256", "stop[0]"),
        (COMPLETIONS, {"model": "words", "prompt": "a", "extra": json.loads("[" * 300 + "]" * 300)},
         "'extra' is nested too deeply", "extra"),
        (COMPLETIONS, {"model": "hidden", "prompt": "a"},
         "model 'hidden' does not serve completions: it serves none of these routes", "model"),
        (EMBEDDINGS, {"model": "words", "input": "a"},
         "model 'words' does not serve embeddings: it serves completions", "model"),
        (EMBEDDINGS, {"model": "rows", "input": "a", "encoding_format": "x"},
         "'encoding_format': invalid enum value 'x'", "encoding_format"),
    ],
)  # fmt: skip
def test_refusals(serving: Serving, path: str, body: Any, message: str, param: str | None) -> None:
    assert refusal(ask(serving, path, body)) == (message, param, None)


def test_what_the_model_cannot_take_is_the_clients_fault(serving: Serving) -> None:
    """Also where `generate` has upstream's 500 for it."""
    answer = ask(serving, COMPLETIONS, {"model": "rows", "prompt": "a"})
    assert "does not serve completions: it serves embeddings" in refusal(answer)[0]
    answer = ask(serving, COMPLETIONS, {"model": "words", "prompt": "a", "max_tokens": 2**31 - 1, "stop": "b"})
    assert answer.status == 200


def test_an_unknown_model(serving: Serving) -> None:
    for path, body in (CHAT, {"messages": user("a")}), (COMPLETIONS, {"prompt": "a"}), (EMBEDDINGS, {"input": "a"}):
        answer = ask(serving, path, {"model": "nosuch", **body})
        text = "Request for unknown model: 'nosuch' is not found"
        assert refusal(answer, 404) == (text, "model", "model_not_found")


def test_other_paths_and_methods(serving: Serving) -> None:
    assert refusal(serving.get("/v1/nosuch"), 404)[0] == "there is no route /v1/nosuch"
    assert refusal(serving.get(CHAT), 405)[0] == "Method Not Allowed"
    answer = ask(serving, COMPLETIONS, {"model": "words", "prompt": "a"}, content_encoding="gzip")
    assert refusal(answer)[0] == "Unsupported content-encoding, only 'identity' is supported."


def test_errors_of_the_model(serving: Serving) -> None:
    for stream in (False, True):
        answer = ask(serving, COMPLETIONS, {"model": "words", "prompt": "fail", "stream": stream})
        assert refusal(answer) == ("no more", None, None)
    assert refusal(ask(serving, COMPLETIONS, {"model": "words", "prompt": "fail a b"}))[0] == "no more"
    answer = ask(serving, COMPLETIONS, {"model": "words", "prompt": ["fail a b", "wait"], "stream": True})
    events = [json.loads(event.removeprefix("data: ")) for event in answer.body.decode().split("\n\n")[:-1]]
    assert answer.status == 200
    assert events[-1] == {"error": {"message": "no more", "type": "invalid_request_error", "param": None, "code": None}}
    assert [event["choices"][0]["text"] for event in events[:2]] == ["a", "b"]


# The models


def test_the_models(serving: Serving) -> None:
    answer = serving.get("/v1/models").json()
    assert answer["object"] == "list"
    names = ["chat", "joined", "objects", "rows", "single", "stops", "vllm", "whole", "words"]
    assert [row["id"] for row in answer["data"]] == names
    row = serving.get("/v1/models/words").json()
    assert row in answer["data"]
    assert (row["object"], row["owned_by"]) == ("model", "stubserve")
    assert refusal(serving.get("/v1/models/hidden"), 404)[1:] == ("model", "model_not_found")


def test_the_routes_are_off_by_default(tmp_path: Path) -> None:
    with Serving(tmp_path, "--try-page=false") as server:
        off = "Not Found: OpenAI's routes are served on this port with --openai"
        assert server.get("/v1/models").error == off
        assert "--try-page" in server.get("/chat").error
        assert "--try-page" in server.get("/try").error
        assert server.get("/v3/models").error == "Not Found"
        # A base URL without its end
        asked = server.request("POST", "/chat/completions", b"{}")
        assert asked.status == 404
        assert asked.error.startswith("Not Found: did you mean /v1/chat/completions? The base URL of a client")


# Clients that read slowly, clients that go, stubs that die, rights


def opened(serving: Serving, body: dict[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = serving.connect()
    connection.request("POST", COMPLETIONS, json.dumps(body))
    return connection, connection.getresponse()


def test_a_slow_reader_slows_its_model_only(serving: Serving, tmp_path: Path) -> None:
    """Two choices of 128 MiB for a client that reads nothing: the model waits, others are served; then all comes."""
    write_words(tmp_path, "words", TEXT_INPUT, "instance_group { count: 2 }")
    with Serving(tmp_path, "--openai", "--shm-limit=64M") as server:
        server.wait_until_ready()
        connection, response = opened(server, {"model": "words", "prompt": "flood", "n": 2, "stream": True})
        assert response.readline()
        eventually(lambda: count_responses(server) > 10)
        assert server.get("/v1/models").status == 200
        pieces = 0
        while line := response.readline():
            pieces += line.count(b"x" * 65536)
        connection.close()
        assert pieces + 1 == 4000


def count_responses(server: Serving) -> int:
    return sum(place["success"]["count"] for place in server.statistics("words")["response_stats"].values())


def test_many_clients_that_go(tmp_path: Path) -> None:
    """Those whose requests wait, too."""
    write_words(tmp_path, "words", TEXT_INPUT)
    with Serving(tmp_path, "--openai") as server:
        server.wait_until_ready()
        body = {"model": "words", "prompt": "wait", "n": 3, "stream": True}
        connections = [server.connect() for _ in range(50)]
        for connection in connections:
            connection.request("POST", COMPLETIONS, json.dumps(body))
        eventually(lambda: count_responses(server) > 1)
        for connection in connections:
            connection.close()
        assert texts(completion(server, "still here")) == ["still here"]
        eventually(lambda: PENDING + " 0" in server.metrics().body.decode())


def test_a_client_that_goes_frees_the_model(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In the middle of a stream, and while it waits for the whole answer, each with several choices."""
    repository = tmp_path_factory.mktemp("models")
    folder = write_words(repository, "words", TEXT_INPUT)
    cancelled = folder / "1" / "cancelled"
    with Serving(repository, "--openai") as server:
        server.wait_until_ready()
        for stream in (True, False):
            body = json.dumps({"model": "words", "prompt": "wait", "n": 3, "stream": stream}).encode()
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
                connection.sendall(head + body)
                if stream:
                    received = b""
                    while b'"text":"on "' not in received:
                        received += connection.recv(4096)
                else:
                    eventually(lambda: count_responses(server) > 1)
            eventually(cancelled.exists)
            # The only instance is free again, and nothing waits for it.
            assert texts(completion(server, "still here")) == ["still here"]
            eventually(lambda: PENDING + " 0" in server.metrics().body.decode())
            cancelled.unlink()


def test_a_stub_that_dies_ends_its_streams(tmp_path: Path) -> None:
    folder = write_words(tmp_path, "words", TEXT_INPUT)
    with Serving(tmp_path, "--openai") as server:
        server.wait_until_ready()
        connection, response = opened(server, {"model": "words", "prompt": "die", "stream": True})
        assert b'"text":"dying"' in response.readline()
        (folder / "1" / "go").touch()
        error = json.loads(response.read().decode().strip().removeprefix("data: "))["error"]
        connection.close()
        assert error["type"] == "server_error"
        assert "SIGKILL" in error["message"]
        (folder / "1" / "go").unlink()
        assert texts(completion(server, "back again")) == ["back again"]


def test_metrics_have_the_names_of_vllm(tmp_path: Path) -> None:
    write_words(tmp_path, "words", TEXT_INPUT)
    write_objects(tmp_path)
    cached = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    pieces = [{"choices": [{"text": "a"}]}, {"choices": [{"text": ""}]}, {"choices": [], "usage": cached}]
    with Serving(tmp_path, "--openai") as server:
        server.wait_until_ready()
        completion(server, "one two three", n=2)
        streamed(ask(server, COMPLETIONS, {"model": "words", "prompt": "one two", "stream": True}))
        completion(server, json.dumps(pieces), "objects")
        text = server.metrics().body.decode()
        rows = {row["name"]: row["tokens"] for row in server.metrics("/status.json").json()["models"]}
    labels = '{model_name="words",version="1"}'
    found = dict(re.findall(r"^(vllm:\S+) (\S+)$", text, re.MULTILINE))
    assert {name.removesuffix(labels): value for name, value in found.items() if name.endswith(labels)} == {
        "vllm:prompt_tokens_total": "8",
        "vllm:generation_tokens_total": "8",
        "vllm:num_requests_running": "0",
        "vllm:num_requests_waiting": "0",
        **{f"vllm:{name}_seconds_sum": found[f"vllm:{name}_seconds_sum{labels}"] for name in TIMES},
        "vllm:time_to_first_token_seconds_count": "3",
        "vllm:inter_token_latency_seconds_count": "5",
        "vllm:e2e_request_latency_seconds_count": "3",
    }
    labels = labels.replace("words", "objects")
    assert found[f"vllm:prefix_cache_hits_total{labels}"] == "4"
    assert found[f"vllm:prefix_cache_queries_total{labels}"] == "7"
    assert found[f"vllm:time_to_first_token_seconds_count{labels}"] == "1"
    assert found[f"vllm:inter_token_latency_seconds_count{labels}"] == "0"
    assert (rows["words"]["prompt"], rows["words"]["generation"], rows["words"]["cached"]) == (8, 8, None)
    assert rows["objects"]["cached"] == 4


def test_tokens(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_models(models)
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-for-everything\na-token-for-metadata metadata\n")
    with Serving(models, "--openai", f"--auth-token-file={tokens}", "--auth-open-api=health") as server:
        server.wait_until_ready()
        body = {"model": "words", "prompt": "a"}
        for path in ("/v1/models", COMPLETIONS):
            method, sent = ("POST", json.dumps(body).encode()) if path == COMPLETIONS else ("GET", None)
            answer = server.request(method, path, sent)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert refusal(answer, 401)[2] == "invalid_api_key"
            answer = server.request(method, path, sent, {"Authorization": "Bearer a-token-for-metadata"})
            kind = "inference" if path == COMPLETIONS else "model-repository"
            assert refusal(answer, 403)[0] == f"The token is not good for the API '{kind}'"
            right = {"Authorization": "Bearer a-token-for-everything"}
            assert server.request(method, path, sent, right).status == 200


def test_the_access_log_has_the_model(serving: Serving) -> None:
    id = completion(serving, "a")["id"]
    serving.wait_for(rf"POST /v1/completions HTTP/1.1\\?\" 200 model='words' id='{id}'")

"""The text of a choice: what a stop sequence leaves of it, in whatever pieces it comes; and long answers in steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BY_NAME, BYTES

from stubserve.errors import ServeError
from stubserve.http.infer_encode import in_heap, json_array, json_array_steps
from stubserve.http.openai.objects import ObjectWriter
from stubserve.http.openai.texts import TextWriter
from stubserve.http.openai.use import CHAT, COMPLETIONS, EMBEDDINGS
from stubserve.http.openai.vectors import VectorWriter
from stubserve.http.openai.writer import STEP, Form, Writer, document
from stubserve.inference.long_work import finish
from stubserve.inference.request import Response
from stubserve.inference.tensor import Tensor
from stubserve.inference.token_counts import TokenCounts

TEXTS = st.text("ab é", max_size=12)


def output(name: str, *texts: str | bytes) -> Tensor:
    data = strings.join([text.encode() if isinstance(text, str) else text for text in texts])
    return Tensor(name, BYTES, (len(texts),), data)


def completion(stops: list[str], prompt: str = "", streamed: bool = False) -> TextWriter:
    return TextWriter(TokenCounts(), Form(COMPLETIONS, "model", streamed, False), 0, 0, stops, prompt)


def answer(writer: Writer, responses: list[Response], route: str = COMPLETIONS) -> Any:
    """The answer without a stream that the responses make."""
    written: list[bytes] = []
    for response in responses:
        if not writer.over:
            written += finish(writer.read(response))
    written += writer.end()
    return json.loads(b"".join(document(Form(route, "model", False, False), [writer], [written])))


def steps(writer: Writer, response: Response) -> int:
    return sum(1 for _ in writer.read(response))


@given(st.lists(TEXTS, max_size=6), st.lists(TEXTS.filter(bool), min_size=1, max_size=4), TEXTS)
def test_the_text_ends_before_a_stop(texts: list[str], stops: list[str], prompt: str) -> None:
    """As in a search of all of the text after each piece."""
    whole = ""
    for text in texts:
        whole += text
        found = [at for at in map(whole.find, stops) if at >= 0]
        if found:
            whole = whole[: min(found)]
            break
    pieces = [*[Response([output("text_output", text)]) for text in texts], Response([])]
    (choice,) = answer(completion(stops, prompt), pieces)["choices"]
    assert choice["text"] == prompt + whole
    writer = completion(stops, prompt, streamed=True)
    events = b"".join(b"".join(finish(writer.read(piece))) for piece in pieces if not writer.over)
    events += b"".join(writer.end())
    parts = [json.loads(event.removeprefix("data: ")) for event in events.decode().split("\n\n")[:-1]]
    assert "".join(part["choices"][0]["text"] for part in parts) == prompt + whole


@pytest.mark.parametrize("stops", [[], ["a" * 255 + "b", "b" + "a" * 255, "a" * 128 + "b" + "a" * 127, "\n"]])
def test_a_long_text_is_read_in_steps(stops: list[str]) -> None:
    size = 40 * STEP
    assert steps(completion(stops), Response([output("text_output", "a" * size)])) >= 40
    assert steps(completion(stops, "a" * size), Response([output("text_output", "a")])) >= 40
    long = "é" * (STEP // 2 + 1) + "\udc80"
    text = long.encode("utf-8", "surrogateescape")
    (choice,) = answer(completion(stops), [Response([output("text_output", text, text)])])["choices"]
    assert choice["text"] == 2 * (long[:-1] + "�")


def test_logprobs_of_all_responses_are_joined() -> None:
    told = ['{"tokens": ["a"], "of": 1}', '{"tokens": [ ]}', '{"tokens":["b", {"c": [2]}], "of": 2}']
    responses = [Response([output("text_output", "x"), output("logprobs", one)]) for one in told]
    (choice,) = answer(completion([]), responses)["choices"]
    assert choice["logprobs"] == {"tokens": ["a", "b", {"c": [2]}], "of": 2}


@pytest.mark.parametrize("told", ["[]", "null", "{", "x", '{"a": }'])
def test_logprobs_that_are_no_object(told: str) -> None:
    with pytest.raises(ServeError, match="'logprobs' must be a JSON object"):
        finish(completion([]).read(Response([output("text_output", "x"), output("logprobs", told)])))


def objects(*pieces: Any) -> Any:
    texts = [piece if isinstance(piece, str) else json.dumps(piece) for piece in pieces]
    writer = ObjectWriter(TokenCounts(), Form(CHAT, "model", False, False))
    return answer(writer, [Response([output("openai_response", text)]) for text in texts], CHAT)


def test_members_of_lists_go_on_by_their_index() -> None:
    calls = [{"index": number, "function": {"name": "f", "arguments": "a"}} for number in range(3)]
    made = objects(*[{"choices": [{"delta": {"tool_calls": calls[::-1]}}]}] * 3)
    arguments = [call["function"]["arguments"] for call in made["choices"][0]["message"]["tool_calls"]]
    assert arguments == ["aaa"] * 3


@pytest.mark.parametrize("streamed", [False, True])
def test_objects_that_are_nested_too_deeply_are_the_models_fault(streamed: bool) -> None:
    """orjson reads more levels than it writes."""
    deep = '{"choices":[{"delta":{"content":' + "[" * 300 + "]" * 300 + "}}]}"
    writer = ObjectWriter(TokenCounts(), Form(CHAT, "model", streamed, False))
    with pytest.raises(ServeError, match="'openai_response' that cannot be written again"):
        answer(writer, [Response([output("openai_response", deep)])], CHAT)


@pytest.mark.parametrize("told", [1 << 31, -1, True, 1.5, "7"])
def test_what_is_no_number_of_tokens_is_not_told(told: Any) -> None:
    text = Response([output("text_output", "x")], {"num_input_tokens": told, "num_output_tokens": 1})
    assert answer(completion([]), [text])["usage"] is None
    usage = {"prompt_tokens": told, "completion_tokens": 1, "total_tokens": 2}
    assert objects({"choices": [{"delta": {"content": "x"}}], "usage": usage})["usage"] is None


def test_embeddings_are_made_in_steps() -> None:
    vector = Tensor("EMBEDDING", BY_NAME["FP32"].number, (3, 2), bytes(24))
    form = Form(EMBEDDINGS, "model", False, False)
    assert steps(VectorWriter(TokenCounts(), form, 0, 3, "EMBEDDING", 0, False), Response([vector])) == 2
    data = answer(VectorWriter(TokenCounts(), form, 0, 3, "EMBEDDING", 0, False), [Response([vector])], EMBEDDINGS)[
        "data"
    ]
    assert [row["embedding"] for row in data] == [[0, 0]] * 3


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["", "a", "é€𐍈" * 9000, '"\n' * 20000, "\x01" * 40000, b"\xff" * 40000]), max_size=4))
def test_long_strings_are_written_in_steps_as_at_once(texts: list[str | bytes]) -> None:
    tensor = output("OUT", *texts)
    whole = json_array(tensor)
    assert in_heap(b"".join(json_array_steps(tensor))) == whole
    assert all(len(piece) < 7 * 32 * 1024 for piece in json_array_steps(tensor))

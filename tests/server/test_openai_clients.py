"""The `openai` package as its users call it, unmodified: sync and async, whole answers and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real_server import PATIENCE_S, Serving
from tests.server.openai_models import write_models

openai = pytest.importorskip("openai", reason="`make test-long` installs it")

pytestmark = pytest.mark.long
TOKEN = "a-token-for-this-test"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "tokens").write_text(TOKEN)
    write_models(folder / "models")
    flags = ["--openai", f"--auth-token-file={folder / 'tokens'}", "--auth-open-api=health"]
    with Serving(folder / "models", *flags) as server:
        server.wait_until_ready()
        yield server


def options(serving: Serving) -> dict[str, Any]:
    return {
        "base_url": f"http://127.0.0.1:{serving.port}/v1",
        "api_key": TOKEN,
        "max_retries": 0,
        "timeout": PATIENCE_S,
    }


@pytest.fixture
def client(serving: Serving) -> Iterator[Any]:
    with openai.OpenAI(**options(serving)) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_models(client: Any) -> None:
    names = [model.id for model in client.models.list()]
    assert "words" in names
    assert client.models.retrieve("words").owned_by == "stubserve"


def test_completions(client: Any) -> None:
    answer = client.completions.create(model="words", prompt=["one two", "three"], max_tokens=1, seed=3)
    assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [("one", "length"), ("three", "stop")]
    assert answer.usage.total_tokens == 5
    stream = client.completions.create(model="words", prompt="one two", stream=True)
    assert "".join(event.choices[0].text for event in stream) == "one two"


def test_chats(client: Any) -> None:
    answer = client.chat.completions.create(model="joined", messages=user("hello you"), n=2)
    assert [choice.message.content for choice in answer.choices] == ["user: hello you assistant:"] * 2
    stream = client.chat.completions.create(
        model="joined", messages=user("hello"), stream=True, stream_options={"include_usage": True}
    )
    *events, last = list(stream)
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events) == "user: hello assistant:"
    assert last.usage.completion_tokens == 3


def test_the_helper_for_streams_and_tools(client: Any) -> None:
    """It puts the pieces together itself, and is strict about their form."""
    pieces = (
        '[{"choices":[{"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"c","type":"function",'
        '"function":{"name":"f","arguments":"{\\"a\\""}}]}}]},'
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]},'
        '{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}]'
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    with client.chat.completions.stream(model="objects", messages=user(pieces), tools=tools) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    whole = client.chat.completions.create(model="objects", messages=user(pieces), tools=tools)
    for (call,) in (streamed, whole.choices[0].message.tool_calls):
        assert (call.id, call.function.name, call.function.arguments) == ("c", "f", '{"a":1}')


def test_embeddings(client: Any) -> None:
    """In base64, which the client asks for by itself, and as numbers."""
    for more in {}, {"encoding_format": "float"}:
        answer = client.embeddings.create(model="rows", input=["a", "bb", "ccc", "dddd", "eeeee"], **more)
        assert [one.embedding[0] for one in answer.data] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert answer.usage.total_tokens == 0


def test_errors(serving: Serving, client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nosuch", prompt="a")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="expected `int` <= 128") as wrong:
        client.completions.create(model="words", prompt="a", n=1000)
    assert wrong.value.param == "n"
    with pytest.raises(openai.AuthenticationError) as foreign:
        client.with_options(api_key="another-token-that-is-not-known").models.list()
    assert foreign.value.code == "invalid_api_key"
    with pytest.raises(openai.BadRequestError, match="no more"):
        client.completions.create(model="words", prompt="fail", stream=True)
    seen: list[str] = []
    stream = client.completions.create(model="words", prompt="fail a b", stream=True)
    with pytest.raises(openai.APIError, match="no more"):
        seen.extend(event.choices[0].text for event in stream)
    assert seen == ["a", "b"]


def test_many_at_once_from_asyncio(serving: Serving) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(**options(serving)) as client:

            async def one(number: int) -> str:
                stream = await client.completions.create(model="words", prompt=f"number {number}", stream=True)
                return "".join([event.choices[0].text async for event in stream])

            assert await asyncio.gather(*map(one, range(100))) == [f"number {number}" for number in range(100)]
            answer = await client.chat.completions.create(model="joined", messages=user("a"))
            assert answer.choices[0].message.content == "user: a assistant:"

    asyncio.run(run())


def test_a_stream_that_is_left(serving: Serving, client: Any) -> None:
    """The model ends, and answers the next."""
    stream = client.completions.create(model="words", prompt="wait", stream=True)
    assert next(iter(stream)).choices[0].text == "on "
    stream.close()
    assert client.completions.create(model="words", prompt="a").choices[0].text == "a"
    folder = Path(serving.command[4])
    assert (folder / "words" / "1" / "cancelled").read_text() == "x"


def test_langchain(serving: Serving) -> None:
    """Its messages, whole and in pieces, from asyncio, bound tools, and embeddings of texts."""
    langchain = pytest.importorskip("langchain_openai", reason="`make test-long` installs it")
    address = {
        "base_url": f"http://127.0.0.1:{serving.port}/v1",
        "api_key": TOKEN,
        "max_retries": 0,
        "timeout": PATIENCE_S,
    }
    chat = langchain.ChatOpenAI(model="joined", **address)
    answer = chat.invoke("hello you")
    assert answer.content == "user: hello you assistant:"
    assert answer.usage_metadata["output_tokens"] == 4
    assert "".join(piece.content for piece in chat.stream([("human", "hello")])) == "user: hello assistant:"
    assert asyncio.run(chat.ainvoke("hello")).content == "user: hello assistant:"
    call = '{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{\\"a\\":1}"}}'
    last = '{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}'
    pieces = f'[{{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}},{last}]'
    tool = {"type": "function", "function": {"name": "f", "description": "f", "parameters": {"type": "object"}}}
    (called,) = langchain.ChatOpenAI(model="objects", **address).bind_tools([tool]).invoke(pieces).tool_calls
    assert (called["name"], called["args"]) == ("f", {"a": 1})
    embeddings = langchain.OpenAIEmbeddings(model="rows", check_embedding_ctx_length=False, **address)
    assert [vector[0] for vector in embeddings.embed_documents(["a", "bb", "ccc"])] == [1.0, 2.0, 3.0]
    assert embeddings.embed_query("dddd")[0] == 4.0

"""What the body of a request to one of OpenAI's routes says. No model is known yet: its name is part of the body.

msgspec checks the members that the routes know, by kind and range, and its errors say where. All other members pass as
they came: they are the model's to judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import orjson
from msgspec import Meta, Struct
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.options import RequestOptions

from stubserve.api.placement import Placer
from stubserve.errors import Code, ServeError, invalid
from stubserve.http.openai.use import CHAT, COMPLETIONS, EMBEDDINGS
from stubserve.inference.request import Request
from stubserve.inference.tensor import drop_blocks

# OpenAI's own limits
MOST_CHOICES = 128
MOST_INPUTS = 2048
_MOST_STOPS = 4
# What may begin a stop is compared with it for each piece of the text.
_LONGEST_STOP = 256

_MOST = (1 << 31) - 1
_Count = Annotated[int, Meta(ge=1, le=_MOST)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Stop = Annotated[str, Meta(max_length=_LONGEST_STOP)]
_Text = str | list[str | int | list[int]]


class _StreamOptions(Struct):
    include_usage: bool | None = None


class _Sampled(Struct):
    """What a chat and a completion have in common."""

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=_MOST_STOPS)] | None = None
    user: str | None = None
    # Not OpenAI's own, but of vLLM's and Triton's front ends
    min_tokens: Annotated[int, Meta(ge=0, le=_MOST)] | None = None
    ignore_eos: bool | None = None


class _Message(Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Function(Struct):
    name: str


class _Tool(Struct):
    type: str
    function: _Function | None = None


class _Chat(_Sampled, kw_only=True):
    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None


class _Completion(_Sampled, kw_only=True):
    prompt: _Text
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None


class _Embedding(Struct, kw_only=True):
    model: str
    input: _Text
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: _Count | None = None
    user: str | None = None


_BODIES: dict[str, type[Struct]] = {CHAT: _Chat, COMPLETIONS: _Completion, EMBEDDINGS: _Embedding}
# Members that the server itself acts on, and which are never a model's inputs of their own
_OWN = frozenset(
    (
        "model",
        "stream_options",
        "n",
        "messages",
        "prompt",
        "input",
        "echo",
        "encoding_format",
        "max_completion_tokens",
    )
)
# Names with another meaning in a request to `generate`
_RESERVED = ("id", "parameters")
_PLACE = " - at `$"
_MISSING = re.compile(r"Object missing required field `(\w+)`")


class Asked(NamedTuple):
    """What a client asks: plain values only, so that another process can read it (`json.worker`).

    `texts` are the prompts or the texts to embed. For a chat they are its messages, as JSON and as plain text; the
    plain text is empty if `not_plain` says which part of the messages has none. `members` are for the model: `stream`,
    and all that the server does not act on itself. Those that are lists or objects are in `documents`, as JSON.
    """

    model: str
    texts: list[str]
    members: dict[str, Any]
    documents: dict[str, str]
    n: int = 1
    stops: list[str] = []  # noqa: RUF012 - nobody changes it
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    base64: bool = False
    not_plain: str = ""


def read_body(text: bytes, route: str) -> Asked:
    """Reads a body. Raises ServeError (INVALID_ARG); the path of the error names the faulty member."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _wrong(f"the body of the request is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise _wrong("the body of the request must be a JSON object")
    for name in _RESERVED:
        if name in document:
            raise invalid(f"a request to this route has no member '{name}'").at(name)
    try:
        body: Any = msgspec.convert(document, _BODIES[route])
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    except RecursionError:
        raise _wrong("the body of the request is nested too deeply") from None
    members: dict[str, Any] = {}
    documents: dict[str, str] = {}
    for name, value in document.items():
        if isinstance(value, dict | list):
            if name not in _OWN:
                documents[name] = _json(name, value)
        elif value is not None and name not in _OWN:
            members[name] = value
    if route == EMBEDDINGS:
        texts = _texts(body.input, "input")
        return Asked(body.model, texts, members, documents, base64=body.encoding_format == "base64")
    if body.stream_options is not None and not body.stream:
        raise invalid("`stream_options` can only be used when `stream` is True").at("stream_options")
    members["stream"] = stream = bool(body.stream)
    stop: Any = body.stop or []
    asked = Asked(
        body.model,
        [],
        members,
        documents,
        body.n or 1,
        [stop] if isinstance(stop, str) else [one for one in stop if one],
        stream,
        stream and body.stream_options is not None and bool(body.stream_options.include_usage),
    )
    if route == COMPLETIONS:
        texts = _texts(body.prompt, "prompt")
        if len(texts) * asked.n > MOST_CHOICES:
            raise invalid(f"prompts times 'n' must be at most {MOST_CHOICES}, got {len(texts) * asked.n}").at("n")
        return asked._replace(texts=texts, echo=bool(body.echo))
    _check_chat(body)
    if body.max_completion_tokens is not None:
        members["max_tokens"] = body.max_completion_tokens
    plain, not_plain = _plain(document["messages"])
    return asked._replace(texts=[_json("messages", document["messages"]), plain], not_plain=not_plain)


def _check_chat(body: _Chat) -> None:
    """Checks the members of a chat against each other. Raises ServeError."""
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("`top_logprobs` can only be used when `logprobs` is True").at("top_logprobs")
    choice = body.tool_choice
    tools = [tool.function.name for tool in body.tools or () if tool.function is not None]
    if choice == "required" and not body.tools:
        raise invalid("`tool_choice` is 'required', and there are no `tools`").at("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if name not in tools:
            raise invalid(f"`tool_choice` names a function that is not among the `tools`: {name}").at("tool_choice")


def _json(name: str, value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise invalid(f"'{name}' is nested too deeply").at(name) from None


def pack_asked(asked: Asked, placer: Placer) -> Request:
    """What was asked, in the form of a request, so that long texts can be handed to another process in the arena."""
    texts = strings.join([text.encode() for text in asked.texts])
    tensor = placer.put("texts", BYTES, [len(asked.texts)], texts)
    return Request([tensor], "", RequestOptions(parameters=asked._replace(texts=[])._asdict()))


def read_packed(text: bytes, route: str, most: int, placer: Placer) -> Request:
    """As `read_body`, packed: for the process that reads large JSON. Raises ServeError."""
    return pack_asked(read_body(text, route), placer)


def unpack_asked(request: Request) -> Asked:
    """What was asked; lets go of the request's memory."""
    (tensor,) = request.inputs
    try:
        texts = [text.decode() for text in strings.split(bytes(tensor.buffer))]
    finally:
        drop_blocks(request.inputs)
    asked = Asked(**(request.options.parameters or {}))
    return asked._replace(texts=texts, stops=list(asked.stops))


def _texts(value: Any, name: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not texts:
        raise invalid(f"'{name}' must not be an empty list").at(name)
    if not all(isinstance(text, str) for text in texts):
        raise invalid(f"'{name}' must be a text or a list of texts; numbers of tokens are not taken").at(name)
    if len(texts) > MOST_INPUTS:
        raise invalid(f"'{name}' may have {MOST_INPUTS} texts, got {len(texts)}").at(name)
    return list(texts)


def _plain(messages: list[Mapping[str, Any]]) -> tuple[str, str]:
    """(a line `<role>: <text>` for each message, and the beginning of the answer; "" and the path of a part that is no
    text, if there is one).
    """
    lines = []
    for at, message in enumerate(messages):
        content = message.get("content") or ""
        if not isinstance(content, str):
            for number, part in enumerate(content):
                if part.get("type") != "text" or not isinstance(part.get("text"), str):
                    return "", f"messages[{at}].content[{number}]"
            content = "".join([part["text"] for part in content])
        lines.append(f"{message['role']}: {content}\n")
    return "".join([*lines, "assistant:"]), ""


def _refusal(text: str) -> ServeError:
    """msgspec's error as ours: its place becomes the path."""
    # What is wrong may quote what the client sent, so the last place is the right one.
    what, _, place = text.rpartition(_PLACE) if _PLACE in text else (text, "", "")
    place = place.removeprefix(".").removesuffix("`")
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        place = f"{place}.{missing[1]}" if place else missing[1]
        return _wrong(f"'{place}' is missing").at(place)
    return _wrong(f"'{place}': {what[:1].lower()}{what[1:]}" if place else what).at(*([place] if place else []))


def _wrong(message: str) -> ServeError:
    return ServeError(Code.WRONG_FORM, message)

"""What the answers of OpenAI's routes have in common: their heads, their usage, and the interface of their writers."""

# Compiled by mypyc.
from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES

from stubserve.errors import ServeError, internal
from stubserve.http.json import text as json_text
from stubserve.http.openai.use import CHAT, COMPLETIONS, EMBEDDINGS
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Response
from stubserve.inference.tensor import Tensor
from stubserve.inference.token_counts import TokenCounts

_PREFIX = {CHAT: "chatcmpl-", COMPLETIONS: "cmpl-", EMBEDDINGS: "embd-"}
_OBJECT = {CHAT: "chat.completion", COMPLETIONS: "text_completion", EMBEDDINGS: "list"}
# Responses name numbers of tokens as the models of vLLM's backend do.
INPUT_TOKENS, OUTPUT_TOKENS = "num_input_tokens", "num_output_tokens"
_TOLD = ("prompt_tokens", "completion_tokens", "total_tokens")
# No request has more; and sums of such numbers fit into 64 bits, as JSON's writers have them.
_MOST_TOKENS = (1 << 31) - 1
# The most bytes of text that become JSON in one step
STEP = 16 * 1024


class Form:
    """The form of one answer: its `id`, and the `common` members that are the same in all of its events."""

    def __init__(self, route: str, model: str, streamed: bool, includes_usage: bool) -> None:
        self.route = route
        self.model = model
        self.streamed = streamed
        self.includes_usage = includes_usage
        self.id = _PREFIX[route] + uuid.uuid4().hex
        self.common = {
            "id": self.id,
            "object": _OBJECT[route] + (".chunk" if streamed and route == CHAT else ""),
            "created": int(time.time()),
            "model": model,
        }
        self.head = orjson.dumps(self.common)[:-1] + b","
        self._tail = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"

    def event(self, choice: bytes) -> bytes:
        """The event with a piece of one choice."""
        return b'data: %b"choices":[%b%b' % (self.head, choice, self._tail)

    def usage_event(self, usage: bytes) -> bytes:
        return b'data: %b"choices":[],"usage":%b}\n\n' % (self.head, usage)


class Usage:
    """The numbers of tokens that the model has told; None for what it has not. All of them count in `tokens`."""

    __slots__ = ("input", "output", "tokens")

    def __init__(self, tokens: TokenCounts) -> None:
        self.tokens = tokens
        self.input: int | None = None
        self.output: int | None = None

    def add(self, response: Response) -> None:
        """Takes what a response tells. It tells all tokens of the request, and its own tokens of the answer."""
        given, made = _count(fact(response, INPUT_TOKENS)), _count(fact(response, OUTPUT_TOKENS))
        if given is None and made is None:
            return
        self.tokens.add(0 if given is None else given - (self.input or 0), made or 0)
        if given is not None:
            self.input = given
        if made is not None:
            self.output = (self.output or 0) + made

    def add_told(self, told: dict[str, Any]) -> bool:
        """Counts what a model tells in OpenAI's form. False if a number of tokens is none."""
        if any(name in told and _count(told[name]) is None for name in _TOLD):
            return False
        details = told.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        self.tokens.add(told.get("prompt_tokens", 0), told.get("completion_tokens", 0), cached)
        return True


def _count(value: Any) -> int | None:
    """A number of tokens; None for anything else that a model may tell."""
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


class Writer:
    """Makes JSON of the responses to one request to the model, for text number `text` of the client's request.

    `usage` is what the model says of tokens; `told` the same as JSON, if the model says it in OpenAI's form. `more` are
    further members of the whole answer, as JSON, each with a comma behind it. `over`: nothing further of the model is
    wanted. `says`: the last response had some text.
    """

    def __init__(self, tokens: TokenCounts, text: int) -> None:
        self.text = text
        self.usage = Usage(tokens)
        self.says = False
        self.told = b""
        self.more = b""
        self.over = False

    def read(self, response: Response) -> LongWork[list[bytes]]:
        """Takes a response in; in steps, the events that it makes, or the text that it adds. Raises ServeError."""
        raise NotImplementedError

    def end(self) -> list[bytes]:
        """The model has ended: the last events, or the rest of the text."""
        raise NotImplementedError


def document(form: Form, writers: Sequence[Writer], written: Sequence[list[bytes]]) -> list[bytes]:
    """The answer that is no stream, in pieces; `written` are the choices or embeddings of each writer, in order."""
    if form.route == EMBEDDINGS:
        parts = [b'{"object":"list","data":[']
        used = sum(writer.usage.input or 0 for writer in writers)
        tail = b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
            json_text.string(form.model),
            used,
            used,
        )
    else:
        parts = [b'%b%b"choices":[' % (form.head, b"".join(writer.more for writer in writers))]
        tail = b'],"usage":%b}' % usage(writers)
    for pieces in written:
        if len(parts) > 1 and any(pieces):
            parts.append(b",")
        parts += pieces
    return [*parts, tail]


def usage(writers: Sequence[Writer]) -> bytes:
    """The tokens of the whole request; those of a text count once, whatever its choices. `null` unless all are told."""
    told = [writer.told for writer in writers if writer.told]
    if told:
        return told[-1]
    given = {writer.text: writer.usage.input for writer in writers}
    read = [count for count in given.values() if count is not None]
    made = [writer.usage.output for writer in writers if writer.usage.output is not None]
    if len(read) < len(given) or len(made) < len(writers):
        return b"null"
    total, output = sum(read), sum(made)
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (total, output, total + output)


def fact(response: Response, name: str) -> Any:
    """What a response says under a name, as a parameter or an output: a text, the sum of its numbers, or None."""
    if response.parameters and name in response.parameters:
        return response.parameters[name]
    for tensor in response.outputs:
        if tensor.name == name:
            if tensor.datatype == BYTES:
                found = next(iter(elements(tensor)), None)
                return None if found is None else found.decode("utf-8", "replace")
            return np.frombuffer(tensor.buffer, BY_NUMBER[tensor.datatype].numpy).sum().item()
    return None


def elements(tensor: Tensor) -> Iterable[bytes]:
    """The strings of an output; those of a large one are found one by one. Raises ServeError (INTERNAL)."""
    if tensor.elements is not None:
        return tensor.elements
    if tensor.nbytes > STEP:
        return map(bytes, _found(tensor))
    try:
        return strings.split(bytes(tensor.buffer))
    except ValueError:
        raise _no_strings(tensor) from None


def pieces(tensor: Tensor) -> Iterable[bytes]:
    """The bytes of the strings of an output, of a large one in pieces of STEP. Raises ServeError (INTERNAL)."""
    if tensor.nbytes <= STEP:
        return elements(tensor)
    return (bytes(text[at : at + STEP]) for text in _found(tensor) for at in range(0, len(text), STEP))


def _found(tensor: Tensor) -> Iterator[memoryview]:
    data = memoryview(tensor.buffer)
    at = 0
    while at < len(data):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        if at > len(data):
            raise _no_strings(tensor)
        yield data[start:at]


def _no_strings(tensor: Tensor) -> ServeError:
    return internal(f"output '{tensor.name}' holds no strings")

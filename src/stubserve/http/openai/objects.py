"""Answers of a model that makes OpenAI's objects itself: each string of `openai_response` is one object.

The model may answer a whole object, or pieces of it (`delta`), whatever the client wants. For a stream a whole object
becomes one piece. Where there is no stream, pieces become a whole object: texts and lists go on, and members of a list
that have an `index` go on where the one with the same index ended.
"""

# Compiled by mypyc.
from __future__ import annotations

from typing import Any

import orjson

from stubserve.errors import internal
from stubserve.http.openai.use import CHAT, OBJECT_OUTPUT
from stubserve.http.openai.writer import Form, Writer, elements
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Response
from stubserve.inference.token_counts import TokenCounts

# Texts that name something, and so do not go on
_NAMES = frozenset(("id", "type", "role", "name", "finish_reason"))


class _Text:
    """A text that goes on; joined once, since each copy of a long text takes long."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def whole(self) -> str:
        return "".join(self.pieces)


class _List:
    """A list that goes on. Members with an index are found by it: a look through all of them takes long."""

    __slots__ = ("members", "numbered")

    def __init__(self, members: list[Any]) -> None:
        self.members: list[Any] = []
        self.numbered: dict[Any, dict[str, Any]] = {}
        self.go_on(members)

    def whole(self) -> list[Any]:
        return self.members

    def go_on(self, more: list[Any]) -> None:
        for value in more:
            index = value.get("index") if isinstance(value, dict) else None
            if type(index) is not int:
                self.members.append(value)
            elif index in self.numbered:
                _go_on(self.numbered[index], value)
            else:
                self.numbered[index] = value
                self.members.append(value)


class ObjectWriter(Writer):
    """All choices of an answer."""

    def __init__(self, tokens: TokenCounts, form: Form) -> None:
        super().__init__(tokens, 0)
        self._form = form
        # Where there is no stream: the choices so far, and the members beside them
        self._choices = _List([])
        self._beside: dict[str, Any] = {}

    def read(self, response: Response) -> LongWork[list[bytes]]:
        self.says = False
        events = []
        for tensor in response.outputs:
            if tensor.name == OBJECT_OUTPUT:
                for number, text in enumerate(elements(tensor)):
                    if number:
                        yield None
                    events.append(self._taken(text))
        return events

    def end(self) -> list[bytes]:
        if self._form.streamed:
            return []
        choices: list[dict[str, Any]] = self._choices.members
        for choice in choices:
            if self._form.route == CHAT:
                choice["message"] = {"role": "assistant", "content": None, **choice.pop("delta")}
                calls = choice["message"].get("tool_calls") or []
                for call in calls.members if isinstance(calls, _List) else calls:
                    call.pop("index", None)
            choice.setdefault("logprobs", None)
            choice.setdefault("finish_reason", "stop")
        self.more = self._dumps(self._beside)[1:-1] + b"," if self._beside else b""
        written: list[bytes] = []
        for choice in choices:
            if written:
                written.append(b",")
            written.append(self._dumps(choice))
        return written

    def _taken(self, text: bytes) -> bytes:
        form = self._form
        piece = _object(text, form.model)
        used = piece.pop("usage", None)
        if isinstance(used, dict) and self.usage.add_told(used):
            self.told = self._dumps(used)
        choices = piece.get("choices", [])
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise internal(f"model '{form.model}': 'choices' in '{OBJECT_OUTPUT}' must be a list of objects")
        for number, choice in enumerate(choices):
            choice.setdefault("index", number)
            if form.route == CHAT:
                _to_delta(choice, form.model)
            self.says = self.says or _says(choice)
        if not form.streamed:
            self._choices.go_on(choices)
            for name, value in piece.items():
                if name != "choices" and name not in form.common:
                    self._beside[name] = value
            return b""
        if not choices:
            return b""
        for choice in choices:
            choice.setdefault("finish_reason", None)
        usage: dict[str, Any] = {"usage": None} if form.includes_usage else {}
        return b"data: %b\n\n" % self._dumps({**form.common, **piece, **form.common, **usage})

    def _dumps(self, document: Any) -> bytes:
        try:
            return orjson.dumps(document, lambda one: one.whole())
        except orjson.JSONEncodeError as error:
            raise internal(
                f"model '{self._form.model}' gave '{OBJECT_OUTPUT}' that cannot be written again: {error}"
            ) from None


def _go_on(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Has an object go on with the next piece of it."""
    for name, value in piece.items():
        before = whole.get(name)
        if before is None:
            whole[name] = value
        elif isinstance(before, _Text) and isinstance(value, str):
            before.pieces.append(value)
        elif isinstance(before, str) and isinstance(value, str) and name not in _NAMES:
            whole[name] = _Text([before, value])
        elif isinstance(before, dict) and isinstance(value, dict):
            _go_on(before, value)
        elif isinstance(before, _List) and isinstance(value, list):
            before.go_on(value)
        elif isinstance(before, list) and isinstance(value, list):
            whole[name] = _List([*before, *value])
        elif value is not None:
            whole[name] = value


def _to_delta(choice: dict[str, Any], model: str) -> None:
    """Makes a piece of a whole choice."""
    message = choice.pop("message", None)
    if isinstance(message, dict):
        choice["delta"] = message
    delta = choice.setdefault("delta", {})
    if not isinstance(delta, dict):
        raise internal(f"model '{model}': 'delta' in '{OBJECT_OUTPUT}' must be an object")
    calls = delta.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise internal(f"model '{model}': 'tool_calls' in '{OBJECT_OUTPUT}' must be a list of objects")
    for number, call in enumerate(calls):
        call.setdefault("index", number)


def _says(choice: dict[str, Any]) -> bool:
    """Whether a piece of a choice has text, or part of a call."""
    delta: dict[str, Any] = choice.get("delta") or {}
    return bool(choice.get("text")) or any(value for name, value in delta.items() if name not in _NAMES)


def _object(text: bytes, model: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise internal(f"model '{model}' gave '{OBJECT_OUTPUT}' that is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise internal(f"model '{model}' gave '{OBJECT_OUTPUT}' that is not a JSON object")
    return found

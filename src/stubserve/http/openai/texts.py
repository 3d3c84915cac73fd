"""Choices of a model that answers text: each response is the next piece of one choice.

Where the model has no input for `stop`, the text is searched for the stop sequences here. What may be the beginning of
one is kept back until more text has come. Bytes of a character that is not complete are kept back, too.
"""

from __future__ import annotations

import codecs
from typing import Any

import orjson

from stubserve.errors import internal
from stubserve.http.json import text as json_text
from stubserve.http.openai.writer import Form, Writer, elements, fact
from stubserve.inference.long_work import LongWork, finish
from stubserve.inference.request import Response
from stubserve.inference.tokens import Tokens
from stubserve.model_config.openai_routes import CHAT, TEXT_OUTPUT

# Characters whose JSON is made in one step
_STEP = 32 * 1024
# vLLM's models answer this text where there is no reason yet.
_NO_REASON = ("", "None")


class TextWriter(Writer):
    """One choice: number `index` of the answer. A completion's text begins with its `prompt` if that is echoed."""

    def __init__(self, tokens: Tokens, form: Form, text: int, index: int, stops: list[str], prompt: str = "") -> None:
        super().__init__(tokens, text)
        self._form = form
        self._index = index
        self._stops = stops
        self._prompt = prompt
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Text that may be the beginning of a stop sequence
        self._held = ""
        self._most_held = max(map(len, stops), default=1) - 1
        self._reason = ""
        self._logprobs: dict[str, Any] | None = None
        self._begun = False

    def read(self, response: Response) -> LongWork[bytes]:
        self.usage.add(response)
        reason = fact(response, "finish_reason")
        if isinstance(reason, str) and reason not in _NO_REASON:
            self._reason = reason
        pieces = [piece for tensor in response.outputs if tensor.name == TEXT_OUTPUT for piece in elements(tensor)]
        text = self._wanted("".join(map(self._decoder.decode, pieces)))
        self.says = bool(text)
        return (yield from self._written(text, _logprobs(fact(response, "logprobs"))))

    def end(self) -> bytes:
        rest = "" if self.over else self._held + self._decoder.decode(b"", True)
        written = finish(self._written(rest, None, is_last=True))
        form = self._form
        reason = json_text.string(self._reason or "stop")
        if form.streamed:
            nothing = b'"delta":{}' if form.route == CHAT else b'"text":""'
            return written + form.event(
                b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (self._index, nothing, reason)
            )
        return b'%b"%b,"logprobs":%b,"finish_reason":%b}' % (
            written,
            b',"refusal":null}' if form.route == CHAT else b"",
            orjson.dumps(self._logprobs),
            reason,
        )

    def _wanted(self, text: str) -> str:
        """What may be sent of the text so far: all before a stop sequence, and nothing that may begin one."""
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self.over = True
            self._held = ""
            self._reason = "stop"
            return text[: min(found)]
        keep = self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _beginning(self, text: str) -> int:
        """How many characters at the end of the text may be the beginning of a stop sequence."""
        for size in range(min(self._most_held, len(text)), 0, -1):
            end = text[len(text) - size :]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0

    def _written(self, text: str, logprobs: dict[str, Any] | None, is_last: bool = False) -> LongWork[bytes]:
        """The events with a piece of text; where there is no stream, its JSON without quotes."""
        if not self._begun:
            text = self._prompt + text
        parts = []
        for at in range(0, len(text), _STEP):
            if at:
                yield None
            parts.append(json_text.string(text[at : at + _STEP])[1:-1])
        written = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._form.streamed:
            if not written and logprobs is None and (self._begun or not is_last or self._form.route != CHAT):
                return b""
            return self._event(written, logprobs)
        if logprobs is not None:
            if self._logprobs is None:
                self._logprobs = logprobs
            else:
                _go_on(self._logprobs, logprobs)
        if not self._begun:
            self._begun = True
            is_chat = self._form.route == CHAT
            opening = b'"message":{"role":"assistant","content":"' if is_chat else b'"text":"'
            return b'{"index":%d,%b%b' % (self._index, opening, written)
        return written

    def _event(self, written: bytes, logprobs: dict[str, Any] | None) -> bytes:
        form, begun = self._form, self._begun
        self._begun = True
        told = b"null" if logprobs is None else orjson.dumps(logprobs)
        if form.route != CHAT:
            return form.event(
                b'{"index":%d,"text":"%b","logprobs":%b,"finish_reason":null}' % (self._index, written, told)
            )
        event = form.event(
            b'{"index":%d,"delta":{"content":"%b"},"logprobs":%b,"finish_reason":null}' % (self._index, written, told)
        )
        if begun:
            return event
        role = b'"delta":{"role":"assistant","content":""}'
        return form.event(b'{"index":%d,%b,"logprobs":null,"finish_reason":null}' % (self._index, role)) + event


def _logprobs(text: Any) -> dict[str, Any] | None:
    """The object that a model gives as the `logprobs` of a choice; None without one. Raises ServeError (INTERNAL)."""
    if not text:
        return None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise internal("output 'logprobs' must be a JSON object, as the choices of OpenAI's answers have it")
    return found


def _go_on(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Has the lists of an object go on with those of another."""
    for name, value in piece.items():
        before = whole.get(name)
        if isinstance(value, list) and isinstance(before, list):
            before.extend(value)
        else:
            whole[name] = value

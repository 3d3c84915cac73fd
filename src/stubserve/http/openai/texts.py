"""Choices of a model that answers text: each response is the next piece of one choice.

Where the model has no input for `stop`, the text is searched for the stop sequences here. What may be the beginning of
one is kept back until more text has come. Bytes of a character that is not complete are kept back, too.
"""

# Compiled by mypyc.
from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from stubserve.errors import internal, invalid
from stubserve.http.json import text as json_text
from stubserve.http.openai.use import CHAT, TEXT_OUTPUT
from stubserve.http.openai.writer import STEP, Form, Writer, fact, pieces
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Response
from stubserve.inference.token_counts import TokenCounts

# A longer text becomes several events, and lies in several pieces of memory.
_PIECE = 64 * 1024
# vLLM's models answer this text where there is no reason yet.
_NO_REASON = ("", "None")
# The members stay text: a list with a row for each token is long, and nothing here looks into it.
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class TextWriter(Writer):
    """One choice: number `index` of the answer. A completion's text begins with its `prompt` if that is echoed.

    Raises ServeError at its end if the client wants logprobs and the model has told none.
    """

    def __init__(
        self,
        tokens: TokenCounts,
        form: Form,
        text: int,
        index: int,
        stops: list[str],
        prompt: str = "",
        wants_logprobs: bool = False,
    ) -> None:
        super().__init__(tokens, text)
        self._wants_logprobs = wants_logprobs
        self._form = form
        self._index = index
        self._stops = stops
        # A pattern that is one text is searched for in a time that grows with the text alone, which `str.find` is not.
        self._searches = [re.compile(re.escape(stop)).search for stop in stops]
        self._prompt = prompt
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Text that may be the beginning of a stop sequence
        self._held = ""
        self._reason = ""
        self._logprobs: dict[str, list[bytes]] | None = None
        self._begun = False

    def read(self, response: Response) -> LongWork[list[bytes]]:
        self.usage.add(response)
        reason = fact(response, "finish_reason")
        if isinstance(reason, str) and reason not in _NO_REASON:
            self._reason = reason
        logprobs = _logprobs(fact(response, "logprobs"))
        if logprobs is not None:
            self._wants_logprobs = False
        self.says = False
        made: list[bytes] = []
        written: list[bytes] = []
        size = 0
        for text in self._texts(response):
            written.append(json_text.string(text)[1:-1])
            size += len(written[-1])
            if size > _PIECE:
                made.append(self._written(b"".join(written), None))
                written, size = [], 0
            yield None
        made.append(self._written(b"".join(written), logprobs))
        return made

    def end(self) -> list[bytes]:
        if self._wants_logprobs:
            raise invalid(f"model '{self._form.model}' gives no logprobs").at("logprobs")
        rest = "" if self.over else self._held + self._decoder.decode(b"", True)
        written = self._written(json_text.string(rest)[1:-1], None, is_last=True)
        form = self._form
        reason = json_text.string(self._reason or "stop")
        if form.streamed:
            nothing = b'"delta":{}' if form.route == CHAT else b'"text":""'
            last = form.event(b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (self._index, nothing, reason))
        else:
            last = b'%b,"logprobs":%b,"finish_reason":%b}' % (
                b'","refusal":null}' if form.route == CHAT else b'"',
                _dumps(self._logprobs),
                reason,
            )
        return [written, last]

    def _texts(self, response: Response) -> Iterator[str]:
        """What a response adds to the text, in pieces of little work."""
        prompt, self._prompt = self._prompt, ""
        for at in range(0, len(prompt), STEP):
            yield prompt[at : at + STEP]
        for tensor in response.outputs:
            if tensor.name == TEXT_OUTPUT:
                for piece in pieces(tensor):
                    text = self._wanted(self._decoder.decode(piece))
                    if text:
                        self.says = True
                        yield text
                    if self.over:
                        return

    def _wanted(self, text: str) -> str:
        """What may be sent of the text so far: all before a stop sequence, and nothing that may begin one."""
        if not self._stops:
            return text
        text = self._held + text
        found = [match.start() for search in self._searches if (match := search(text))]
        if found:
            self.over = True
            self._held = ""
            self._reason = "stop"
            return text[: min(found)]
        keep = max([_beginning(text, stop) for stop in self._stops])
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _written(self, written: bytes, logprobs: dict[str, list[bytes]] | None, is_last: bool = False) -> bytes:
        """The event with a piece of text; where there is no stream, the text. `written` is JSON without quotes."""
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

    def _event(self, written: bytes, logprobs: dict[str, list[bytes]] | None) -> bytes:
        form, begun = self._form, self._begun
        self._begun = True
        told = _dumps(logprobs)
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


def _beginning(text: str, stop: str) -> int:
    """How many characters at the end of the text may be the beginning of a stop sequence."""
    at = text.find(stop[0], max(len(text) - len(stop) + 1, 0))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) - at if at >= 0 else 0


def _logprobs(text: Any) -> dict[str, list[bytes]] | None:
    """The members of the object that a model gives as the `logprobs` of a choice, as JSON; None without one.

    Raises ServeError (INTERNAL).
    """
    if not text:
        return None
    try:
        return {name: [bytes(value)] for name, value in _read_members(text).items()}
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        raise internal("output 'logprobs' must be a JSON object, as the choices of OpenAI's answers have it") from None


def _go_on(whole: dict[str, list[bytes]], piece: dict[str, list[bytes]]) -> None:
    """Has the lists of an object go on with those of another; of any other member the last counts."""
    for name, value in piece.items():
        before = whole.get(name)
        if before is not None and before[0].startswith(b"[") and value[0].startswith(b"["):
            before += value
        else:
            whole[name] = value


def _dumps(logprobs: dict[str, list[bytes]] | None) -> bytes:
    if logprobs is None:
        return b"null"
    members = []
    for name, values in logprobs.items():
        value = values[0]
        if len(values) > 1:
            value = b"[%b]" % b",".join(filter(None, [value[1:-1].strip() for value in values]))
        members.append(b"%b:%b" % (json_text.string(name), value))
    return b"{%b}" % b",".join(members)

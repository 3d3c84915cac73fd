"""JSON as upstream reads it, for the documents that orjson refuses.

Upstream parses with rapidjson, which accepts more than the standard allows (NaN, Inf, Infinity, bytes that are not
UTF-8, a lone low surrogate, a NUL as the end). It describes errors in its own words, with a byte offset, and clients
match on those words. So when orjson fails, this scanner reads the document again, either to accept it after all or to
give rapidjson's error.

It is plain Python, about 1 µs per value or escaped character, except for runs of numbers, which a C parser reads in
pieces. A document with more than TOKENS of these is refused, so that malformed JSON cannot keep the event loop busy.

Text becomes str, with bytes that are not UTF-8 as lone surrogates (`encode("utf-8", "surrogateescape")` restores them).
Of equal names in one object the first counts, because rapidjson looks up the first.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import orjson

from stubserve.errors import ServeError, invalid, malformed
from stubserve.http.json.values import NESTING_TEXT

TOKENS = 1_000_000
DEPTH = 200

_SPACE = re.compile(rb"[ \t\r\n]*")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_HEAD = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_PLAIN_TEXT = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX = re.compile(rb"[0-9A-Fa-f]{4}")
_NUMBER_RUN = re.compile(rb"[-+.0-9eE, \t\r\nNaInfity]*")
_RUN_BYTES = 64 * 1024
_ESCAPES = {ord(name): value for name, value in zip('"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True)}
_LITERALS = {ord("t"): (b"true", True), ord("f"): (b"false", False), ord("n"): (b"null", None)}


def parse(text: bytes) -> Any:
    """The document's value. Raises ServeError for a document that is malformed, nested too deep, or takes too long.

    The error of a malformed document is upstream's: INTERNAL, "failed to parse the request JSON buffer: <reason> at
    <offset>". The others are INVALID_ARG.
    """
    return _Scanner(text).document()


class _Scanner:
    def __init__(self, text: bytes) -> None:
        self._text = text
        self._end = len(text)
        self._at = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        self._left = TOKENS
        # Up to here numbers are read one by one, because the C parser could not read a piece of them.
        self._no_run_before = 0

    def document(self) -> Any:
        self._skip_space()
        if self._peek() == 0:
            self._fail("The document is empty.")
        value = self._value(0)
        self._skip_space()
        if self._peek() != 0:
            self._fail("The document root must not be followed by other values.")
        return value

    def _peek(self) -> int:
        """The next byte; 0 at the end, because rapidjson takes a NUL for the end as well."""
        return self._text[self._at] if self._at < self._end else 0

    def _skip_space(self) -> None:
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise _refusal(reason, self._at if at is None else at)

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise invalid(
                f"request JSON is not plain JSON and has more than {TOKENS} values and escaped characters; "
                "send binary data instead"
            )

    def _value(self, depth: int) -> Any:
        self._spend()
        if depth > DEPTH:
            raise invalid(NESTING_TEXT)
        head = self._peek()
        if head == 0x22:
            return self._string()
        if head == 0x7B:
            return self._object(depth)
        if head == 0x5B:
            return self._array(depth)
        if head in _LITERALS:
            word, value = _LITERALS[head]
            self._expect(word)
            return value
        return self._number()

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._at += 1
        self._skip_space()
        if self._peek() == 0x7D:
            self._at += 1
            return members
        while True:
            if self._peek() != 0x22:
                self._fail("Missing a name for object member.")
            name = self._string()
            self._skip_space()
            if self._peek() != 0x3A:
                self._fail("Missing a colon after a name of object member.")
            self._at += 1
            self._skip_space()
            members.setdefault(name, self._value(depth + 1))
            self._skip_space()
            following = self._peek()
            if following not in (0x2C, 0x7D):
                self._fail("Missing a comma or '}' after an object member.")
            self._at += 1
            if following == 0x7D:
                return members
            self._skip_space()

    def _array(self, depth: int) -> list[Any]:
        elements: list[Any] = []
        self._at += 1
        self._skip_space()
        if self._peek() == 0x5D:
            self._at += 1
            return elements
        while True:
            while self._numbers(elements):
                pass
            self._skip_space()
            elements.append(self._value(depth + 1))
            self._skip_space()
            following = self._peek()
            if following not in (0x2C, 0x5D):
                self._fail("Missing a comma or ']' after an array element.")
            self._at += 1
            if following == 0x5D:
                return elements
            self._skip_space()

    def _numbers(self, elements: list[Any]) -> bool:
        """Takes a run of numbers with the comma behind it. False if no run begins here or something in it is wrong."""
        if self._at < self._no_run_before:
            return False
        run = _NUMBER_RUN.match(self._text, self._at, self._at + _RUN_BYTES)
        comma = self._text.rfind(b",", self._at, run.end())  # type: ignore[union-attr]
        if comma < 0:
            return False
        values = _plain_numbers(b"[" + self._text[self._at : comma] + b"]")
        if values is None:
            self._no_run_before = comma
            return False
        elements += values
        self._at = comma + 1 if values else self._at
        return bool(values)

    def _string(self) -> str:
        self._at += 1
        parts: list[bytes] = []
        while True:
            start = self._at
            self._at = _PLAIN_TEXT.match(self._text, start).end()  # type: ignore[union-attr]
            parts.append(self._text[start : self._at])
            byte = self._peek()
            if byte == 0x22:
                self._at += 1
                return b"".join(parts).decode("utf-8", "surrogateescape")
            if byte == 0:
                self._fail("Missing a closing quotation mark in string.")
            if byte != 0x5C:
                self._fail("Invalid escape character in string.")
            self._spend()
            parts.append(self._escape())

    def _escape(self) -> bytes:
        start = self._at
        name = self._text[start + 1] if start + 1 < self._end else 0
        if name in _ESCAPES:
            self._at += 2
            return bytes((_ESCAPES[name],))
        if name != 0x75:
            self._fail("Invalid escape character in string.", start)
        code = self._hex(start + 2, start)
        self._at = start + 6
        if 0xD800 <= code <= 0xDBFF:
            if self._text[self._at : self._at + 2] != b"\\u":
                self._fail("The surrogate pair in string is invalid.", start)
            low = self._hex(self._at + 2, start)
            if not 0xDC00 <= low <= 0xDFFF:
                self._fail("The surrogate pair in string is invalid.", start)
            self._at += 6
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return chr(code).encode("utf-8", "surrogatepass")

    def _hex(self, at: int, start: int) -> int:
        digits = _HEX.match(self._text, at)
        if digits is None:
            self._fail("Incorrect hex digit after \\u escape in string.", start)
        return int(digits.group(), 16)

    def _number(self) -> int | float:
        start = self._at
        found = _NUMBER.match(self._text, start)
        if found is None:
            return self._named_number()
        self._at = found.end()
        self._check_number_end(start)
        digits = found.group()
        if digits.lstrip(b"-").isdigit() and len(digits) <= 20:
            return int(digits)
        value = float(digits)
        if math.isinf(value):
            self._fail("Number too big to be stored in double.", start)
        return value

    def _check_number_end(self, start: int) -> None:
        """Raises for a point or an exponent without digits, which the pattern does not match."""
        whole = _NUMBER_HEAD.match(self._text, start).end()  # type: ignore[union-attr]
        following = self._peek()
        if following == 0x2E and self._at == whole:
            self._at += 1
            self._fail("Miss fraction part in number.")
        if following in b"eE" and following and not re.search(rb"[eE]", self._text[start : self._at]):
            self._at += 1
            if self._peek() in (0x2B, 0x2D):
                self._at += 1
            self._fail("Miss exponent in number.")

    def _named_number(self) -> float:
        negative = self._peek() == 0x2D
        self._at += negative
        value = math.nan
        if self._peek() == 0x49:
            value = math.inf
            self._expect(b"Inf")
            if self._peek() == 0x69:
                self._expect(b"inity")
        else:
            self._expect(b"NaN")
        return -value if negative else value

    def _expect(self, word: bytes) -> None:
        for byte in word:
            if self._peek() != byte:
                self._fail("Invalid value.")
            self._at += 1


def _plain_numbers(piece: bytes) -> list[int | float] | None:
    """The numbers in an array of numbers; None if json would read one otherwise, or one does not fit a double."""
    try:
        values: list[int | float] = orjson.loads(piece)
    except orjson.JSONDecodeError:
        try:
            values = json.loads(piece)
            infinite = sum(map(math.isinf, values))
        except (ValueError, OverflowError):
            return None
        if infinite != piece.count(b"Infinity"):
            return None
    return values


def _refusal(reason: str, at: int) -> ServeError:
    return malformed(f"failed to parse the request JSON buffer: {reason} at {at}")

"""Values in the text of JSON: elements of tensors, read and written, and names and parameters, written.

**Reading.** `data` may be nested in any way; only the order of the elements counts. The whole list is converted at
once, after one look at which types occur in it: about 50 ns per number. If anything is wrong, the elements are read
again one by one, so that the error is upstream's: that of the first faulty element.

**Writing.** Escapes and floating-point numbers look as rapidjson writes them. Numbers have the fewest digits that read
back as the same double, and of those the closest. In about one number of a hundred rapidjson writes another last digit:
its shortcut misses the closest digits, but never changes the value.
"""

# Compiled by mypyc.
from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NoReturn

import msgspec
import numpy as np
import orjson
from stubserve_stub.wire import strings as wire_strings
from stubserve_stub.wire.datatypes import BF16, BOOL, BY_NUMBER, BYTES, FP16

from stubserve.errors import ServeError, invalid, malformed, unsupported
from stubserve.http.json.values import NESTING_TEXT, is_int, is_uint

MAX_DEPTH = 100

_SHAPE_TEXT = "Unable to parse 'data': Shape does not match true shape of 'data' field"

# By type number, struct's format for an element. With numbers struct accepts what upstream accepts, or fails. The array
# module's "f" turns numbers beyond a float into infinity, as upstream does.
FORMATS = {1: "?", 2: "B", 3: "H", 4: "I", 5: "Q", 6: "b", 7: "h", 8: "i", 9: "q", 11: "f", 12: "d"}
_UNSIGNED = frozenset((2, 3, 4, 5))
_SIGNED = frozenset((6, 7, 8, 9))
_FLOATS = frozenset((11, 12))
# How deep `read_plain` takes lists inside lists of numbers apart; deeper ones are rare.
_NESTING = 4
_read_bools = msgspec.json.Decoder(list[bool]).decode

# Upstream's error for a parameter of a response that is bytes
BYTES_PARAMETER = "Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported"

# How orjson begins the characters that it writes as numbers: some control characters. rapidjson's digits are capitals.
_NUMBERED = b"\\u00"
_BETWEEN = b"\x7f"
_SPECIAL = re.compile(rb'["\\\x00-\x1f]')
_ESCAPED = {
    **{bytes((code,)): b"\\u%04X" % code for code in range(0x20)},
    b'"': b'\\"',
    b"\\": b"\\\\",
    b"\b": b"\\b",
    b"\f": b"\\f",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"\t": b"\\t",
}

# Up to this count Python's own numbers are faster.
_FEW = 32


def read_plain(datatype: int, text: bytes, elements: int) -> bytes | None:
    """The bytes of `elements` numbers or booleans of type number `datatype`, from the text of a list of them.

    None if the list has another number or kind of elements, or is nested more deeply or less evenly than `_flat` reads.
    """
    try:
        if datatype == BOOL:
            values = _read_bools(text)
            return bytes(values) if len(values) == elements else None
        if datatype in FORMATS:
            # struct packs a boolean as a number. Numbers have none of these letters.
            if b"u" in text or b"s" in text:
                return None
            numbers = orjson.loads(text)
            if type(numbers) is not list:
                return None
            if type(numbers[0]) is list:
                numbers = _flat(numbers)
            return layout(datatype, elements).pack(*numbers)
    except (
        orjson.JSONDecodeError,
        msgspec.DecodeError,
        UnicodeError,
        struct.error,
        TypeError,
        LookupError,
        OverflowError,
        RecursionError,
    ):
        pass
    return None


def read_strings(text: bytes, elements: int) -> list[bytes] | None:
    """As `read_plain`, for a list of strings: its elements."""
    try:
        texts = orjson.loads(text)
        if type(texts) is not list or len(texts) != elements:
            return None
        return list(map(str.encode, texts))
    except (orjson.JSONDecodeError, RecursionError, TypeError):
        return None


@lru_cache(maxsize=2048)
def layout(datatype: int, elements: int) -> struct.Struct:
    """The struct that packs `elements` elements of a type, by its number."""
    return struct.Struct(f"{elements}{FORMATS[datatype]}")


def _flat(values: list[Any]) -> list[Any]:
    """The elements of a list of lists of one depth. Raises TypeError or IndexError for most other lists."""
    for _ in range(_NESTING):
        values = list(chain.from_iterable(values))
        if type(values[0]) is not list:
            break
    return values


def read(name: str, datatype: int, data: list[Any], elements: int) -> bytes:
    """The bytes of `elements` elements of type number `datatype` for input `name`. Raises ServeError.

    For BYTES the number of strings is not checked here: upstream leaves that to later checks.
    """
    if datatype in (FP16, BF16):
        raise invalid(
            f"receiving {BY_NUMBER[datatype].name} data via JSON is not supported. "
            f"Please use the binary data format for input {name}"
        )
    if datatype == BYTES and len(data) == 1 and type(data[0]) is str:
        return _strings(data, {str})
    flat, kinds = _flatten(data)
    if datatype == BYTES:
        return _strings(flat, kinds)
    if len(flat) != elements or not kinds <= _accepted(datatype):
        _explain(datatype, flat, elements)
    try:
        if datatype == BOOL:
            return bytes(flat)
        if datatype in _FLOATS:
            # Numbers beyond a float become infinite, as in upstream.
            return array(FORMATS[datatype], flat).tobytes()
        wide = array("Q" if datatype in _UNSIGNED else "q", flat)
    except OverflowError:
        _explain(datatype, flat, elements)
    return np.frombuffer(wide, "u8").astype(BY_NUMBER[datatype].numpy).tobytes()


def _accepted(datatype: int) -> frozenset[type]:
    if datatype == BOOL:
        return frozenset((bool,))
    if datatype in _UNSIGNED or datatype in _SIGNED:
        return frozenset((int,))
    return frozenset((int, float))


def _flatten(data: list[Any]) -> tuple[list[Any], set[type]]:
    """The elements in their order, and the set of their types."""
    flat = data
    kinds = set(map(type, flat))
    depth = 1
    while kinds == {list}:
        depth += 1
        if depth >= MAX_DEPTH:
            raise invalid(NESTING_TEXT)
        flat = list(chain.from_iterable(flat))
        kinds = set(map(type, flat))
    if list in kinds:
        elements: list[Any] = []
        _collect(flat, depth, elements)
        return elements, set(map(type, elements))
    return flat, kinds


def _collect(data: list[Any], depth: int, elements: list[Any]) -> None:
    """The slow way, for lists in which elements and lists stand side by side."""
    if depth >= MAX_DEPTH:
        raise invalid(NESTING_TEXT)
    for item in data:
        if type(item) is list:
            _collect(item, depth + 1, elements)
        else:
            elements.append(item)


def _strings(flat: list[Any], kinds: set[type]) -> bytes:
    if not kinds <= {str}:
        raise malformed("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
    try:
        elements = list(map(str.encode, flat))
    except UnicodeEncodeError:
        # Bytes that are not UTF-8 pass as they came.
        elements = [text.encode("utf-8", "surrogateescape") for text in flat]
    return wire_strings.join(elements)


def _explain(datatype: int, flat: list[Any], elements: int) -> NoReturn:
    for at, element in enumerate(flat):
        if at == elements:
            raise malformed(_SHAPE_TEXT)
        if datatype == BOOL:
            if not isinstance(element, bool):
                raise _not("boolean", "boolean")
        elif datatype in _UNSIGNED:
            if not is_uint(element):
                raise _not("unsigned-integer", "unsigned-integer")
        elif datatype in _SIGNED:
            if not is_int(element):
                raise _not("signed-integer", "signed-integer")
        elif type(element) not in (int, float):
            raise _not("number", "double")
    raise malformed(_SHAPE_TEXT)


def _not(kind: str, access: str) -> ServeError:
    return malformed(f"Unable to parse 'data': attempt to access JSON non-{kind} as {access}")


def string(text: str) -> bytes:
    """A text in quotes; bytes that came in without being UTF-8 go out as those bytes."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return b'"%b"' % text.encode()
    return quoted(text.encode("utf-8", "surrogateescape"))


def quoted(text: bytes) -> bytes:
    """Bytes in quotes: quotes, backslashes and control characters are escaped, all else stays as it is."""
    try:
        found = orjson.dumps(text.decode())
        if _NUMBERED not in found:
            return found
    except UnicodeDecodeError:
        pass
    return b'"%b"' % _SPECIAL.sub(lambda found: _ESCAPED[found[0]], text)


def strings(elements: Sequence[bytes]) -> bytes:
    """An array of strings."""
    if not elements:
        return b"[]"
    if len(elements) == 1:
        return b"[%b]" % quoted(elements[0])
    # All at once, with a mark between two, if no string has the mark or a control character that is left then.
    text = _BETWEEN.join(elements).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    text = text.replace(b"\n", b"\\n").replace(b"\r", b"\\r").replace(b"\t", b"\\t")
    if np.frombuffer(text, np.uint8).min() >= 0x20:
        found = text.replace(_BETWEEN, b'","')
        if len(found) - len(text) == 2 * (len(elements) - 1):
            return b'["%b"]' % found
    return b"[%b]" % b",".join(map(quoted, elements))


def floats(values: np.ndarray[Any, Any] | tuple[float, ...]) -> bytes:
    """An array of numbers, each the shortest that reads back as the same double, always with a point or an exponent.

    `values` are doubles: Python's own, or a one-dimensional array without gaps.
    """
    # orjson differs from rapidjson in exponents and non-finite numbers, and only those have an e or a null.
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"e" not in text and b"n" not in text:
        return text
    return b"[%b]" % b",".join(map(double, values if isinstance(values, tuple) else values.tolist()))


def integers(values: np.ndarray[Any, Any]) -> bytes:
    """An array of whole numbers; `values` has one dimension and any integer type of numpy, and need not be aligned."""
    if values.size <= _FEW:
        return orjson.dumps(values.tolist())
    values = np.require(values, requirements="A")
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)


def double(value: float) -> bytes:
    """One number, with an exponent only if it would otherwise have over 21 digits or six zeros after the point."""
    if not math.isfinite(value):
        return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa.encode()
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    # The number is 0.<digits> times ten to the power of `point`.
    point = len(whole) + int(exponent)
    if len(digits) <= point <= 21:
        return f"{sign}{digits}{'0' * (point - len(digits))}.0".encode()
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}".encode()
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}".encode()
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1}".encode()


def scalar(value: Any) -> bytes:
    """A parameter: a bool, int, float or str. Raises ServeError for bytes."""
    if isinstance(value, float):
        return double(value)
    if isinstance(value, str):
        return string(value)
    # First and apart: compiled, a value that may be either becomes a number.
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int):
        return orjson.dumps(value)
    raise unsupported(BYTES_PARAMETER)

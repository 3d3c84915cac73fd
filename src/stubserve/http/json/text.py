"""Writing JSON the way rapidjson writes it: its escapes, and its form of floating-point numbers.

Numbers have the fewest digits that read back as the same double, and of those the closest. In about one number of a
hundred rapidjson writes another last digit: its shortcut misses the closest digits, but never changes the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from stubserve.errors import unsupported

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

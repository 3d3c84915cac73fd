"""Strings in JSON, written the way rapidjson writes them.

The parent writes them into its replies. Where only a client is to see the strings of an output, as JSON, its stub
writes them: it has them one by one, where the parent would have to cut them apart first, and all wait for the parent.
"""

from __future__ import annotations

import re
from typing import List

import numpy as np

# From so many bytes on numpy is quicker to find out that there are no control characters.
_LONG = 1024

_SPECIAL = re.compile(rb'["\\\x00-\x1f]')
# What hardly any text has of that, but for the NUL
_RARE = bytes(set(range(1, 0x20)) - set(b"\n\r\t"))
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


def string(text: bytes) -> bytes:
    """Bytes in quotes: quotes, backslashes and control characters are escaped, everything else is left as it is."""
    if _SPECIAL.search(text) is None:
        return b'"%b"' % text
    return b'"%b"' % _SPECIAL.sub(lambda found: _ESCAPED[found[0]], text)


def array(elements: List[bytes]) -> bytes:
    """An array of strings."""
    if not elements:
        return b"[]"
    # All at once, with NULs between them where they have none of their own.
    whole = b"\0".join(elements)
    between = len(elements) - 1
    plain = len(whole) >= _LONG and np.count_nonzero(np.frombuffer(whole, np.uint8) < 0x20) == between
    if not plain and (whole.count(b"\0") != between or len(whole.translate(None, _RARE)) < len(whole)):
        return b"[%b]" % b",".join(map(string, elements))
    whole = whole.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    if not plain:
        whole = whole.replace(b"\n", b"\\n").replace(b"\r", b"\\r").replace(b"\t", b"\\t")
    return b'["%b"]' % whole.replace(b"\0", b'","')

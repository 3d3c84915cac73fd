"""Header blocks of HTTP/2 as lists of fields (HPACK, RFC 7541), in pieces and with a bound.

Both sides of a connection keep a table that every block may change. So a block must be read to its end even if its
request is refused: otherwise the next block means something else, and all other streams of the connection are lost.
`hpack`'s own decoder gives up in the middle of a block that is too large. This one goes on and keeps only what the
table needs; a string that is too long to keep and for the table is skipped. So a client's metadata over the limit costs
only its own call.

Costs: about a microsecond for a field, 0.2 µs for a Huffman-coded byte (`hpack`'s tables). A refused block may go on
for MAX_REFUSED_FIELDS fields, and MAX_REFUSED_BYTES bytes that the table needs; then the connection ends. The state
between two pieces is less than MAX_LIST_BYTES.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from stubserve.grpc.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault

# The size of a list as HTTP/2 counts it: names, values and FIELD_BYTES for each field
MAX_LIST_BYTES = 64 * 1024
MAX_FIELDS = 512
FIELD_BYTES = 32
MAX_REFUSED_FIELDS = 4096
MAX_REFUSED_BYTES = 64 * 1024
TABLE_BYTES = 4096

# A coded string of this length decodes to more bytes than the table: no symbol is longer than 30 bits.
_BEYOND_TABLE = TABLE_BYTES * 30 // 8
_STATIC = HeaderTable.STATIC_TABLE
_MAX_INTEGER_BYTES = 5

Field = tuple[bytes, bytes]


class Fields(NamedTuple):
    """A block's fields in order; only the first, if there were too many or too long ones."""

    fields: list[Field]
    too_large: bool


class _Incomplete(Exception):
    """The rest of a field is in the next piece."""


class FieldDecoder:
    """The decoder of one connection. `changes` grows when a block changes its table, and so the meaning of bytes."""

    def __init__(self) -> None:
        # The table
        self._entries: deque[Field] = deque()
        self._size = 0
        self._limit = TABLE_BYTES
        self.changes = 0
        # The current block
        self._fields: list[Field] = []
        self._count = 0
        self._list_bytes = 0
        self._too_large = False
        self._refused_bytes = 0
        self._rest = b""
        # Bytes of a long string still to be dropped, and whether the string is a name, which its value follows
        self._drop = 0
        self._nameless = False

    def begin(self) -> None:
        """Begins a block with its first piece."""
        self._fields = []
        self._count = self._list_bytes = self._refused_bytes = self._drop = 0
        self._too_large = self._nameless = False
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Takes a piece of the block. Raises ConnectionFault: after that no other block can be read."""
        if self._drop:
            dropped = min(self._drop, len(piece))
            self._drop -= dropped
            piece = piece[dropped:]
        data = self._rest + piece if self._rest else piece
        at, end = 0, len(data)
        while at < end:
            start = at
            try:
                at = self._take(data, at)
            except (_Incomplete, IndexError):
                at = start
                break
        if at > end:
            self._drop, at = at - end, end
        self._rest = data[at:]

    def end(self) -> Fields:
        """The block is complete. Raises ConnectionFault."""
        if self._rest or self._drop or self._nameless:
            raise _broken("a header block ends within a field")
        return Fields(self._fields, self._too_large)

    # One field

    def _take(self, data: bytes, at: int) -> int:
        """Takes the field at `at`; the position behind it. If that is behind the data, the rest is to be dropped."""
        if self._nameless:
            at = self._string(data, at, keep=False)[1]
            self._nameless = False
            return at
        byte = data[at]
        if byte & 0x80:
            index, at = _integer(data, at, 0x7F)
            name, value = self._entry(index)
            self._add(name, value)
            return at
        if byte & 0xE0 == 0x20:
            limit, at = _integer(data, at, 0x1F)
            self._resize(limit)
            return at
        indexed = bool(byte & 0x40)
        index, at = _integer(data, at, 0x3F if indexed else 0x0F)
        found: bytes | None
        given: bytes | None
        if index:
            found = self._entry(index)[0]
        else:
            found, at = self._string(data, at, keep=indexed or not self._too_large)
            if at > len(data):
                self._nameless = True
                self._refuse(indexed)
                return at
        given, at = self._string(data, at, keep=indexed or not self._too_large)
        if found is None or given is None:
            self._refuse(indexed)
            return at
        if indexed:
            self._remember(found, given)
        self._add(found, given)
        return at

    def _string(self, data: bytes, at: int, keep: bool) -> tuple[bytes | None, int]:
        """A string, or None if it is too long or `keep` is false; and the position behind it."""
        coded = data[at] & 0x80
        length, at = _integer(data, at, 0x7F)
        end = at + length
        if length > _BEYOND_TABLE and (not keep or self._too_large or self._list_bytes + length > MAX_LIST_BYTES):
            return None, end
        if end > len(data):
            raise _Incomplete
        if not keep:
            return None, end
        if self._too_large:
            self._refused_bytes += length
            if self._refused_bytes > MAX_REFUSED_BYTES:
                raise ConnectionFault(ENHANCE_YOUR_CALM, "a header block without end")
        if not coded:
            return data[at:end], end
        try:
            return decode_huffman(data[at:end]), end
        except HPACKDecodingError as error:
            raise _broken(str(error)) from None

    def _add(self, name: bytes, value: bytes) -> None:
        self._count += 1
        self._list_bytes += len(name) + len(value) + FIELD_BYTES
        if self._list_bytes > MAX_LIST_BYTES or self._count > MAX_FIELDS:
            self._too_large = True
            if self._count > MAX_REFUSED_FIELDS:
                raise ConnectionFault(ENHANCE_YOUR_CALM, "a header block without end")
        else:
            self._fields.append((name, value))

    def _refuse(self, indexed: bool) -> None:
        """Refuses a field of which a string was too long to be read."""
        self._too_large = True
        self._add(b"", b"")
        if indexed:
            # An entry that does not fit empties the table.
            self._forget_to(0)

    # The table

    def _entry(self, index: int) -> Field:
        at = index - 1
        if 0 <= at < len(_STATIC):
            return _STATIC[at]
        at -= len(_STATIC)
        if 0 <= at < len(self._entries):
            return self._entries[at]
        raise _broken(f"there is no entry {index} in the table")

    def _remember(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        size = len(name) + len(value) + FIELD_BYTES
        self._forget_to(max(self._limit - size, 0))
        if size <= self._limit:
            self._entries.appendleft((name, value))
            self._size += size

    def _resize(self, limit: int) -> None:
        if self._count:
            raise _broken("the table's size changes within a block")
        if limit > TABLE_BYTES:
            raise _broken(f"a table of {limit} bytes, where {TABLE_BYTES} are offered")
        # Also if no entry is removed: with another limit later entries fit or not, so bytes change their meaning.
        self.changes += 1
        self._limit = limit
        self._forget_to(limit)

    def _forget_to(self, size: int) -> None:
        self.changes += 1
        while self._size > size:
            name, value = self._entries.pop()
            self._size -= len(name) + len(value) + FIELD_BYTES


def _integer(data: bytes, at: int, mask: int) -> tuple[int, int]:
    """The number that begins in the `mask` bits of the byte at `at`, and the position behind it."""
    value = data[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = data[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _broken("a number of more than 32 bits")


def _broken(text: str) -> ConnectionFault:
    return ConnectionFault(COMPRESSION_ERROR, text)

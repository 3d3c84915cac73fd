"""Bodies in chunked transfer coding: finds where they end, and takes the coding off.

uvicorn's parser does this for the routes it handles, but does not tell where a message ends in the bytes it was given;
a connection that hands single requests to different handlers needs to know.
"""

from __future__ import annotations

from stubserve.http.head import BadRequest

MAX_CHUNKS = 65536
_MAX_LINE = 4096


class TooManyChunks(Exception):
    """More non-empty chunks than upstream allows."""

    def __init__(self) -> None:
        super().__init__(
            f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. Send fewer or larger HTTP chunks."
        )


class ChunkedBody:
    """Decodes one body. `done` when its last chunk and trailer have been seen."""

    def __init__(self) -> None:
        self.done = False
        self._chunks = 0
        self._left = 0
        self._line = bytearray()
        # What the next line is: a chunk's size, the end of its data, or a part of the trailer
        self._expect = "size"

    def feed(self, data: bytes, position: int) -> tuple[list[bytes], int]:
        """Decodes from `position` on: (pieces of the body, position behind what was used).

        Raises BadRequest for bytes that are no chunked coding, TooManyChunks.
        """
        pieces = []
        while position < len(data) and not self.done:
            if self._left:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\n", position)
            self._line += data[position : end if end >= 0 else len(data)]
            if len(self._line) > _MAX_LINE:
                raise BadRequest("Invalid chunk")
            if end < 0:
                return pieces, len(data)
            position = end + 1
            line, self._line = bytes(self._line), bytearray()
            if not line.endswith(b"\r"):
                raise BadRequest("Invalid chunk")
            self._on_line(line[:-1])
        return pieces, position

    def _on_line(self, line: bytes) -> None:
        if self._expect == "size":
            digits = line.partition(b";")[0].strip()
            if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
                raise BadRequest("Invalid chunk size")
            self._left = int(digits, 16)
            if self._left:
                self._chunks += 1
                if self._chunks > MAX_CHUNKS:
                    raise TooManyChunks
                self._expect = "end"
            else:
                self._expect = "trailer"
        elif self._expect == "end":
            if line:
                raise BadRequest("Invalid chunk")
            self._expect = "size"
        elif not line:
            self.done = True

"""A client of HTTP/2 that sends what it is told to, right or wrong, and reads frames."""

from __future__ import annotations

import socket

from hpack import Decoder, Encoder

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.frames import frame
from tests.real_server import PATIENCE_S, Serving
from tests.server.grpc_calls import SERVICE


class Raw:
    """A client that sends what it is told to, and reads frames."""

    def __init__(self, server: Serving) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=PATIENCE_S)
        self._file = self.socket.makefile("rb")
        self._encoder = Encoder()
        self._decoder = Decoder()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def greet(self, settings: dict[int, int] | None = None) -> None:
        self.socket.sendall(frames.PREFACE + frames.settings(settings or {}))

    def encode(self, fields: list[tuple[str, str]], huffman: bool = True) -> bytes:
        return self._encoder.encode(fields, huffman=huffman)

    def head(
        self, stream: int, path: str = f"{SERVICE}/ModelInfer", flags: int = frames.END_HEADERS, **more: str
    ) -> bytes:
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
        fields += [("te", "trailers"), ("content-type", "application/grpc")]
        block = self._encoder.encode([*fields, *[(name.replace("_", "-"), value) for name, value in more.items()]])
        return frame(frames.HEADERS, flags, stream, block)

    def read(self) -> tuple[int, int, int, bytes] | None:
        """Kind, flags, stream and payload; None when the server has closed the connection."""
        try:
            head = self._file.read(frames.HEAD_BYTES)
            if len(head) < frames.HEAD_BYTES:
                return None
            word, flags, stream = frames.HEAD.unpack(head)
            return word & 0xFF, flags, stream, self._file.read(word >> 8)
        except ConnectionError:
            return None

    def until(self, kind: int) -> tuple[int, int, int, bytes]:
        """The next frame of this kind."""
        while (found := self.read()) is not None:
            if found[0] == kind:
                return found
        raise AssertionError(f"the connection ended without a frame of kind {kind}")

    def goodbye(self) -> tuple[int, str]:
        """The error code and text with which the server ends the connection."""
        _, _, _, payload = self.until(frames.GOAWAY)
        assert self.read() is None
        return frames.UINT32.unpack(payload[4:8])[0], payload[8:].decode()

    def answer(self) -> tuple[bytes, dict[str, str]]:
        """The data and all headers of the next stream that ends."""
        data = bytearray()
        headers: dict[str, str] = {}
        while True:
            found = self.read()
            assert found is not None
            kind, flags, _, payload = found
            if kind == frames.DATA:
                data += payload
            elif kind == frames.HEADERS:
                headers |= dict(self._decoder.decode(payload))
            if kind in (frames.DATA, frames.HEADERS) and flags & frames.END_STREAM:
                return bytes(data), headers


def data(stream: int, payload: bytes, flags: int = frames.END_STREAM) -> bytes:
    return frame(frames.DATA, flags, stream, payload)


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message

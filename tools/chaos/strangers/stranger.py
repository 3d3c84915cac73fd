"""A machine that a server asks: it answers some requests well, and tells lies to others.

Each lie is a function from a connection on which a request has come. It may go on for as long as the server listens.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..world import HOST

LENGTH = "Inference-Header-Content-Length"
FRAMES = 50
# How long a slow lie pauses between two bytes, and any lie between two pieces: others use the machine, too. It ends by
# itself when nobody may listen any more.
PAUSE_S, PIECE_S, MOST_S = 0.2, 0.003, 60.0
PIECE = bytes(1 << 16)
MANY = 20_000
# Samples that an index of some bytes names
SAMPLES = 50_000_000

Lie = Callable[[socket.socket], None]


class Stranger:
    """Listens on a port of loopback. `asked` counts requests by the word that their path ends with, and `under_way`
    those that it is still answering. At `deaf_port` nobody accepts a connection, and nobody refuses one.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.asked: Counter[str] = Counter()
        self.under_way = 0
        self._guard = threading.Lock()
        self._listener = socket.create_server((HOST, 0), backlog=1000)
        self.port: int = self._listener.getsockname()[1]
        self._deaf = socket.create_server((HOST, 0), backlog=0)
        self.deaf_port: int = self._deaf.getsockname()[1]
        self._queued = [_begin(self.deaf_port) for _ in range(3)]
        self._films = _films(folder, self.port, self.deaf_port)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def sources(self) -> list[str]:
        """Addresses of video that is none."""
        names = [name for name in self._films if name != "clip.mp4"]
        return [f"http://{HOST}:{self.deaf_port}/", *(f"http://{HOST}:{self.port}/{name}" for name in names)]

    @property
    def clip(self) -> str:
        """The address of a video that is one."""
        return f"http://{HOST}:{self.port}/clip.mp4"

    def close(self) -> None:
        for one in (self._listener, self._deaf, *self._queued):
            one.close()

    def _accept(self) -> None:
        chances = (random.Random(number) for number in itertools.count())
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection, next(chances)), daemon=True).start()

    def _serve(self, connection: socket.socket, chance: random.Random) -> None:
        with connection, contextlib.suppress(OSError, ValueError), connection.makefile("rb") as file:
            while request := file.readline():
                path = request.split()[1].decode()
                headers = dict(line.decode().rstrip().lower().split(": ", 1) for line in _lines(file))
                body = file.read(int(headers.get("content-length", 0)))
                word = path.rpartition("/")[2]
                with self._guard:
                    self.asked[word] += 1
                    self.under_way += 1
                try:
                    if word == "ready":
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    elif path == "/v2/models/peer/infer":
                        connection.sendall(_truth(body, int(headers[LENGTH.lower()])))
                    elif word == "infer":
                        chance.choice(LIES)(connection)
                        return
                    else:
                        self._show(connection, word, chance)
                        return
                finally:
                    with self._guard:
                        self.under_way -= 1

    def _show(self, connection: socket.socket, name: str, chance: random.Random) -> None:
        film = self._films.get(name)
        if film is None:
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif isinstance(film, bytes):
            connection.sendall(_answer(film))
        else:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            _pour(connection, film())


def _lines(file: Iterator[bytes]) -> Iterator[bytes]:
    return iter(lambda: next(file).rstrip(b"\r\n"), b"")


def _begin(port: int) -> socket.socket:
    """A connection that is being made, until the queue of the port is full."""
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex((HOST, port))
    return one


def _answer(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "\r\n"]
    return "\r\n".join(lines).encode() + body


def _output(name: str = "Y", datatype: str = "FP32", shape: object = (1, 1), size: object = 4) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def _told(outputs: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps({"model_name": "peer", "model_version": "1", "outputs": outputs}).encode()
    return _answer(text + data, f"{LENGTH}: {len(text) if length is None else length}")


def _truth(body: bytes, length: int) -> bytes:
    """What the model `works` answers."""
    shape = json.loads(body[:length])["inputs"][0]["shape"]
    data = (2 * np.frombuffer(body[length:], np.float32) + 1).tobytes()
    return _told([_output(shape=shape, size=len(data))], data)


def _pour(connection: socket.socket, pieces: Iterator[bytes], pause_s: float = PIECE_S) -> None:
    until = time.monotonic() + MOST_S
    for piece in pieces:
        connection.sendall(piece)
        time.sleep(pause_s)
        if time.monotonic() > until:
            return


def _endless(head: bytes, piece: bytes, pause_s: float = PIECE_S) -> Lie:
    return lambda connection: _pour(connection, itertools.chain([head], itertools.repeat(piece)), pause_s)


def _at_once(content: bytes) -> Lie:
    return lambda connection: connection.sendall(content)


OK, CHUNKED = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
# What each of them says is no answer of the model, so none may be passed on.
LIES: list[Lie] = [
    _endless(CHUNKED, b"10000\r\n" + PIECE + b"\r\n"),
    _endless(OK + b"\r\n", PIECE),
    _endless(OK, b"X: " + b"x" * 5000 + b"\r\n"),
    _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", PAUSE_S),
    _endless(OK + b"Content-Length: 100000\r\n\r\n", b"{", PAUSE_S),
    _endless(b"", b"x", PAUSE_S),
    _endless(OK + b"Content-Length: 1000000000000\r\n\r\n", PIECE),
    _at_once(b"HTTP/1.1 500 No\r\nContent-Length: 5000012\r\n\r\n" + b'{"error":"' + b"x" * 5_000_000 + b'"}'),
    _at_once(b""),
    _at_once(OK + b"Content-Length: 1000\r\n\r\n{"),
    _at_once(b"HTTP/9.9 banana\r\n\r\n"),
    _at_once(_told([_output()], bytes(4))[9:]),
    _at_once(_answer(b"[" * 100_000)),
    _at_once(_answer(b"[1]")),
    _at_once(_told([_output()], bytes(4), length=-5)),
    _at_once(_told([_output()], bytes(4), length=1 << 40)),
    _at_once(_told([_output(size=-4)], bytes(4))),
    _at_once(_told([_output(size="4")], bytes(4))),
    _at_once(_told([_output(size=8)], bytes(4))),
    _at_once(_told([_output(shape=[1, -1])], bytes(4))),
    _at_once(_told([_output(shape=[1 << 62, 4])], bytes(4))),
    _at_once(_told([_output(shape="11")], bytes(4))),
    _at_once(_told([_output(datatype="FP33")], bytes(4))),
    _at_once(_told([_output(datatype="INT32")], bytes(4))),
    _at_once(_told([_output(datatype="BYTES")], b"\xff\xff\xff\xff")),
    _at_once(_told([_output(), _output()], bytes(8))),
    _at_once(_told({"Y": 1})),
    _at_once(_told([_output()], bytes(4)).replace(b"200", b"204")),
]


def _films(folder: Path, port: int, deaf_port: int) -> dict[str, bytes | Callable[[], Iterator[bytes]]]:
    from tests.video_sources import clip  # needs PyAV, which not each user of chaos has

    # The crowd shares one process, which would be slow to read large pictures.
    good = clip(folder / "clip.mp4", frames=FRAMES, width=64, height=48, movflags="faststart").read_bytes()
    return {
        "clip.mp4": good,
        "index.mp4": _with_index(good),
        "cut.mp4": good[: len(good) // 2],
        "noise.mp4": random.Random(0).randbytes(100_000),
        "empty.mp4": b"",
        "deaf.m3u8": _master(f"http://{HOST}:{deaf_port}/{number}.m3u8" for number in range(30)),
        "crowd.m3u8": _master(f"http://{HOST}:{port}/nobody-{number}.m3u8" for number in range(MANY)),
        "itself.m3u8": _master([f"http://{HOST}:{port}/itself.m3u8"]),
        "endless.m3u8": lambda: itertools.chain([_MEDIA], (b"#EXTINF:1,\n%d.ts\n" % one * 1000 for one in range(MANY))),
        "endless.mp4": lambda: itertools.chain([good[:1000]], itertools.repeat(PIECE)),
        "slow.mp4": lambda: _slowly(good),
    }


_MEDIA = b"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n"


def _master(addresses: Iterator[str] | list[str]) -> bytes:
    return ("#EXTM3U\n" + "".join(f"#EXT-X-STREAM-INF:BANDWIDTH=1\n{one}\n" for one in addresses)).encode()


def _with_index(good: bytes) -> bytes:
    """A file whose index has as many samples as no file of its size."""
    made = bytearray(good)
    for box, at, *numbers in ((b"stsz", 8, 1, SAMPLES), (b"stts", 12, SAMPLES), (b"stsc", 16, SAMPLES)):
        struct.pack_into(f">{len(numbers)}I", made, good.index(box) + at, *numbers)
    return bytes(made)


def _slowly(content: bytes) -> Iterator[bytes]:
    for at in range(len(content)):
        time.sleep(PAUSE_S)
        yield content[at : at + 1]

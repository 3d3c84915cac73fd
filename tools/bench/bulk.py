"""The load generator for large tensors: one request after the other, sent whole and read away, on each connection.

wrk reads an answer 8 KiB at a time and needs 0.39 ms of processor time for 1 MiB there and back. On a machine whose
cores the server needs, that is what would be measured. Here a request is one `sendall` of the same bytes, an answer is
read into one buffer that stays in the processor's cache, and nobody looks at it: 0.25 ms, nearly all the kernel's.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from itertools import cycle

from .payloads import Payload
from .wrk import Load, LoadError

BUFFER = 256 << 10
TIMEOUT_S = 30
LONGEST_HEAD = 4096


def run(port: int, payload: Payload, connections: int, seconds: int, others: Sequence[Payload] = ()) -> Load:
    """Posts `payload`, with `others` in turn, over `connections` connections, a thread each.

    Raises LoadError unless all went well.
    """
    clients = [_Client(port, (payload, *others), memoryview(bytearray(BUFFER))) for _ in range(connections)]
    threads = [threading.Thread(target=client.run, args=(time.monotonic() + seconds,)) for client in clients]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken_s = time.monotonic() - begin
    for client in clients:
        if client.failure:
            raise LoadError(client.failure)
    times = sorted(t for client in clients for t in client.times_s)
    return Load(
        requests=len(times),
        requests_per_s=len(times) / taken_s,
        p50_us=times[len(times) // 2] * 1e6,
        p99_us=times[len(times) * 99 // 100] * 1e6,
    )


def message(port: int, payload: Payload) -> bytes:
    """The whole of a request."""
    headers = {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(payload.body)), **payload.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {payload.path} HTTP/1.1\r\n{head}\r\n".encode() + payload.body


class _Client:
    """One connection. `times_s` are how long its requests took; after a `failure` it stops."""

    def __init__(self, port: int, payloads: Sequence[Payload], buffer: memoryview) -> None:
        self.times_s: list[float] = []
        self.failure = ""
        self._port = port
        self._buffer = buffer
        self._shortest = min(payload.shortest_answer for payload in payloads)
        self._requests = cycle([message(port, payload) for payload in payloads])

    def run(self, until: float) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), TIMEOUT_S) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # Python's timeout polls before every call, the kernel's does not.
                connection.setblocking(True)
                for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    connection.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", TIMEOUT_S, 0))
                now = time.monotonic()
                while not self.times_s or now < until:
                    connection.sendall(next(self._requests))
                    self._read_answer(connection)
                    begin, now = now, time.monotonic()
                    self.times_s.append(now - begin)
        except (OSError, LoadError) as error:
            self.failure = f"a request failed: {error}"

    def _read_answer(self, connection: socket.socket) -> None:
        head = b""
        while (end := head.find(b"\r\n\r\n")) < 0:
            part = connection.recv(LONGEST_HEAD)
            if not part or len(head) > LONGEST_HEAD:
                raise LoadError(f"no end of the answer's head: {head[:200]!r}")
            head += part
        lines = head[:end].lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), -1)
        if b" 200" not in lines[0] or length < self._shortest:
            raise LoadError(f"the answer begins {head[:200]!r}, a right one has at least {self._shortest} bytes")
        left = length - (len(head) - end - 4)
        while left:
            read = connection.recv_into(self._buffer[:left])
            if not read:
                raise LoadError(f"the connection was closed with {left} bytes to come")
            left -= read

"""A raw HTTP/1.1 client: it sends bytes exactly as given and reads what comes back.

An ordinary client library repairs, retries and refuses; a conformance suite must not. Nothing here interprets a
request. A response is read only as far as its framing says (Content-Length, chunked, or until the peer closes), so a
server that frames wrongly shows up as ``malformed`` or ``timeout`` and not as an exception of the client.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field

# Gap between the parts of one request: long enough that a server reads them as separate packets.
PART_GAP_S = 0.05
# How long a server gets to close a connection that a case expects it to close.
CLOSE_WAIT_S = 1.0


@dataclass(frozen=True)
class Response:
    """One final response. ``interim`` holds the 1xx status codes that came before it."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    interim: tuple[int, ...] = ()

    def header(self, name: str) -> str | None:
        """The first value of header ``name`` (any case), or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True)
class Answer:
    """What one connection gave back.

    ``ending`` is ``read`` when every expected response arrived, ``closed`` when the peer closed the connection after
    them (only known where the case asked), or what stopped the reading: ``early close``, ``timeout``, ``reset``,
    ``malformed: <why>``.
    """

    responses: tuple[Response, ...]
    ending: str


class _Malformed(Exception):
    pass


@dataclass
class _Reader:
    sock: socket.socket
    deadline: float
    buffer: bytearray = field(default_factory=bytearray)

    def _fill(self) -> bool:
        """Reads once; False at end of stream. Raises TimeoutError past the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.sock.settimeout(left)
        data = self.sock.recv(1 << 16)
        self.buffer += data
        return bool(data)

    def until(self, mark: bytes) -> bytes:
        while (at := self.buffer.find(mark)) < 0:
            if not self._fill():
                raise EOFError
        taken = bytes(self.buffer[:at])
        del self.buffer[: at + len(mark)]
        return taken

    def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            if not self._fill():
                raise EOFError
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    def rest(self) -> bytes:
        while self._fill():
            pass
        taken = bytes(self.buffer)
        self.buffer.clear()
        return taken

    def at_end(self) -> bool:
        """True when the peer has closed and left nothing unread."""
        try:
            return not self.buffer and not self._fill()
        except TimeoutError:
            return False


def exchange(
    port: int, parts: tuple[bytes, ...], methods: tuple[str, ...], timeout: float, expect_close: bool = False
) -> Answer:
    """Sends ``parts`` over one new connection and reads one response per entry of ``methods``.

    ``methods`` are the methods of the requests inside ``parts``: the answer to HEAD has no body whatever its headers
    say. With ``expect_close`` the ending tells whether the server closed the connection afterwards.
    """
    responses: list[Response] = []
    deadline = time.monotonic() + timeout
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = _Reader(sock, deadline)
            try:
                for number, part in enumerate(parts):
                    if number:
                        time.sleep(PART_GAP_S)
                    sock.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                # The server may answer and close before it has read everything: its answer still counts.
                pass
            # One by one, so that what was read before a failure is kept.
            for method in methods:
                responses.append(_read_response(reader, method))  # noqa: PERF401
            ending = "read"
            if expect_close:
                reader.deadline = time.monotonic() + CLOSE_WAIT_S
                ending = "closed" if reader.at_end() else "open"
    except TimeoutError:
        ending = "timeout"
    except EOFError:
        ending = "early close"
    except (ConnectionResetError, BrokenPipeError):
        ending = "reset"
    except OSError as error:
        ending = f"no connection: {error.strerror}"
    except _Malformed as error:
        ending = f"malformed: {error}"
    return Answer(tuple(responses), ending)


def _read_response(reader: _Reader, method: str) -> Response:
    interim: list[int] = []
    while True:
        status, reason, headers = _read_head(reader)
        if status >= 200:
            break
        interim.append(status)
    body = _read_body(reader, method, status, headers)
    return Response(status, reason, tuple(headers), body, tuple(interim))


def _read_head(reader: _Reader) -> tuple[int, str, list[tuple[str, str]]]:
    lines = reader.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    code, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not code.isdigit():
        raise _Malformed(f"status line {lines[0]!r}")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise _Malformed(f"header line {line!r}")
        headers.append((name.strip(), value.strip()))
    return int(code), reason, headers


def _read_body(reader: _Reader, method: str, status: int, headers: list[tuple[str, str]]) -> bytes:
    fields = {name.lower(): value for name, value in headers}
    if method == "HEAD" or status in (204, 304):
        return b""
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return _read_chunks(reader)
    if (length := fields.get("content-length")) is not None:
        if not length.isdigit():
            raise _Malformed(f"Content-Length {length!r}")
        return reader.exactly(int(length))
    return reader.rest()


def _read_chunks(reader: _Reader) -> bytes:
    body = bytearray()
    while True:
        size = reader.until(b"\r\n").split(b";")[0].strip()
        try:
            count = int(size, 16)
        except ValueError:
            raise _Malformed(f"chunk size {size!r}") from None
        if count == 0:
            while reader.until(b"\r\n"):
                pass
            return bytes(body)
        body += reader.exactly(count)
        if reader.exactly(2) != b"\r\n":
            raise _Malformed("chunk without end of line")

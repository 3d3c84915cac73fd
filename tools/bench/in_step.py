"""Small requests over several connections in step: one on each, then all of the answers, and so on, so many in all.

How many requests a server finds when it looks makes what each costs it, and a load of the usual kind leaves that to
chance. Here it is the same in each run as far as a client can have it, so that runs of two servers can be compared to
one per cent. It says nothing of rates.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

from .wrk import LoadError

TIMEOUT_S = 30
LONGEST_ANSWER = 64 << 10


def run(port: int, requests: Iterator[bytes], connections: int, count: int) -> None:
    """Sends `count` of these HTTP requests at least. Raises LoadError unless all answers are like the first, and right.

    A right one comes with 200, and with its length.
    """
    with ExitStack() as stack:
        clients = [stack.enter_context(_connect(port)) for _ in range(connections)]
        clients[0].sendall(next(requests))
        length = len(_first_answer(clients[0]))
        for _ in range(-(-count // connections)):
            for client in clients:
                client.sendall(next(requests))
            for client in clients:
                answer = client.recv(LONGEST_ANSWER)
                while 0 < len(answer) < length and (more := client.recv(LONGEST_ANSWER)):
                    answer += more
                if len(answer) != length or not answer.startswith(b"HTTP/1.1 200 "):
                    raise LoadError(f"an answer is not like the first, which has {length} bytes: {answer[:300]!r}")


def _connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Python's timeout polls before every call, the kernel's does not.
    client.setblocking(True)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TIMEOUT_S, 0))
    return client


def _first_answer(client: socket.socket) -> bytes:
    answer = b""
    wanted = LONGEST_ANSWER
    while len(answer) < wanted:
        more = client.recv(LONGEST_ANSWER)
        if not more:
            raise LoadError(f"the connection was closed behind {answer[:300]!r}")
        answer += more
        head, end, _ = answer.lower().partition(b"\r\n\r\n")
        lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
        if end:
            if not head.startswith(b"http/1.1 200 ") or not lengths:
                raise LoadError(f"the first answer begins {answer[:300]!r}")
            wanted = len(head) + len(end) + lengths[0]
    return answer

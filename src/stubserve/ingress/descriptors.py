"""Descriptors that come over a socket between owner and worker."""

from __future__ import annotations

import array
import socket

_ROOM = socket.CMSG_LEN(array.array("i").itemsize)


def receive(connection: socket.socket, nbytes: int) -> tuple[bytes, list[int]]:
    """A message of at most `nbytes`, and the descriptor that came with it, if any. Raises OSError.

    Without data it is the end. A process that is out of descriptors gets the message without its own, which is closed.
    No program that is started inherits it, which `socket.recv_fds` does not see to: it ignores its flags.
    """
    data, messages, _, _ = connection.recvmsg(nbytes, _ROOM, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, content in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, found.tolist()

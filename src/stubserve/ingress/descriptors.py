"""Descriptors that come over a socket between owner and worker.

A process that has no descriptor left gets such a message without its own, which the system closes. So where it is to be
answered even then, one is kept for it.
"""

from __future__ import annotations

import array
import contextlib
import os
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


class Spare:
    """A descriptor that is kept for what comes when there is no other. Raises OSError where there is none to keep."""

    def __init__(self) -> None:
        self._descriptor: int | None = os.eventfd(0, os.EFD_CLOEXEC)

    def leave(self) -> None:
        """Leaves it to what comes next."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def take(self) -> bool:
        """Has one again; False where there is none."""
        if self._descriptor is None:
            with contextlib.suppress(OSError):
                self._descriptor = os.eventfd(0, os.EFD_CLOEXEC)
        return self._descriptor is not None

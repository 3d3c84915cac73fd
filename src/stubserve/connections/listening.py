"""Sockets that listen, and what to do when one cannot."""

from __future__ import annotations

import errno
import socket

# How many connections may wait to be accepted. Whoever serves a listener sets it again.
BACKLOG = 2048


def listen(address: str, port: int, shared: bool = False) -> socket.socket:
    """A listening socket. Raises OSError.

    Of a port that is `shared` with other servers the system gives connections to all that listen. So such a socket is
    bound only; whoever serves it has it listen.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, port))
        if not shared:
            listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def explained(error: OSError, protocol: str) -> str:
    """Why a protocol cannot be served, and what to do; its flags are `--<protocol>-port` and `--<protocol>-address`."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    if error.errno == errno.EADDRINUSE:
        return f"{reason}. Is another server running? Choose another --{protocol}-port."
    if error.errno == errno.EACCES:
        return f"{reason}. Low ports are for root only. Choose another --{protocol}-port."
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{reason}. Is --{protocol}-address one of this machine's?"
    return reason

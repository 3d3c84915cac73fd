"""Ports of this machine, for servers that must be told their ports before they start.

A port that the kernel picks is one that it gives to connections, too: until the server listens, a connection of
any process may take the port. The ports of this module are outside that range. A port is given once: the process
holds an abstract socket with the port's number as its name, and what else asks here passes that port over.
"""

from __future__ import annotations

import contextlib
import random
import socket

# Linux gives connections the ports from 32768 on.
_PORTS = range(10_000, 32_768)

# Descriptors
_held: list[int] = []


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1, as many as asked for, that are this process's until it ends."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.choice(_PORTS)
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0stubserve-port-{port}")
            with contextlib.closing(socket.socket()) as free:
                free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                free.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        _held.append(mark.detach())
        ports.append(port)
    return ports

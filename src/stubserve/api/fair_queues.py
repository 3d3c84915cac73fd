"""Tells clients apart, so that each can have a fair part of a full queue (`--fair-queues`).

- `connection`: each connection is a client. Right behind a proxy that keeps a connection for each of its clients;
- `address`: all connections from one address are one client. Right if clients connect themselves;
- `token`: all requests with one token are one client, however the header is spelled; without a token the address
  counts. Right if inference needs a token of `--auth-token-file`: tokens are then checked before anything is queued, so
  nobody can take another client's part, or have more parts than tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

# Longer tokens are not looked at.
_MAX_BYTES = 4096

OFF, CONNECTION, ADDRESS, TOKEN = "off", "connection", "address", "token"
WAYS = (OFF, CONNECTION, ADDRESS, TOKEN)


class FairQueues:
    """Tells clients apart by one of the WAYS, except OFF."""

    def __init__(self, way: str) -> None:
        self._way = way

    def client_of(self, peer: str, authorization: Callable[[], Collection[bytes]]) -> Hashable:
        """The client. `peer` is `<address>:<port>` of a connection, `authorization` gives the values of that header."""
        if self._way == CONNECTION:
            return peer
        if self._way == TOKEN:
            sent = authorization()
            token = token_of(next(iter(sent))) if len(sent) == 1 else None
            if token is not None:
                return token
        return peer.rpartition(":")[0]


def token_of(authorization: bytes) -> bytes | None:
    """The token in an Authorization header's value, however the rest is spelled; None without a token."""
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or len(token) > _MAX_BYTES:
        return None
    return token.strip(b" ")


def peer_name(peername: object) -> str:
    """`<address>:<port>` from a transport's "peername"; empty without one, as for Unix sockets."""
    return f"{peername[0]}:{peername[1]}" if isinstance(peername, tuple) else ""

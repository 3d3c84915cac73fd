"""Which pages of other origins may ask the server (`--http-cors-origin`), by the rules of CORS.

A browser lets a page read an answer only if the answer says that pages of its origin may. Before a request with JSON it
asks with OPTIONS (a preflight), which the app answers (Starlette's CORSMiddleware); here is what inference, which never
gets to the app, adds to its replies.
"""

from __future__ import annotations

from collections.abc import Sequence

from stubserve.http.head import RequestHead

ANY = "*"
METHODS = ("GET", "POST")
# What a page may read beside the body: where the tensors of a binary answer begin, and how it is compressed.
EXPOSED = ("Inference-Header-Content-Length", "Content-Encoding")

_EXPOSE = ("Access-Control-Expose-Headers", ", ".join(EXPOSED))
_VARY = ("Vary", "Origin")

Headers = tuple[tuple[str, str], ...]


class Cors:
    """The origins that are allowed, as `https://example.org`, or `*` for all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any: Headers | None = (("Access-Control-Allow-Origin", ANY), _EXPOSE) if ANY in origins else None
        self._allowed: dict[bytes, Headers] = {
            origin.encode(): (("Access-Control-Allow-Origin", origin), _EXPOSE, _VARY) for origin in origins
        }

    def headers(self, head: RequestHead) -> Headers:
        """What a reply to a request with this head says; nothing for one that comes from no page."""
        origin = next((value for name, value in head.headers if name.lower() == b"origin"), None)
        if origin is None:
            return ()
        return self._allowed.get(origin, (_VARY,)) if self._any is None else self._any

"""The rights to use routes over HTTP, and the pages of other origins (`--http-cors-origin`).

A browser lets a page read an answer only if the answer allows the page's origin. Before a request with JSON the browser
asks with OPTIONS (a preflight), which Starlette's CORSMiddleware answers in the app. Inference never gets to the app,
so this module makes the headers for its replies.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from stubserve.api.access import Access
from stubserve.errors import ServeError
from stubserve.http.message import RequestHead

if TYPE_CHECKING:
    from stubserve.api.tokens import AccessTokens

INFERENCE = "inference"

ANY = "*"
METHODS = ("GET", "POST")
# What a page may read beside the body: where the tensors of a binary answer begin, and how it is compressed
EXPOSED = ("Inference-Header-Content-Length", "Content-Encoding")

_EXPOSE = ("Access-Control-Expose-Headers", ", ".join(EXPOSED))
_VARY = ("Vary", "Origin")

Headers = tuple[tuple[str, str], ...]


def http_access(
    restricted: Mapping[str, tuple[str, str]], tokens: AccessTokens | None, open_kinds: Collection[str], owner: bytes
) -> HttpAccess | None:
    """The rules of HTTP; None where no route is restricted and no tokens are needed."""
    return HttpAccess(restricted, tokens, open_kinds, owner) if restricted or tokens is not None else None


class HttpAccess(Access):
    """The rules of HTTP."""

    def __init__(
        self,
        restricted: Mapping[str, tuple[str, str]],
        tokens: AccessTokens | None,
        open_kinds: Collection[str],
        owner: bytes = b"",
    ) -> None:
        super().__init__(restricted, tokens, open_kinds, "This API is restricted, expecting header '%s'", owner)
        self._guards_inference = self.guards(INFERENCE)
        self._names = frozenset(name.encode() for name in self.credentials)

    def inference_refusal(self, head: RequestHead) -> ServeError | None:
        """Why a request with this head may not use inference; None if it may."""
        if not self._guards_inference:
            return None
        names = self._names
        credentials = tuple([field for field in head.headers if field[0].lower() in names])
        if self.knows(INFERENCE, credentials):
            return None
        return self.learn(INFERENCE, credentials, head.values)


class Cors:
    """The origins that are allowed, such as `https://example.org`, or `*` for all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any: Headers | None = (("Access-Control-Allow-Origin", ANY), _EXPOSE) if ANY in origins else None
        self._allowed: dict[bytes, Headers] = {
            origin.encode(): (("Access-Control-Allow-Origin", origin), _EXPOSE, _VARY) for origin in origins
        }

    def headers(self, head: RequestHead) -> Headers:
        """The CORS headers of the reply to a request with this head; none if the request does not come from a page."""
        origin = next((value for name, value in head.headers if name.lower() == b"origin"), None)
        if origin is None:
            return ()
        return self._allowed.get(origin, (_VARY,)) if self._any is None else self._any

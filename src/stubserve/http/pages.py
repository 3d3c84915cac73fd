"""Pages for people: each is one file, which needs nothing but itself and this server."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

STATUS, TRY = "status.html", "try.html"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    # Nothing but what is in the page, and what this server says
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
}


def page(name: str) -> Response:
    """A page by its file's name."""
    return Response(Path(__file__).with_name(name).read_bytes(), headers=HEADERS, media_type="text/html; charset=utf-8")

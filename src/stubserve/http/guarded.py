"""An app of one kind of API, behind a check of the client's rights."""

from __future__ import annotations

import functools

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserve.api.access import Access
from stubserve.http.asgi_request import error_response, values_of


def guarded(app: ASGIApp, access: Access | None, kind: str) -> ASGIApp:
    """The app behind a check of the rules for APIs of this kind; the app itself where there are no rules."""
    if access is None or not access.guards(kind):
        return app
    rules = access

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        refusal = rules.refusal(kind, functools.partial(values_of, Request(scope)))
        await (app if refusal is None else error_response(refusal))(scope, receive, send)

    return guard

"""Requests and answers in plain ASGI, as the routes need them, and the check of rights before an app."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Hashable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserve.api.access import AUTHORIZATION, Access
from stubserve.api.fair_queues import peer_name
from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError
from stubserve.http.body import too_long_json
from stubserve.http.infer_encode import encode_error
from stubserve.http.message import Reply
from stubserve.inference.served_model import ServedModel

# The largest body of a question that is no inference and no load: reading it must not take long.
QUESTION_BYTES = 64 * 1024


def client_of(server: ServerFacts, request: Request) -> Hashable:
    """The client's name; None where the server does not tell clients apart."""
    ways = server.fair_queues
    if ways is None:
        return None
    return ways.client_of(peer_of(request), lambda: values_of(request, AUTHORIZATION))


def peer_of(request: Request) -> str:
    """The client's address."""
    return peer_name(request.scope.get("client"))


def find_model(server: ServerFacts, request: Request) -> ServedModel:
    return server.find_model(request.path_params["model"], request.path_params.get("version", ""))


def values_of(request: Request, name: str) -> list[bytes]:
    """The values of a request's header; `name` is in lower case."""
    return [value.encode("latin-1") for value in request.headers.getlist(name)]


def json_response(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def response_of(reply: Reply) -> Response:
    """A reply of inference as an ASGI response."""
    response = Response(b"".join(reply.parts), reply.status, dict(reply.headers), reply.content_type)
    if reply.json_length is not None:
        response.headers["Inference-Header-Content-Length"] = str(reply.json_length)
    return response


def error_response(error: ServeError) -> Response:
    """The same answer as inference gives for an error. Its text may quote bytes that are not UTF-8."""
    return response_of(encode_error(error))


def not_allowed() -> Response:
    """The answer to a method that a route does not have."""
    return json_response({"error": "Method Not Allowed"}, 405)


@contextlib.asynccontextmanager
async def body_of(
    request: Request, server: ServerFacts, limit: int | None = None, what: str = "request JSON size"
) -> AsyncIterator[bytes]:
    """The request's body. Its bytes count in the heap's account until the context ends.

    Raises ServeError as soon as it is longer than `limit` bytes (--http-max-input-size), or memory is short.
    """
    share = server.heap.share()
    limit = server.max_input_size if limit is None else limit
    declared = request.headers.get("content-length", "")
    body = bytearray()
    try:
        too_long = declared.isdecimal() and int(declared) > limit
        if not too_long:
            async for piece in request.stream():
                share.add(len(piece))
                body += piece
                if len(body) > limit:
                    too_long = True
                    break
        if too_long:
            if limit == QUESTION_BYTES:
                raise too_long_json(declared or len(body), limit, hint=" This route needs no larger one.")
            raise too_long_json(declared or len(body), limit, what)
        yield bytes(body)
    finally:
        share.drop()


def guarded(app: ASGIApp, access: Access | None, kind: str) -> ASGIApp:
    """The app behind a check of the rules for APIs of this kind; the app itself if there are no rules for it."""
    if access is None or not access.guards(kind):
        return app
    rules = access

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        refusal = rules.refusal(kind, functools.partial(values_of, Request(scope)))
        await (app if refusal is None else error_response(refusal))(scope, receive, send)

    return guard

"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

from starlette.responses import Response

from stubserve.errors import Code, ServeError
from stubserve.http.asgi_request import response_of
from stubserve.http.infer_encode import encode_error
from stubserve.http.json import text as json_text

_SERVER_ERRORS = 500


def error_document(error: ServeError) -> bytes:
    """The JSON of an error. Its `param` is the faulty member of the body."""
    kind = "server_error" if error.code.http_status >= _SERVER_ERRORS else "invalid_request_error"
    code = ""
    if error.code is Code.UNAUTHENTICATED:
        code = "invalid_api_key"
    elif error.code is Code.NOT_FOUND and error.path:
        code = "model_not_found"
    return b'{"error":{"message":%b,"type":"%b","param":%b,"code":%b}}' % (
        json_text.string(error.message),
        kind.encode(),
        json_text.string(".".join(map(str, error.path))) if error.path else b"null",
        b'"%b"' % code.encode() if code else b"null",
    )


def openai_error(error: ServeError) -> Response:
    """The answer to a request that is refused or has failed, with the status and headers that it has elsewhere."""
    reply = encode_error(error)
    reply.parts = [error_document(error)]
    return response_of(reply)

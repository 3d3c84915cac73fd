"""Errors as OpenAI's clients expect them, and as Triton's own front end for OpenAI's protocol gives them."""

from __future__ import annotations

import re
from typing import Any

import orjson
from starlette.responses import Response

from stubserve.errors import Code, ServeError
from stubserve.http.asgi_request import response_of
from stubserve.http.infer_encode import encode_error
from stubserve.http.json import text as json_text

_SERVER_ERRORS = 500
_TOO_LARGE = 413
# The words that clients of Triton's front end know for a member of a wrong form
_UPSTREAM_WORDS = (
    (re.compile(r"'.*' is missing"), "Field required"),
    (re.compile(r".*expected `array` of length >= 1"), "List should have at least 1 item after validation, not 0"),
    (re.compile(r".*expected `(?:int|float)` <= ([\d.]+)"), r"Input should be less than or equal to \1"),
    (re.compile(r".*expected `(?:int|float)` >= (-?[\d.]+)"), r"Input should be greater than or equal to \1"),
    (re.compile(r".*expected `str`, got .*"), "Input should be a valid string"),
)
_UPSTREAM_STATUS = {Code.RESTRICTED: 401, Code.WRONG_FORM: 422}


def error_document(error: ServeError) -> bytes:
    """The JSON of an error. Its `param` is the faulty member of the body."""
    kind = "server_error" if error.code.http_status >= _SERVER_ERRORS else "invalid_request_error"
    code = ""
    if error.code is Code.UNAUTHENTICATED:
        code = "invalid_api_key"
    elif error.code is Code.TOO_LARGE:
        code = "content_too_large"
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
    if error.code is Code.TOO_LARGE:
        reply.status = _TOO_LARGE
    return response_of(reply)


def upstream_error(error: ServeError) -> Response:
    """The same as Triton's own front end answers it: `detail` has what is wrong, beside OpenAI's `error`."""
    response = openai_error(error)
    if error.code is Code.TOO_LARGE:
        return response
    detail: Any = error.message
    if error.code is Code.WRONG_FORM:
        detail = [{"type": "value_error", "loc": ["body", *error.path], "msg": _in_upstream_words(error.message)}]
    body = b'{"detail":%b,%b' % (orjson.dumps(detail), error_document(error)[1:])
    status = _UPSTREAM_STATUS.get(error.code, response.status_code)
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return Response(body, status, headers)


def _in_upstream_words(message: str) -> str:
    for pattern, words in _UPSTREAM_WORDS:
        found = pattern.fullmatch(message)
        if found is not None:
            return found.expand(words)
    return message

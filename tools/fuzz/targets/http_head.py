"""Requests on an HTTP connection: heads in every form, bodies in every framing, one behind the other.

The first byte says in how long pieces the rest is read; read in one piece the answers must be the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from stubserve.http.connection import HttpConnection
from stubserve.http.endpoint import HttpEndpoint
from stubserve.http.message import BadRequest, Http2Preface, parse_head

from ..finding import Finding, same
from ..server import FuzzedServer, Transport, cut, deliver, in_loop

WHOLE = 1 << 16


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Every route that is not inference: says how long the body was."""
    length = 0
    while (message := await receive())["type"] == "http.request":
        length += len(message["body"])
        if not message["more_body"]:
            break
    else:
        return
    text = f"{scope['method']} {scope['path']} {length}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


CONFIG = Config(
    app, lifespan="off", log_config=None, access_log=False, date_header=False, server_header=False, proxy_headers=False
)
CONFIG.load()


def fuzz_one(data: bytes) -> None:
    if not data:
        return
    size = data[0] % 64 + 1
    text = data[1:]
    end = text.find(b"\r\n\r\n")
    if end >= 0:
        with contextlib.suppress(BadRequest, Http2Preface):
            parse_head(text[: end + 4])
    whole = in_loop(_answers(cut(text, WHOLE)))
    pieces = in_loop(_answers(cut(text, size)))
    if b"100-continue" not in text.lower() and b"/generate" not in text:
        # A client that waits to be told to send its body has a right to other answers than one that sends it at once.
        # A usual `generate` is answered by the connection, any other by the app, for which `app` stands here; see
        # tests/server/test_special_ways.py for both.
        same(_told(whole), _told(pieces), "pieces are answered differently", f"of {size} bytes")


def _told(sent: bytes) -> bytes:
    """The answers. The words of the last refusal differ: a body that is malformed may be found so by the app."""
    refused = sent.rfind(b"HTTP/1.1 400 Bad Request\r\n")
    return sent[: refused + 12] if refused >= 0 and b"connection: close" in sent[refused:].lower() else sent


async def _answers(pieces: list[bytes]) -> bytes:
    server = FuzzedServer()
    connection = HttpConnection(HttpEndpoint(server), CONFIG, ServerState(), {}, asyncio.get_running_loop())
    sent = await deliver(connection, Transport(), pieces)
    if server.held:
        raise Finding("memory is held by a connection that is gone", str(server.held))
    return sent


def post(body: bytes, *more: str, path: str = "/v2/models/floats/infer", length: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", *([f"Content-Length: {len(body)}"] if length else []), *more]
    return "\r\n".join([*lines, "\r\n"]).encode() + body


JSON = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
BINARY_JSON = json.dumps(
    {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}]}
).encode()
BINARY = post(BINARY_JSON + bytes(4), f"Inference-Header-Content-Length: {len(BINARY_JSON)}")
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON), JSON)
SEEDS = [
    b"\x3f" + post(JSON),
    b"\x07" + post(JSON) * 3,
    b"\x20" + BINARY * 3,
    b"\x05" + post(CHUNKED, "Transfer-Encoding: chunked", length=False) + post(JSON),
    b"\x11" + post(JSON, "Expect: 100-continue", "Accept-Encoding: gzip, deflate"),
    b"\x11" + post(JSON, path="/v2/models/none/versions/3/infer") + b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x13" + post(JSON, "Connection: close", path="/v2/models/floats/generate") + post(JSON),
    b"\x13" + post(b"x" * 70_000, "Inference-Header-Content-Length: 9")[:9000],
    b"\x02GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n\r\n\r\nHEAD /v2 HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n",
    b"\x02PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]
WORDS = [
    b"\r\n\r\n",
    b"\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\n",
    b"Content-Encoding: gzip\r\n",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"0\r\n\r\n",
    b"Inference-Header-Content-Length: 0\r\n",
    b" \t",
    b"%2F",
    b"%zz",
    b"?a=b",
    b"Accept-Encoding: gzip\r\n",
    BINARY,
    b"\x00",
]

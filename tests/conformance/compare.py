"""What counts as the same answer: normalisation rules, each with its reason, and the comparison itself.

An answer is reduced to plain JSON data. What the rules drop or rewrite is what no client can rely on (times, process
ids, paths, phrases); everything else must be equal.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import Any

from . import messages
from .http2 import FramesAnswer
from .rpc import RpcAnswer
from .servers import Server
from .wire import Answer, Response

# Date says when, Server says who: they differ between any two servers.
IGNORED_HEADERS = frozenset({"date", "server", "retry-after"})
# gRPC: who the server is, which compressions it knows, how the library carries its own state.
IGNORED_METADATA_PREFIXES = ("grpc-", "content-type", "accept-encoding", "user-agent", "date", "server")
# Their values follow from the body, which is compared itself; that the header is there is what counts.
PRESENCE_HEADERS = frozenset({"content-length", "inference-header-content-length"})
# Statistics and metrics hold durations and clock times: only whether they moved can agree.
TIMES = frozenset({"ns", "last_inference"})

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # Where a class of pb_utils was defined is the binding's affair; its own name is compared.
    (re.compile(r"\b(c_python_backend_utils|stubserve_stub(\.\w+)+)\.(?=[A-Z])"), ""),
    # repr() of an object without one of its own shows its address.
    (re.compile(r"0x[0-9a-f]{4,}"), "0xADDRESS"),
    # Frames of the helper library say how that server is built; what counts are the model's own.
    (re.compile(r"  /[^\s(']*/(triton_python_backend_utils|stubserve_stub/[\w/]+)\.py\(\d+\): \w+\n"), ""),
    # Frames of Python's own import machinery say how a server imports model.py, not what is wrong with it.
    (re.compile(r"  (<frozen importlib[^>]*>|/[^\s(]*/importlib/__init__\.py)\(\d+\): \w+\n"), ""),
    # Where an archive is extracted to is each server's own affair.
    (
        re.compile(r"(?<![^\s('\"=:,])/[^\s(]*/(python_env_\w{6}/\d+|stubserve/environments/[0-9a-f]{24})"),
        "<extracted>",
    ),
    # The standard library lies where that interpreter was installed.
    # A path is looked for where it begins: from each of its slashes would take quadratic time.
    (re.compile(r"(?<![^\s('\"=:,])(/usr/lib[^\s(]*/|/[^\s(]*/lib/python3\.\d+/)"), "<python>/"),
)


def normalise_text(text: str, server: Server) -> str:
    """Paths, addresses and source lines that belong to one installation are named alike."""
    text = text.replace(str(server.repository), "<repository>")
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def _normalise_json(value: Any, server: Server) -> Any:
    if isinstance(value, str):
        return normalise_text(value, server)
    if isinstance(value, list):
        return [_normalise_json(item, server) for item in value]
    if isinstance(value, dict):
        return {
            key: ("moved" if item else "zero") if key in TIMES else _normalise_json(item, server)
            for key, item in value.items()
        }
    return value


def _decompress(response: Response) -> bytes:
    """The plain body; a body that is not what its header says stays as it is and so shows as a difference."""
    encoding = response.header("Content-Encoding")
    try:
        if encoding == "gzip":
            return gzip.decompress(response.body)
        if encoding == "deflate":
            return zlib.decompress(response.body)
    except (OSError, zlib.error, EOFError):
        return b"undecodable: " + response.body
    return response.body


def _describe_body(response: Response, server: Server) -> dict[str, Any]:
    body = _decompress(response)
    split = response.header("Inference-Header-Content-Length")
    tail: bytes | None = None
    if split is not None and split.isdigit():
        body, tail = body[: int(split)], body[int(split) :]
    described: dict[str, Any] = {}
    if tail is not None:
        described["binary"] = tail.hex()
    if not body:
        return described
    try:
        # A model's text may itself be JSON with paths inside, so strings are normalised after parsing.
        described["json"] = _normalise_json(json.loads(body), server)
    except ValueError:
        described["text"] = normalise_text(body.decode("utf-8", "backslashreplace"), server)
    return described


def describe_response(response: Response, server: Server) -> dict[str, Any]:
    """One response as comparable data. The reason phrase is left out: HTTP gives it no meaning."""
    headers: dict[str, list[str]] = {}
    for name, value in response.headers:
        key = name.lower()
        if key not in IGNORED_HEADERS:
            headers.setdefault(key, []).append("present" if key in PRESENCE_HEADERS else value)
    # Real Triton sets no type on an error or an empty answer, and its HTTP library then writes text/plain, which
    # {"error":...} is not: the type counts where there is a result.
    if response.status >= 400 or not response.body:
        headers.pop("content-type", None)
    described: dict[str, Any] = {"status": response.status, "headers": headers}
    if response.interim:
        described["interim"] = list(response.interim)
    return {**described, **_describe_body(response, server)}


def describe_answer(answer: Answer, server: Server, pick: str) -> dict[str, Any]:
    """One connection's answer as comparable data; ``pick`` keeps only the named entries of a JSON array."""
    responses = [describe_response(response, server) for response in answer.responses]
    if pick:
        for described in responses:
            if isinstance(described.get("json"), list):
                described["json"] = [entry for entry in described["json"] if entry.get("name") == pick]
    return {"ending": answer.ending, "responses": responses}


def describe_rpc(answer: RpcAnswer, method: str, server: Server, pick: str) -> dict[str, Any]:
    """A gRPC call's answer in the form of an HTTP one: the status' name, metadata as headers, messages as JSON.

    Metadata counts as one table: in an answer without messages, gRPC has initial and trailing metadata in one block.
    """
    headers: dict[str, list[str]] = {}
    for name, value in sorted(answer.initial + answer.trailing):
        if not name.startswith(IGNORED_METADATA_PREFIXES):
            headers.setdefault(name, []).append(value)
    described = [_normalise_json(messages.as_data(method, message), server) for message in answer.messages]
    if pick:
        for message in described:
            if isinstance(message, dict) and "models" in message:
                message["models"] = [entry for entry in message["models"] if entry["name"] == pick]
    response: dict[str, Any] = {"status": answer.status, "headers": headers, "json": described}
    if answer.details:
        response["text"] = normalise_text(answer.details, server)
    return {"ending": answer.ending, "responses": [response]}


def describe_frames(answer: FramesAnswer) -> dict[str, Any]:
    """What frames led to, in the form of an HTTP answer: the end of each stream by its number, then the connection's.

    Which of several streams ends first is nobody's promise.
    """
    responses = []
    for stream, end in sorted(answer.events, key=lambda event: (event[0] == 0, event[0])):
        kind, _, code = end.partition(" ")
        responses.append({"status": kind, "text": code, "headers": {"stream": [str(stream)]}})
    return {"ending": answer.ending, "responses": responses}


def same(left: Any, right: Any) -> bool:
    """Equality of comparable data: 1 and 1.0 differ, as they do for a typed client; NaN equals NaN."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def differences(left: Any, right: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two pieces of comparable data differ: (path, left, right), with None for what is absent."""
    if same(left, right):
        return []
    if isinstance(left, dict) and isinstance(right, dict):
        found = []
        for key in sorted({*left, *right}):
            found += differences(left.get(key), right.get(key), f"{path}.{key}" if path else key)
        return found
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        found = []
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            found += differences(one, other, f"{path}[{index}]")
        return found
    return [(path or "answer", left, right)]

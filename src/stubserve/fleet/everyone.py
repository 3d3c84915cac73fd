"""What concerns all replicas, asked of each: loads, the index, statistics, metrics, settings of log and traces.

One request is sent to all replicas at once, and its answer says what all of them say:

- A load, an unload or a setting succeeds if it does at each replica. Otherwise the answer names those that failed, and
  says why; the others have made the change. It is kept for replicas that start later, and for those that failed.
- The index names a model once; it is READY if it is at each replica.
- Statistics are added up. Metrics get a label `replica`.
- Over gRPC the messages of all replicas are put one behind the other. By protobuf's rules that is one message in which
  the lists are joined: statistics and index have entries of each replica.

Clients' shared memory is refused: it lies on one machine, and the replicas on several.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stubserve.fleet.asking import CODES, GRPC_SERVICE, OF_CONNECTION, Headers, Reply, ask, ask_for
from stubserve.fleet.directory import Change, Fleet, Member
from stubserve.grpc.wire import LENGTH, Malformed, fields

# A load may bring the files of a model.
MOST_BYTES = 256 << 20
_OF_THIS_REQUEST = OF_CONNECTION | {
    *("accept-encoding", "expect", "user-agent", "grpc-accept-encoding", "grpc-timeout", "te", "content-type"),
}
# Of a load: longer than any model takes
_TIMEOUT_S = 3600.0
_LOAD = re.compile(r"/v2/repository/models/(?P<model>[^/]+)/(?:load|unload)$")
_OF_MODEL = re.compile(r"/v2/models/(?P<model>[^/]+)/")
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (.*)$")
_NO_SHARED_MEMORY = "clients' shared memory is not for a fleet of machines; ask a server on the client's own machine"
# Methods of gRPC that change something, by the field of the message that names the model, if there is one
_CHANGES = {"RepositoryModelLoad": 2, "RepositoryModelUnload": 2, "TraceSetting": 2, "LogSettings": 0}
_NAMES = {**_CHANGES, "ModelStatistics": 1}

Record = Callable[[Change], Coroutine[Any, Any, None]]


class Everyone:
    """Asks all replicas of the `fleet` as it is now; `record` keeps a change for later ones."""

    def __init__(self, fleet: Callable[[], Fleet], record: Record) -> None:
        self._fleet = fleet
        self._record = record

    def app(self) -> Starlette:
        """For HTTP."""

        async def answer(request: Request) -> Response:
            body = b""
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BYTES:
                    text = f"a request to all replicas may have {MOST_BYTES >> 20} MiB"
                    return Response(json.dumps({"error": text}), 413, media_type="application/json")
            path = request.scope["raw_path"].decode() + f"?{request.url.query}" * bool(request.url.query)
            headers = {name: value for name, value in request.headers.items() if name not in _OF_THIS_REQUEST}
            reply = await self.ask(request.method, path, body, headers)
            if request.url.path == "/metrics":
                return Response(reply.body, media_type="text/plain; charset=utf-8")
            said = reply.body if reply.status == 200 else json.dumps({"error": _error_text(reply)}).encode()
            return Response(said, reply.status, media_type="application/json")

        return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])

    def grpc_handler(self) -> grpc.GenericRpcHandler:
        """For gRPC."""
        return _Handler(self)

    async def ask(self, method: str, path: str, body: bytes, headers: Headers | None = None) -> Reply:
        """One request of HTTP. `path` may have a query."""
        headers = headers or {}
        target, path = path, path.partition("?")[0]
        if path == "/metrics":
            return Reply(200, (await self._metrics(headers)).encode())
        if "sharedmemory" in path:
            return Reply(400, _NO_SHARED_MEMORY.encode())
        loads = _LOAD.match(path)
        found = loads or _OF_MODEL.match(path)
        model = unquote(found["model"]) if found else ""
        replies = await self._each(model, target, body, method, headers)
        if method == "POST" and not path.endswith("/index"):
            await self._keep(model, f"model {model}" if loads else path, target, body, replies, headers)
        failed = _failed(replies)
        if failed.status != 200:
            return failed
        join = _index if path.endswith("/index") else _statistics if path.endswith("/stats") else None
        if join is None:
            return replies[0][1]
        return Reply(200, json.dumps(join([json.loads(reply.body) for _, reply in replies])).encode())

    async def call(self, method: str, message: bytes, headers: Headers | None = None) -> Reply:
        """One call of gRPC, by the name of its method."""
        headers = headers or {}
        if "SharedMemory" in method:
            return Reply(400, _NO_SHARED_MEMORY.encode())
        try:
            model = _text(message, _NAMES.get(method, 0))
        except Malformed as error:
            return Reply(400, error.text.encode())
        replies = await self._each(model, GRPC_SERVICE + method, message, "POST", headers)
        # Settings are field 1; without them these methods only ask.
        sets = any(tag == 1 << 3 | LENGTH for tag, *_ in fields(message))
        if method in _CHANGES and (sets or method.startswith("Repository")):
            what = f"model {model}" if "Model" in method else f"{method} {model}"
            await self._keep(model, what, GRPC_SERVICE + method, message, replies, headers)
        failed = _failed(replies)
        return Reply(200, b"".join(reply.body for _, reply in replies)) if failed.status == 200 else failed

    async def _each(
        self, model: str, path: str, body: bytes, method: str, headers: Headers
    ) -> list[tuple[Member, Reply]]:
        members = self._fleet().of_model(model)
        asked = (ask_for(member, path, body, _TIMEOUT_S, method, headers) for member in members)
        replies = await asyncio.gather(*asked)
        return list(zip(members, replies, strict=True))

    async def _keep(
        self, model: str, what: str, path: str, body: bytes, replies: list[tuple[Member, Reply]], headers: Headers
    ) -> None:
        made_by = frozenset(member.id for member, reply in replies if reply.status == 200)
        if made_by:
            group = self._fleet().group_of(model) if model else ""
            await self._record(Change(0, group, what, path, body, made_by, headers))

    async def _metrics(self, headers: Headers) -> str:
        members = self._fleet().members
        asked = (ask(one.host, one.metrics_port, "GET", "/metrics", None, headers) for one in members)
        replies = await asyncio.gather(*asked)
        families: dict[str, list[str]] = {}
        family = ""
        for member, reply in zip(members, replies, strict=True):
            for line in reply.body.decode().splitlines() if reply.status == 200 else ():
                if line.startswith("#"):
                    family = line.split()[2]
                    if line not in families.setdefault(family, []):
                        families[family].append(line)
                elif found := _SAMPLE.match(line):
                    name, labels, value = found.groups()
                    all_labels = ",".join(filter(None, [labels, f'replica="{member.number}"']))
                    families.setdefault(family, []).append(f"{name}{{{all_labels}}} {value}")
        return "".join(f"{line}\n" for lines in families.values() for line in lines)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Any unary method, with messages as they are on the wire."""

    def __init__(self, everyone: Everyone) -> None:
        self._everyone = everyone

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method.rpartition("/")[2]

        async def answer(message: bytes, context: Any) -> bytes:
            given = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
            headers = {key: value for key, value in given.items() if key not in _OF_THIS_REQUEST}
            reply = await self._everyone.call(method, message, headers)
            if reply.status != 200:
                await context.abort(CODES.get(reply.status, grpc.StatusCode.INTERNAL), reply.body.decode())
            return reply.body

        return grpc.unary_unary_rpc_method_handler(answer)


def _failed(replies: list[tuple[Member, Reply]]) -> Reply:
    """Status 200, or that of the first failure, with a text that names each replica that failed."""
    if not replies:
        return Reply(503, b"no replica answers")
    failures = [(member, reply) for member, reply in replies if reply.status != 200]
    if not failures:
        return Reply(200, b"")
    texts = {_error_text(reply) for _, reply in failures}
    if len(failures) == len(replies) and len(texts) == 1:
        return Reply(failures[0][1].status, texts.pop().encode())
    each = "; ".join(
        f"replica {one.number} ({one.host}:{one.http_port}): {_error_text(reply)}" for one, reply in failures
    )
    return Reply(failures[0][1].status, f"{len(failures)} of {len(replies)} replicas failed: {each}".encode())


def _error_text(reply: Reply) -> str:
    try:
        return str(json.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):
        return reply.body.decode(errors="replace")


def _index(indexes: list[Any]) -> Any:
    """Each version of each model once: as it is where it is not READY, if there is such a replica."""
    models: dict[tuple[str, str], dict[str, Any]] = {}
    for index in indexes:
        for entry in index:
            which = (entry["name"], entry.get("version", ""))
            if which not in models or models[which].get("state") == "READY":
                models[which] = entry
    return list(models.values())


def _statistics(answers: list[Any]) -> Any:
    models: dict[tuple[str, str], Any] = {}
    for answer in answers:
        for entry in answer["model_stats"]:
            which = (entry["name"], entry["version"])
            models[which] = _added(models[which], entry, "") if which in models else entry
    return {"model_stats": list(models.values())}


def _added(one: Any, other: Any, key: str) -> Any:
    """Numbers are added, but for the time of the last inference; what a list has for one batch size is joined."""
    if isinstance(one, dict):
        return {
            name: _added(one[name], other[name], name)
            if name in one and name in other
            else one.get(name, other.get(name))
            for name in {**one, **other}
        }
    if isinstance(one, list):
        sizes = {entry["batch_size"]: entry for entry in one if "batch_size" in entry}
        for entry in other:
            if "batch_size" in entry:
                size = entry["batch_size"]
                sizes[size] = {**_added(sizes[size], entry, ""), "batch_size": size} if size in sizes else entry
        return list(sizes.values()) if sizes else one
    if isinstance(one, int) and not isinstance(one, bool):
        return max(one, other) if key == "last_inference" else one + other
    return one


def _text(message: bytes, wanted: int) -> str:
    """A field of a message as text; "" if it is not there. Raises Malformed."""
    for tag, _, content, end in fields(message):
        if tag == wanted << 3 | LENGTH:
            return message[content:end].decode(errors="replace")
    return ""

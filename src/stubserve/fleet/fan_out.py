"""What concerns all replicas, asked of each: loads, the index, statistics, metrics, settings of log and traces.

One request is sent to all replicas at once, and its answer says what all of them say:

- A load, an unload or a setting succeeds if it does at each replica. Otherwise the answer names those that failed, and
  says why; the others have made the change. It is kept for replicas that start later, and for those that failed.
  Settings are made one after the other, so that they come to all replicas in one order. A change that a replica has not
  answered may come to the replica late, after the next one; so the replica makes the next one once more.
- The index names a model once; it is READY if it is at each replica.
- Statistics are added up. Metrics get a label `replica`.
- Over gRPC the messages of all replicas are put one behind the other. By protobuf's rules that is one message in which
  the lists are joined: statistics and index have entries of each replica.

Servers decide who may ask. What is large is read only after the first of them that answers would take it. A question
waits some seconds for each replica, a change for as long as a load may take; neither waits for a replica that has left.

Clients' shared memory is refused: it lies on one machine, and the replicas on several.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stubserve.fleet.directory import Change, Fleet, ReplicaInfo
from stubserve.fleet.replica_client import (
    CODES,
    GRPC_SERVICE,
    OF_CONNECTION,
    REFUSALS,
    Headers,
    Reply,
    ask,
    ask_replica,
    expect_continue,
)
from stubserve.grpc.wire import LENGTH, Malformed, fields

# A load may bring the files of a model; nothing else is large.
MOST_BYTES = 256 << 20
_MOST_OF_OTHERS = 1 << 20
_OF_THIS_REQUEST = OF_CONNECTION | {
    *("accept-encoding", "expect", "user-agent", "grpc-accept-encoding", "grpc-timeout", "te", "content-type"),
}
# For a load longer than any model takes; for metrics less than Prometheus waits
_LOAD_S, _QUESTION_S, _METRICS_S = 3600.0, 10.0, 5.0
_LOOK_S = 0.5
# Paths as a server reads them, decoded once
_LOAD = re.compile(r"/v2/repository/(?:[^/]+/)?models/(?P<model>[^/]+)/(?:load|unload)")
_OF_MODEL = re.compile(r"/v2/models/(?P<model>[^/]+)/")
SAFE = "/:@!$&'()*+,;=~"
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (.*)$")
_NO_SHARED_MEMORY = "clients' shared memory is not for a fleet of machines; ask a server on the client's own machine"
# Methods of gRPC that change something, by the field of the message that names the model, if there is one
_CHANGES = {"RepositoryModelLoad": 2, "RepositoryModelUnload": 2, "TraceSetting": 2, "LogSettings": 0}
_NAMES = {**_CHANGES, "ModelStatistics": 1}
# Instead of a method: what needs the same right and changes nothing
_HARMLESS = {"RepositoryModelLoad": "RepositoryIndex", "RepositoryModelUnload": "RepositoryIndex"}

Record = Callable[[Change], Coroutine[Any, Any, None]]
AskOne = Callable[[ReplicaInfo], Coroutine[Any, Any, Reply]]


class FanOut:
    """Asks all replicas of the `fleet` as it is now; `record` keeps a change for later ones."""

    def __init__(self, fleet: Callable[[], Fleet], record: Record) -> None:
        self._fleet = fleet
        self._record = record
        self._setting = asyncio.Lock()
        # By what is changed: the replicas that have not answered the last change
        self._silent: dict[str, set[str]] = {}

    def app(self) -> Starlette:
        """For HTTP."""

        async def answer(request: Request) -> Response:
            path = request.scope["raw_path"].decode() + f"?{request.url.query}" * bool(request.url.query)
            headers = {name: value for name, value in request.headers.items() if name not in _OF_THIS_REQUEST}
            loads = request.method == "POST" and _LOAD.fullmatch(request.scope["path"])
            most = MOST_BYTES if loads else _MOST_OF_OTHERS
            reply = await self._refusal_of_load(loads["model"], path, headers) if loads else None
            pieces: list[bytes] = []
            if reply is None:
                size = 0
                async for piece in request.stream():
                    pieces.append(piece)
                    size += len(piece)
                    if size > most:
                        reply = Reply(413, f"such a request to all replicas may have {most} bytes".encode())
                        break
            if reply is None:
                reply = await self.ask(request.method, path, b"".join(pieces), headers)
            if request.scope["path"] == "/metrics":
                return Response(reply.body, media_type="text/plain; charset=utf-8")
            said = reply.body if reply.status == 200 else json.dumps({"error": _error_text(reply)}).encode()
            return Response(said, reply.status, media_type="application/json")

        return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])

    def grpc_server(self) -> grpc.aio.Server:
        """For gRPC."""
        handler = _Handler(self)
        sizes = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.max_send_message_length", -1)]
        return grpc.aio.server(handlers=[handler], interceptors=[handler], options=sizes)

    async def ask(self, method: str, target: str, body: bytes, headers: Headers | None = None) -> Reply:
        """One request of HTTP. `target` is a path, which may have a query."""
        headers = headers or {}
        path, mark, query = target.partition("?")
        path = unquote(path)
        if path == "/metrics":
            return Reply(200, (await self._metrics(headers)).encode())
        if path.startswith(("/v2/systemsharedmemory", "/v2/cudasharedmemory")):
            return Reply(400, _NO_SHARED_MEMORY.encode())
        loads = _LOAD.fullmatch(path)
        found = loads or _OF_MODEL.match(path)
        model = found["model"] if found else ""
        target = quote(path, safe=SAFE) + mark + query
        timeout_s = _LOAD_S if loads else _QUESTION_S
        is_question = method != "POST" or path.endswith("/index")
        what = "" if is_question else f"model {model}" if loads else path
        ask_one = partial(ask_replica, path=target, body=body, timeout_s=timeout_s, method=method, headers=headers)
        replies = await self._change_or_ask(model, ask_one, loads is not None, what, target, body)
        failed = _failed(replies)
        if failed.status != 200:
            return failed
        join = _index if path.endswith("/index") else _statistics if path.endswith("/stats") else None
        if join is None:
            return replies[0][1]
        try:
            return Reply(200, json.dumps(join([json.loads(reply.body) for _, reply in replies])).encode())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Reply(502, b"a replica has answered with something else than it was asked for")

    async def call(self, method: str, message: bytes, headers: Headers | None = None) -> Reply:
        """One call of gRPC, by the name of its method."""
        headers = headers or {}
        if "SharedMemory" in method:
            return Reply(400, _NO_SHARED_MEMORY.encode())
        try:
            model = _text(message, _NAMES.get(method, 0))
            # Settings are field 1; without them these methods only ask.
            sets = any(tag == 1 << 3 | LENGTH for tag, *_ in fields(message))
        except Malformed as error:
            return Reply(400, error.text.encode())
        loads = "RepositoryModel" in method
        if not loads and len(message) > _MOST_OF_OTHERS:
            return Reply(400, f"such a call of all replicas may have {_MOST_OF_OTHERS} bytes".encode())
        path, timeout_s = GRPC_SERVICE + method, _LOAD_S if loads else _QUESTION_S
        what = "" if method not in _CHANGES or not (sets or loads) else f"{'model' if loads else method} {model}"
        ask_one = partial(ask_replica, path=path, body=message, timeout_s=timeout_s, headers=headers)
        replies = await self._change_or_ask(model, ask_one, loads, what, path, message)
        failed = _failed(replies)
        return Reply(200, b"".join(reply.body for _, reply in replies)) if failed.status == 200 else failed

    async def _refusal_of_load(self, model: str, path: str, headers: Headers) -> Reply | None:
        """Why a load over HTTP need not be read; None if it is to be read."""
        reply = await self._first(model, lambda one: expect_continue(one, path, headers))
        return None if reply.status == 100 else reply

    async def refusal_of_call(self, method: str, headers: Headers) -> Reply | None:
        """Why a call with these metadata need not be read; None if it is to be read."""
        if "SharedMemory" in method:
            return Reply(400, _NO_SHARED_MEMORY.encode())
        path = GRPC_SERVICE + _HARMLESS.get(method, method)
        reply = await self._first("", lambda one: ask_replica(one, path, b"", _QUESTION_S, headers=headers))
        return reply if reply.status in (*REFUSALS, 503) else None

    async def _first(self, model: str, ask_one: AskOne) -> Reply:
        """The first answer of a replica, whichever it is; 503 if none comes."""
        asked = [asyncio.ensure_future(ask_one(replica)) for replica in self._fleet().replicas_for(model)]
        try:
            for one in asyncio.as_completed(asked):
                reply = await one
                if reply.status != 503:
                    return reply
        finally:
            for task in asked:
                task.cancel()
        return Reply(503, b"no replica answers")

    async def _each(self, model: str, ask_one: AskOne, loads: bool) -> list[tuple[ReplicaInfo, Reply]]:
        """What each replica answers. What leaves before it has answered is not among them.

        But for a load, a replica's refusal is the answer of all.
        """
        asked = {replica: asyncio.ensure_future(ask_one(replica)) for replica in self._fleet().replicas_for(model)}
        waiting = set(asked.values())
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if not loads and any(task.result().status in REFUSALS for task in done):
                    return [(one, task.result()) for one, task in asked.items() if task in done]
                there = {replica.id for replica in self._fleet().replicas}
                waiting -= {task for one, task in asked.items() if one.id not in there}
            return [(replica, task.result()) for replica, task in asked.items() if task.done()]
        finally:
            for task in asked.values():
                task.cancel()

    async def _change_or_ask(
        self, model: str, ask_one: AskOne, loads: bool, what: str, path: str, body: bytes
    ) -> list[tuple[ReplicaInfo, Reply]]:
        """As `_each`. What is changed is kept under the name `what`, empty for a question."""
        async with self._setting if what and not loads else contextlib.nullcontext():
            replies = await self._each(model, ask_one, loads)
            if what:
                made_by = {replica.id for replica, reply in replies if reply.status == 200}
                silent = self._silent.pop(what, set())
                if late := {replica.id for replica, reply in replies if reply.status == 503}:
                    self._silent[what] = late
                if made_by:
                    group = self._fleet().group_of(model) if model else ""
                    await self._record(Change(0, group, what, path, body, frozenset(made_by - silent)))
        return replies

    async def _metrics(self, headers: Headers) -> str:
        replies = await self._each(
            "", lambda one: ask(one.host, one.metrics_port, "GET", "/metrics", None, headers, _METRICS_S), True
        )
        families: dict[str, list[str]] = {}
        family = ""
        for replica, reply in replies:
            for line in reply.text.splitlines() if reply.status == 200 else ():
                if line.startswith(("# HELP ", "# TYPE ")):
                    family = line.split()[2]
                    if line not in families.setdefault(family, []):
                        families[family].append(line)
                elif found := _SAMPLE.match(line):
                    name, labels, value = found.groups()
                    all_labels = ",".join(filter(None, [labels, f'replica="{replica.number}"']))
                    families.setdefault(family, []).append(f"{name}{{{all_labels}}} {value}")
        return "".join(f"{line}\n" for lines in families.values() for line in lines)


class _Handler(grpc.GenericRpcHandler, grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Any unary method, with messages as they are on the wire; and, before a message is read, who may call it."""

    def __init__(self, fan_out: FanOut) -> None:
        self._fan_out = fan_out

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method.rpartition("/")[2]

        async def answer(message: bytes, context: Any) -> bytes:
            reply = await self._fan_out.call(method, message, _headers(context.invocation_metadata()))
            if reply.status != 200:
                await context.abort(_code(reply), reply.text)
            return reply.body

        return grpc.unary_unary_rpc_method_handler(answer)

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method.rpartition("/")[2]
        refusal = await self._fan_out.refusal_of_call(method, _headers(details.invocation_metadata))
        if refusal is None:
            return await continuation(details)

        async def refuse(messages: Any, context: Any) -> None:
            await context.abort(_code(refusal), refusal.text)

        return grpc.stream_unary_rpc_method_handler(refuse)


def _headers(metadata: Any) -> Headers:
    given = {key: value for key, value in metadata or () if isinstance(value, str)}
    return {key: value for key, value in given.items() if key not in _OF_THIS_REQUEST}


def _code(reply: Reply) -> grpc.StatusCode:
    return CODES.get(reply.status, grpc.StatusCode.INTERNAL)


def _failed(replies: list[tuple[ReplicaInfo, Reply]]) -> Reply:
    """Status 200, or that of the first failure, with a text that names each replica that failed."""
    if not replies:
        return Reply(503, b"no replica answers")
    failures = [(replica, reply) for replica, reply in replies if reply.status != 200]
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
        return reply.text


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
    """A field of a message as text, the last one as protobuf has it; "" if it is not there. Raises Malformed."""
    found = b""
    for tag, _, content, end in fields(message):
        if tag == wanted << 3 | LENGTH:
            found = message[content:end]
    return found.decode(errors="replace")

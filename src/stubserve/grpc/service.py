"""The RPCs that a transport serves: path -> method; and the handlers of those that do not infer."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from stubserve.api.access import Access
from stubserve.api.management import ServerFacts, header_forwarding
from stubserve.errors import ServeError
from stubserve.grpc.infer import ModelInfer
from stubserve.grpc.infer_rewrite import rewrite
from stubserve.grpc.management import METHODS, SERVICE, ManagementRpcs
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.stream import ModelStreamInfer
from stubserve.grpc.transport import INTERNAL, MAX_MESSAGE_BYTES, Handler, Method, Rpc, end_of, values_of
from stubserve.grpc.wellknown import HEALTH, HEALTH_REQUEST, REFLECTION, HealthWatch, Reflection, check_health
from stubserve.memory.blocks import Block

# For RPCs that neither infer nor load: their requests are a name or two.
MAX_QUESTION_BYTES = 1 << 20

if TYPE_CHECKING:
    from stubserve.api.tokens import AccessTokens

_RESTRICTED_PREFIX = "triton-grpc-protocol-"


class Unary(Handler):
    """Answers with `respond(request)`, which raises ServeError or returns a message."""

    def __init__(self, call: Rpc, request_class: Any, respond: Callable[[Any], Awaitable[Any]]) -> None:
        self._call = call
        self._request_class = request_class
        self._respond = respond
        self._task: asyncio.Task[None] | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        try:
            request = self._request_class.FromString(bytes(data))
        except DecodeError:
            self._call.finish(INTERNAL, "Unable to parse request")
            return
        self._task = asyncio.get_running_loop().create_task(self._run(request))

    def on_cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, request: Any) -> None:
        try:
            answer = await self._respond(request)
        except Exception as error:
            self._call.finish(*end_of(error))
        else:
            self._call.reply([answer.SerializeToString()], [])


class Refused(Handler):
    """The handler of an RPC that is always answered with an error."""

    def __init__(self, call: Rpc, error: ServeError) -> None:
        call.finish(error.code.grpc_status, error.message)


class Service:
    """The RPCs of one server. `access` has the rules for using them; None: everybody may use all.

    With `logs_calls` each call has a line in the log when it is over.
    """

    def __init__(
        self,
        server: ServerFacts,
        forward_pattern: str = "",
        access: Access | None = None,
        logs_calls: bool = False,
    ) -> None:
        self._server = server
        self._forwarding = header_forwarding(forward_pattern)
        self._access = access
        self._logs_calls = logs_calls
        # The handlers of RPCs that go on until their clients end them
        self._endless: weakref.WeakSet[Handler] = weakref.WeakSet()
        rpcs = ManagementRpcs(server)
        self.methods: dict[str, Method] = {}
        for name, (kind, respond) in METHODS.items():
            request_class = getattr(service_pb2, f"{name}Request")
            self._add(f"/{SERVICE}/{name}", kind, self._unary(request_class, functools.partial(respond, rpcs)))
        model_infer = functools.partial(ModelInfer, server, self._forwarding)
        self._add(f"/{SERVICE}/ModelInfer", "inference", Method(model_infer, True, True, rewrite))
        self._add(f"/{SERVICE}/ModelStreamInfer", "inference", Method(self._model_stream_infer, False, True, rewrite))
        self._add(f"/{HEALTH}.Health/Check", "health", Method(self._check, True, max_bytes=MAX_QUESTION_BYTES))
        self._add(f"/{HEALTH}.Health/Watch", "health", Method(self._watch, False, max_bytes=MAX_QUESTION_BYTES))
        for package in REFLECTION:
            method = Method(functools.partial(self._reflect, package), False, max_bytes=MAX_QUESTION_BYTES)
            self._add(f"/{package}.ServerReflection/ServerReflectionInfo", "metadata", method)

    def stop(self) -> None:
        """Ends the RPCs that would go on for ever, once their current work is done."""
        for handler in list(self._endless):
            handler.stop()

    def _unary(self, request_class: Any, respond: Any) -> Method:
        loads = request_class is service_pb2.RepositoryModelLoadRequest
        open_rpc = functools.partial(Unary, request_class=request_class, respond=respond)
        return Method(open_rpc, True, max_bytes=MAX_MESSAGE_BYTES if loads else MAX_QUESTION_BYTES)

    def _add(self, path: str, kind: str, method: Method) -> None:
        access = self._access
        if access is not None and access.guards(kind):
            method = method._replace(open=functools.partial(_guarded, method, access, kind))
        if self._logs_calls:
            from stubserve.grpc.access_log import LoggedRpc  # not at the top: it is off in most servers

            method = method._replace(open=functools.partial(LoggedRpc, method, path))
        self.methods[path] = method

    def _model_stream_infer(self, call: Rpc) -> Handler:
        strict = any(key == "triton_grpc_error" and value == "true" for key, value in call.metadata())
        try:
            forwarded = None if self._forwarding is None else self._forwarding.parameters(call.metadata())
            stream = ModelStreamInfer(self._server, call, forwarded, strict)
        except ServeError as error:
            return Refused(call, error)
        self._endless.add(stream)
        return stream

    def _check(self, call: Rpc) -> Handler:
        return Unary(call, HEALTH_REQUEST, lambda _: check_health(self._server))

    def _watch(self, call: Rpc) -> Handler:
        watch = HealthWatch(self._server, call)
        self._endless.add(watch)
        return watch

    def _reflect(self, package: str, call: Rpc) -> Handler:
        services = [SERVICE, f"{HEALTH}.Health", *(f"{package}.ServerReflection" for package in REFLECTION)]
        reflection = Reflection(call, package, services)
        self._endless.add(reflection)
        return reflection


def rpc_access(
    restricted: Mapping[str, tuple[str, str]], tokens: AccessTokens | None, open_kinds: Collection[str], owner: bytes
) -> Access | None:
    """The rules of gRPC; None without any. `restricted` is that of `Access`, its keys without Triton's prefix."""
    if not restricted and tokens is None:
        return None
    prefixed = {kind: (_RESTRICTED_PREFIX + key, value) for kind, (key, value) in restricted.items()}
    return Access(prefixed, tokens, open_kinds, "This protocol is restricted, expecting header '%s'", owner)


def _guarded(method: Method, access: Access, kind: str, call: Rpc) -> Handler:
    credentials = access.credentials_in(call.metadata())
    if access.knows(kind, credentials):
        return method.open(call)
    refusal = access.learn(kind, credentials, functools.partial(values_of, credentials))
    return method.open(call) if refusal is None else Refused(call, refusal)

"""Which RPCs there are: path -> method. What a transport serves."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from stubserve.errors import ServeError, unavailable
from stubserve.inference.memory import Block
from stubserve.protocols.forwarding import HeaderForwarding
from stubserve.protocols.grpc.digest import digest
from stubserve.protocols.grpc.infer import ModelInfer
from stubserve.protocols.grpc.management import METHODS, SERVICE, ManagementRpcs
from stubserve.protocols.grpc.messages import service_pb2
from stubserve.protocols.grpc.stream import ModelStreamInfer
from stubserve.protocols.grpc.transport import MAX_MESSAGE_BYTES, Handler, Method, Rpc
from stubserve.protocols.grpc.unary import Unary
from stubserve.protocols.grpc.wellknown import HEALTH, REFLECTION
from stubserve.protocols.management import ServerFacts

# Of what neither infers nor loads; such a question is a name or two.
MAX_QUESTION_BYTES = 1 << 20

_RESTRICTED_PREFIX = "triton-grpc-protocol-"


class _Endless(Protocol):
    def stop(self) -> None: ...


class Refused:
    """The handler of an RPC that is answered with an error whatever it says."""

    def __init__(self, call: Rpc, error: ServeError) -> None:
        call.finish(error.code.grpc_status, error.message)

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        pass

    def on_half_close(self) -> None:
        pass

    def on_writable(self) -> None:
        pass

    def on_cancel(self) -> None:
        pass


class Service:
    """The RPCs of one server. `restricted` maps kinds of RPCs to the (key, value) that their metadata must have."""

    def __init__(
        self,
        server: ServerFacts,
        forward_pattern: str = "",
        restricted: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self._server = server
        self._forwarding = HeaderForwarding(forward_pattern) if forward_pattern else None
        self._restricted = restricted or {}
        self._endless: weakref.WeakSet[_Endless] = weakref.WeakSet()
        rpcs = ManagementRpcs(server)
        self.methods: dict[str, Method] = {}
        for name, (kind, respond) in METHODS.items():
            request_class = getattr(service_pb2, f"{name}Request")
            self._add(f"/{SERVICE}/{name}", kind, self._unary(request_class, functools.partial(respond, rpcs)))
        self._add(f"/{SERVICE}/ModelInfer", "inference", Method(self._model_infer, True, True, digest))
        self._add(f"/{SERVICE}/ModelStreamInfer", "inference", Method(self._model_stream_infer, False, True, digest))
        self._add(f"/{HEALTH}.Health/Check", "health", Method(self._check, True, max_bytes=MAX_QUESTION_BYTES))
        self._add(f"/{HEALTH}.Health/Watch", "health", Method(self._watch, False, max_bytes=MAX_QUESTION_BYTES))
        for package in REFLECTION:
            method = Method(functools.partial(self._reflect, package), False, max_bytes=MAX_QUESTION_BYTES)
            self.methods[f"/{package}.ServerReflection/ServerReflectionInfo"] = method

    def stop(self) -> None:
        """Has the RPCs that would go on for ever end once what they are busy with is done."""
        for handler in list(self._endless):
            handler.stop()

    def _unary(self, request_class: Any, respond: Any) -> Method:
        loads = request_class is service_pb2.RepositoryModelLoadRequest
        open_rpc = functools.partial(Unary, request_class=request_class, respond=respond)
        return Method(open_rpc, True, max_bytes=MAX_MESSAGE_BYTES if loads else MAX_QUESTION_BYTES)

    def _add(self, path: str, kind: str, method: Method) -> None:
        required = self._restricted.get(kind)
        if required is not None:
            method = method._replace(open=functools.partial(_guarded, method, *required))
        self.methods[path] = method

    def _forwarded(self, call: Rpc) -> dict[str, str] | None:
        return None if self._forwarding is None else self._forwarding.parameters(call.metadata())

    def _model_infer(self, call: Rpc) -> Handler:
        try:
            return ModelInfer(self._server, call, self._forwarded(call))
        except ServeError as error:
            return Refused(call, error)

    def _model_stream_infer(self, call: Rpc) -> Handler:
        strict = any(key == "triton_grpc_error" and value == "true" for key, value in call.metadata())
        try:
            stream = ModelStreamInfer(self._server, call, self._forwarded(call), strict)
        except ServeError as error:
            return Refused(call, error)
        self._endless.add(stream)
        return stream

    # The messages of the other two services cost a start 20 ms, so they are made when somebody asks for them.

    def _check(self, call: Rpc) -> Handler:
        from stubserve.protocols.grpc import health

        return Unary(call, health.REQUEST, lambda _: health.check(self._server))

    def _watch(self, call: Rpc) -> Handler:
        from stubserve.protocols.grpc import health

        watch = health.HealthWatch(self._server, call)
        self._endless.add(watch)
        return watch

    def _reflect(self, package: str, call: Rpc) -> Handler:
        from stubserve.protocols.grpc.reflection import Reflection

        services = [SERVICE, f"{HEALTH}.Health", *(f"{package}.ServerReflection" for package in REFLECTION)]
        reflection = Reflection(call, package, services)
        self._endless.add(reflection)
        return reflection


def _guarded(method: Method, key: str, value: str, call: Rpc) -> Handler:
    key = _RESTRICTED_PREFIX + key
    if (key, value) in call.metadata():
        return method.open(call)
    return Refused(call, unavailable(f"This protocol is restricted, expecting header '{key}'"))

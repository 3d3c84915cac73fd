"""The services that any gRPC server may have beside its own: health, and reflection.

`grpc.health.v1` has Check and Watch. Like upstream's, they report on the server as a whole, whichever service is named.
With reflection tools such as grpcurl learn the services and their messages from the server. The messages of both are
described here, because the packages that contain them would pin protobuf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from stubserve.api.management import ServerFacts, refuse_while_exiting
from stubserve.grpc.transport import INTERNAL, OK, RESOURCE_EXHAUSTED, UNAVAILABLE, UNIMPLEMENTED, Handler, Rpc
from stubserve.memory.blocks import Block
from stubserve.model_config.protobuf_schema import POOL, add_file

HEALTH = "grpc.health.v1"
REFLECTION = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_HEALTH = """
message HealthCheckRequest: string service = 1
message HealthCheckResponse: ServingStatus status = 1
enum HealthCheckResponse.ServingStatus: UNKNOWN SERVING NOT_SERVING SERVICE_UNKNOWN
service Health: Check(HealthCheckRequest) returns (HealthCheckResponse)
    Watch(HealthCheckRequest) returns (stream HealthCheckResponse)
"""

_REFLECTION = """
message ServerReflectionRequest: string host = 1; oneof message_request { string file_by_filename = 3;
    string file_containing_symbol = 4; ExtensionRequest file_containing_extension = 5;
    string all_extension_numbers_of_type = 6; string list_services = 7 }
message ExtensionRequest: string containing_type = 1; int32 extension_number = 2
message ServerReflectionResponse: string valid_host = 1; ServerReflectionRequest original_request = 2;
    oneof message_response { FileDescriptorResponse file_descriptor_response = 4;
    ExtensionNumberResponse all_extension_numbers_response = 5; ListServiceResponse list_services_response = 6;
    ErrorResponse error_response = 7 }
message FileDescriptorResponse: repeated bytes file_descriptor_proto = 1
message ExtensionNumberResponse: string base_type_name = 1; repeated int32 extension_number = 2
message ListServiceResponse: repeated ServiceResponse service = 1
message ServiceResponse: string name = 1
message ErrorResponse: int32 error_code = 1; string error_message = 2
service ServerReflection: ServerReflectionInfo(stream ServerReflectionRequest) returns (stream ServerReflectionResponse)
"""

# The messages of health, and by package those of reflection
health: Any = add_file("grpc/health/v1/health.proto", HEALTH, _HEALTH)
reflection: dict[str, Any] = {
    package: add_file(package.replace(".", "/") + "/reflection.proto", package, _REFLECTION) for package in REFLECTION
}

HEALTH_REQUEST = health.HealthCheckRequest
_HEALTH_RESPONSE = health.HealthCheckResponse
_SERVING, _NOT_SERVING = 1, 2
# How often a Watch looks whether the server is still ready: models may answer that themselves, so no event tells.
_WATCH_INTERVAL_S = 1.0
_NOT_FOUND = 5


async def check_health(server: ServerFacts) -> Any:
    """SERVING if the server is ready. Raises ServeError (UNAVAILABLE) while it exits."""
    refuse_while_exiting(server)
    return _HEALTH_RESPONSE(status=_SERVING if await server.ready() else _NOT_SERVING)


class HealthWatch(Handler):
    """The handler of a Watch: sends the status now and at each change, until the client ends the call."""

    def __init__(self, server: ServerFacts, call: Rpc, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep):
        self._server = server
        self._call = call
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def on_cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        self.on_cancel()
        self._call.send([_HEALTH_RESPONSE(status=_NOT_SERVING).SerializeToString()], [])
        self._call.finish(UNAVAILABLE, "Server exiting")

    async def _watch(self) -> None:
        told = 0
        while True:
            status = _SERVING if await self._server.ready() else _NOT_SERVING
            if status != told:
                told = status
                self._call.send([_HEALTH_RESPONSE(status=status).SerializeToString()], [])
            await self._sleep(_WATCH_INTERVAL_S)


class Reflection(Handler):
    """The handler of ServerReflectionInfo of `package`; `services` are the full names of the services served."""

    def __init__(self, call: Rpc, package: str, services: list[str]) -> None:
        self._call = call
        self._services = services
        self._request_class = reflection[package].ServerReflectionRequest
        self._response_class = reflection[package].ServerReflectionResponse

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        try:
            request = self._request_class.FromString(bytes(data))
        except DecodeError:
            self._call.finish(INTERNAL, "Unable to parse request")
            return
        response = self._response_class(valid_host=request.host, original_request=request)
        self._answer(request, response)
        if not self._call.send([response.SerializeToString()], []):
            self._call.finish(RESOURCE_EXHAUSTED, "too many questions, and nobody reads the answers")

    def on_half_close(self) -> None:
        self._call.finish(OK)

    def stop(self) -> None:
        """The server stops: nothing is under way that a client could wait for."""
        self._call.finish(UNAVAILABLE, "Server exiting")

    def _answer(self, request: Any, response: Any) -> None:
        wanted = request.WhichOneof("message_request")
        try:
            if wanted == "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            elif wanted == "file_by_filename":
                self._add_files(response, POOL.FindFileByName(request.file_by_filename))
            elif wanted == "file_containing_symbol":
                self._add_files(response, POOL.FindFileContainingSymbol(request.file_containing_symbol))
            else:
                # No service has extensions.
                response.error_response.error_code = UNIMPLEMENTED if wanted is None else _NOT_FOUND
                response.error_response.error_message = "there are no extensions here"
        except KeyError as error:
            response.error_response.error_code = _NOT_FOUND
            response.error_response.error_message = str(error.args[0]) if error.args else "not found"

    def _add_files(self, response: Any, file: FileDescriptor) -> None:
        """Adds a file and everything that it imports."""
        queue, seen = [file], set()
        while queue:
            one = queue.pop()
            if one.name not in seen:
                seen.add(one.name)
                response.file_descriptor_response.file_descriptor_proto.append(one.serialized_pb)
                queue.extend(one.dependencies)

"""Server reflection: tools such as grpcurl learn the services and their messages from the server."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from stubserve.grpc.transport import INTERNAL, OK, UNAVAILABLE, UNIMPLEMENTED, Rpc
from stubserve.grpc.wellknown import reflection
from stubserve.memory.blocks import Block
from stubserve.model_config.protobuf_schema import POOL

_NOT_FOUND = 5
_RESOURCE_EXHAUSTED = 8


class Reflection:
    """The handler of ServerReflectionInfo of `package`; `services` are the full names of what is served."""

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
            self._call.finish(_RESOURCE_EXHAUSTED, "too many questions, and nobody reads the answers")

    def on_half_close(self) -> None:
        self._call.finish(OK)

    def on_writable(self) -> None:
        pass

    def on_cancel(self) -> None:
        pass

    def stop(self) -> None:
        """The server stops: there is nothing under way that a client could wait for."""
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
                # None of the services has extensions.
                response.error_response.error_code = UNIMPLEMENTED if wanted is None else _NOT_FOUND
                response.error_response.error_message = "there are no extensions here"
        except KeyError as error:
            response.error_response.error_code = _NOT_FOUND
            response.error_response.error_message = str(error.args[0]) if error.args else "not found"

    def _add_files(self, response: Any, file: FileDescriptor) -> None:
        """A file and everything that it imports."""
        queue, seen = [file], set()
        while queue:
            one = queue.pop()
            if one.name not in seen:
                seen.add(one.name)
                response.file_descriptor_response.file_descriptor_proto.append(one.serialized_pb)
                queue.extend(one.dependencies)

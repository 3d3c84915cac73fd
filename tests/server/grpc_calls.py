"""gRPC without tritonclient's conveniences: messages as a test wants them, and what comes back."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.real_server import Serving

SERVICE = "/inference.GRPCInferenceService"
TIMEOUT_S = 60


class Grpc:
    """A channel to a server."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def infer(self, request: Any, **more: Any) -> Any:
        return self.stub.ModelInfer(request, timeout=TIMEOUT_S, **more)

    def refusal(self, request: Any, **more: Any) -> tuple[str, str]:
        """The status and text with which an inference request is refused."""
        with pytest.raises(grpc.RpcError) as error:
            self.infer(request, **more)
        return error.value.code().name, error.value.details()

    def stream(self, *requests: Any, **more: Any) -> list[Any]:
        return list(self.stub.ModelStreamInfer(iter(requests), timeout=TIMEOUT_S, **more))

    def raw(self, path: str, message: bytes, **more: Any) -> bytes:
        """A unary RPC in bytes."""
        answer: bytes = self.channel.unary_unary(path)(message, timeout=TIMEOUT_S, **more)
        return answer


@contextmanager
def connected(
    server: Serving, credentials: grpc.ChannelCredentials | None = None, *more: tuple[str, int]
) -> Iterator[Grpc]:
    """`more` are further options of the channel."""
    target = f"127.0.0.1:{server.grpc_port}"
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), *more]
    if credentials is None:
        channel = grpc.insecure_channel(target, options)
    else:
        channel = grpc.secure_channel(target, credentials, [*options, ("grpc.ssl_target_name_override", "localhost")])
    with channel:
        yield Grpc(channel)


def request(
    model: str = "echo",
    values: list[float] | None = None,
    shape: list[int] | None = None,
    raw: list[bytes] | None = None,
    datatype: str = "FP32",
    **more: Any,
) -> Any:
    """A request with one input INPUT0 of floats, or of the raw contents given."""
    values = [1.0, 2.0] if values is None else values
    message = service_pb2.ModelInferRequest(model_name=model, **more)
    message.inputs.add(name="INPUT0", datatype=datatype, shape=[len(values)] if shape is None else shape)
    message.raw_input_contents.extend([struct.pack(f"<{len(values)}f", *values)] if raw is None else raw)
    return message


def typed(model: str, datatype: str, member: str, values: list[Any], shape: list[int] | None = None) -> Any:
    """A request with its values in `contents`."""
    message = request(model, raw=[], datatype=datatype, shape=[len(values)] if shape is None else shape)
    getattr(message.inputs[0].contents, member).extend(values)
    return message

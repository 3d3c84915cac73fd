"""The gRPC client, against a server that answers as it is told."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from .messages import STREAM, as_data, infer_request, tensor
from .request import Rpc
from .rpc import call


class _Echo(grpc.GenericRpcHandler):
    """Streams give every message back; ``refuse`` and ``hang`` as a first message do what they say."""

    def service(self, details: Any) -> Any:
        def echo(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            for message in messages:
                if message == b"refuse":
                    context.set_trailing_metadata((("x-why", "because"),))
                    context.abort(grpc.StatusCode.NOT_FOUND, "no")
                if message == b"hang":
                    while context.is_active():
                        next(messages, None)
                yield message

        return grpc.stream_stream_rpc_method_handler(echo)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(2), handlers=(_Echo(),))
    bound = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield bound
    server.stop(None).wait()


def test_messages_come_back_in_order(port: int) -> None:
    for one_by_one in (False, True):
        answer = call(port, Rpc("/s/m", (b"a", b"", b"c"), True, one_by_one=one_by_one))
        assert (answer.messages, answer.status, answer.ending) == ((b"a", b"", b"c"), "OK", "read")
    assert call(port, Rpc("/s/m", (b"alone",))).messages == (b"alone",)


def test_what_came_before_an_error_is_kept(port: int) -> None:
    answer = call(port, Rpc("/s/m", (b"a", b"refuse", b"c"), True, one_by_one=True))
    assert (answer.messages, answer.status, answer.details) == ((b"a",), "NOT_FOUND", "no")
    assert ("x-why", "because") in answer.trailing


def test_endings(port: int) -> None:
    assert call(port, Rpc("/s/m", (b"a", b"hang"), True, cancel_after=1)).ending == "cancelled"
    assert call(port, Rpc("/s/m", (b"hang",), timeout=0.2)).ending == "timeout"
    late = call(port, Rpc("/s/m", (b"hang",), deadline=0.2))
    assert (late.status, late.ending) == ("DEADLINE_EXCEEDED", "read")


def test_nobody_listens() -> None:
    assert call(1, Rpc("/s/m", (b"a",))).ending == "reset"


def test_messages_are_compared_as_data() -> None:
    assert as_data("/inference.GRPCInferenceService/ServerLive", b"\x08\x01") == {"live": True}
    assert as_data("/inference.GRPCInferenceService/ServerLive", b"\x0a\x09") == "undecodable: Cgk="
    assert as_data("/grpc.health.v1.Health/Check", b"\x08\x01") == "0801"
    response = b"\x12" + bytes([len(inner := b"\x0a\x01m\x32\x02\x01\x02")]) + inner
    assert as_data(STREAM, response) == {"infer_response": {"model_name": "m"}, "raw": ["0102"]}


def test_parameters_take_the_kind_of_their_value() -> None:
    message = infer_request("m", [tensor("IN", "FP32", [1], None, a=True)], given={"n": 1})
    assert b"\x08\x01" in message
    assert b"\x10\x01" in message

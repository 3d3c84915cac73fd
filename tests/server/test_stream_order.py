"""The order of a stream is the order of its messages, however long the server looks at one of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from tests.client_memory import SharedFile
from tests.real_server import Serving, write_model
from tests.server.grpc_calls import Grpc, connected

# Answers with its number among all requests, and how many strings that had
COUNTS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        count = 0

        def execute(self, requests):
            responses = []
            for request in requests:
                strings = len(request.inputs()[0].as_numpy())
                output = pb_utils.Tensor("OUTPUT0", np.array([self.count, strings], np.int32))
                self.count += 1
                responses.append(pb_utils.InferenceResponse([output]))
            return responses
"""
COUNTS_CONFIG = """
    backend: "python"
    input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 2 ] } ]
"""
MANY = 300_000
# Of different lengths, and with zeros in them: there is no quick way to look at these.
STRINGS = b"".join(struct.pack("<I", length) + bytes(length) for length in range(5)) * (MANY // 5)


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grpc]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_model(repository, "counts", COUNTS, COUNTS_CONFIG)
    with Serving(repository, "--allow-client-shm") as server, connected(server) as calls:
        server.wait_until_ready()
        yield calls


def strings(count: int, raw: bytes | None = None) -> Any:
    message = service_pb2.ModelInferRequest(model_name="counts")
    message.inputs.add(name="INPUT0", datatype="BYTES", shape=[count])
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


def in_region(name: str, count: int, nbytes: int) -> Any:
    message = strings(count)
    message.inputs[0].parameters["shared_memory_region"].string_param = name
    message.inputs[0].parameters["shared_memory_byte_size"].int64_param = nbytes
    return message


def seen(answers: list[Any]) -> list[tuple[int, ...]]:
    """Number and strings of each request, the first of them number 0."""
    assert not [answer.error_message for answer in answers if answer.error_message]
    found = [struct.unpack("<2i", answer.infer_response.raw_output_contents[0]) for answer in answers]
    return [(number - min(found)[0], count) for number, count in found]


SMALL = strings(1, b"\1\0\0\0a")


def test_a_message_with_many_strings_is_not_overtaken(triton: Grpc) -> None:
    answers = triton.stream(strings(MANY, STRINGS), SMALL, strings(MANY, STRINGS), SMALL, SMALL)
    assert seen(answers) == [(0, MANY), (1, 1), (2, MANY), (3, 1), (4, 1)]


def test_nor_is_one_with_strings_in_shared_memory(triton: Grpc) -> None:
    with SharedFile(STRINGS) as file:
        region = service_pb2.SystemSharedMemoryRegisterRequest(name="strings", key=file.key, byte_size=file.nbytes)
        triton.stub.SystemSharedMemoryRegister(region)
        answers = triton.stream(in_region("strings", MANY, len(STRINGS)), SMALL, SMALL)
        triton.stub.SystemSharedMemoryUnregister(service_pb2.SystemSharedMemoryUnregisterRequest(name="strings"))
    assert seen(answers) == [(0, MANY), (1, 1), (2, 1)]


def test_what_is_refused_after_a_long_look_keeps_its_place(triton: Grpc) -> None:
    broken = strings(MANY, STRINGS[:-1])
    first, second, third = triton.stream(broken, SMALL, strings(MANY, STRINGS))
    assert "incomplete string" in first.error_message
    assert seen([second, third]) == [(0, 1), (1, MANY)]


def test_of_a_stream_that_is_closed_meanwhile_nothing_is_left(triton: Grpc) -> None:
    """Nobody waits for those behind the one that is looked at, and others go on."""
    call = triton.stub.ModelStreamInfer(iter([SMALL, *[strings(MANY, STRINGS)] * 3, SMALL]))
    next(call)
    call.cancel()
    assert seen(triton.stream(strings(MANY, STRINGS), SMALL)) == [(0, MANY), (1, 1)]

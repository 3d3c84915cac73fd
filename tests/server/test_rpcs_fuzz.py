"""Every RPC with anything for a message: no unexplained error, no crash, no growth.

The RPCs and their messages are those of tritonclient's description. A message is filled at random from it, or is an
inference request that is nearly right, or either of them with bytes that are bent. In CI it takes a few seconds;
STUBSERVE_FUZZ_SECONDS makes it longer, and STUBSERVE_FUZZ_SEED another.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import service_pb2

from ..client_memory import SharedFile
from ..real_server import PATIENCE_S, Serving, binary_output, write_model
from .grpc_calls import SERVICE, connected

SECONDS = float(os.environ.get("STUBSERVE_FUZZ_SECONDS", "5"))
REGION = "region"
SEED = int(os.environ.get("STUBSERVE_FUZZ_SEED", "7"))
# UNKNOWN and INTERNAL are answered where upstream does; their texts are below.
EXPECTED = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "UNAVAILABLE",
    "ALREADY_EXISTS",
    "RESOURCE_EXHAUSTED",
}
EXPLAINED = ("failed to ", "Failed to ", "parsing", "arse", "eserializ", "Unable to ", "unable to ", "Missing ")
WORDS = ("", "echo", "nosuch", "1", "-1", "99999999999999999999", "INPUT0", "OUTPUT0", "FP32", "BYTES", "/x", "../x")
STRANGE = ("\0", "é🙂", "a" * 3000, "file:1/model.py", "config", "shared_memory_region", "trace_level", "OFF", "*")
NUMBERS = (0, 1, 2, 7, 2**31 - 1, 2**32 - 1, 2**63 - 1)
SIGNED = (-1, -(2**31))
TYPES: dict[int, Callable[[random.Random], Any]] = {
    FieldDescriptor.CPPTYPE_INT32: lambda chance: chance.choice((0, 1, 7, 2**31 - 1, -1, -(2**31))),
    FieldDescriptor.CPPTYPE_INT64: lambda chance: chance.choice((*NUMBERS, *SIGNED)),
    FieldDescriptor.CPPTYPE_UINT32: lambda chance: chance.choice(NUMBERS[:6]),
    FieldDescriptor.CPPTYPE_UINT64: lambda chance: chance.choice((*NUMBERS, 2**64 - 1)),
    FieldDescriptor.CPPTYPE_BOOL: lambda chance: chance.random() < 0.5,
    FieldDescriptor.CPPTYPE_FLOAT: lambda chance: chance.choice((0.0, -1.5, float("inf"), float("nan"))),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda chance: chance.choice((0.0, 1e308, float("nan"))),
    FieldDescriptor.CPPTYPE_ENUM: lambda chance: 0,
}


class Chance(random.Random):
    """Random messages."""

    def value(self, field: FieldDescriptor) -> Any:
        """For a field that is no message."""
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            text = self.choice(WORDS if self.random() < 0.8 else STRANGE)
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        return TYPES[field.cpp_type](self)

    def filled(self, kind: Descriptor, depth: int = 0) -> Any:
        """A message of this kind."""
        message = message_factory.GetMessageClass(kind)()
        for field in kind.fields:
            if self.random() < 0.5 or depth > 4:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                of = field.message_type.fields_by_name["value"]
                for _ in range(self.randrange(3)):
                    key = self.choice((*WORDS, *STRANGE))
                    if of.message_type is not None:
                        getattr(message, field.name)[key].CopyFrom(self.filled(of.message_type, depth + 1))
            elif field.message_type is not None:
                if field.is_repeated:
                    for _ in range(self.randrange(3)):
                        getattr(message, field.name).append(self.filled(field.message_type, depth + 1))
                else:
                    getattr(message, field.name).CopyFrom(self.filled(field.message_type, depth + 1))
            elif field.is_repeated:
                getattr(message, field.name).extend(self.value(field) for _ in range(self.randrange(4)))
            else:
                setattr(message, field.name, self.value(field))
        return message

    def inference(self) -> Any:
        """A request that is right, but for some of its members; some lie in the client's region."""
        count = self.randrange(1, 5)
        message = service_pb2.ModelInferRequest(model_name="echo", id=self.choice(WORDS))
        message.inputs.add(name="INPUT0", datatype="FP32", shape=[count])
        if self.random() < 0.2:
            where = message.inputs[0].parameters
            where["shared_memory_region"].string_param = self.choice((REGION, REGION, "nosuch"))
            where["shared_memory_byte_size"].int64_param = self.choice((4 * count, 4 * count, *NUMBERS, *SIGNED))
            where["shared_memory_offset"].int64_param = self.choice((0, 4096, *NUMBERS, *SIGNED))
        elif self.random() < 0.5:
            message.raw_input_contents.append(struct.pack(f"<{count}f", *range(count)))
        else:
            message.inputs[0].contents.fp32_contents.extend(range(count))
        if self.random() < 0.5:
            message.MergeFrom(self.filled(message.DESCRIPTOR, 3))
        return message

    def message(self, kind: Descriptor) -> bytes:
        """What is sent to an RPC that takes messages of this kind."""
        infers = kind.name == "ModelInferRequest" and self.random() < 0.7
        encoded = bytearray((self.inference() if infers else self.filled(kind)).SerializeToString())
        if self.random() < 0.3 and encoded:
            for _ in range(self.choice((1, 1, 4))):
                encoded[self.randrange(len(encoded))] = self.randrange(256)
            del encoded[self.randrange(len(encoded)) + 1 :]
        return bytes(encoded)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "echo")
    flags = ["--model-control-mode=explicit", "--load-model=*", "--shm-limit=256M", "--allow-client-shm"]
    with Serving(repository, *flags, "--trace-config=mode=triton", "--cache-config=local,size=1048576") as serving:
        yield serving


@pytest.mark.timeout(SECONDS + 120)
def test_every_rpc_withstands_anything(serving: Serving) -> None:
    chance = Chance(SEED)
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    process = psutil.Process(serving.process.pid)
    seen: Counter[str] = Counter()
    before = (0, 0)
    end = time.monotonic() + SECONDS
    with connected(serving) as client, SharedFile(8192) as file:
        while time.monotonic() < end or seen.total() < 500:
            method = chance.choice(methods)
            path = f"{SERVICE}/{method.name}"
            if seen.total() % 50 == 0:
                # What is unregistered, or given up by a file that ends, comes back.
                os.truncate(file.path, chance.choice((0, 100, 8192)))
                region = service_pb2.SystemSharedMemoryRegisterRequest(name=REGION, key=file.key, byte_size=8192)
                with contextlib.suppress(grpc.RpcError):
                    client.stub.SystemSharedMemoryRegister(region, timeout=PATIENCE_S)
            messages = [chance.message(method.input_type) for _ in range(chance.randrange(4))]
            if method.name == "RepositoryModelUnload" and any(b"echo" in message for message in messages):
                continue  # the model is still needed
            try:
                if method.server_streaming:
                    list(client.channel.stream_stream(path)(iter(messages), timeout=PATIENCE_S))
                else:
                    client.raw(path, messages[0] if messages else b"")
                status = "OK"
            except grpc.RpcError as error:
                status = error.code().name
                text = error.details()
                assert "unexpected error" not in text, (path, messages, text)
                if status not in EXPECTED:
                    assert any(words in text for words in EXPLAINED), (path, messages, status, text)
            seen[status] += 1
            assert serving.process.poll() is None, (path, messages)
            if seen.total() == 400:
                before = (process.memory_info().rss, process.num_fds())
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= set(seen)
    assert "Traceback" not in serving.output
    assert serving.request("POST", "/v2/repository/models/echo/load").status == 200
    array = np.ones(3, np.float32)
    np.testing.assert_array_equal(binary_output(serving.infer_array("echo", array)), array)
    rss, descriptors = process.memory_info().rss, process.num_fds()
    assert rss < before[0] + (64 << 20), (before, rss)
    assert descriptors < before[1] + 20, (before, descriptors)
    print(f"{seen.total()} calls, statuses {dict(seen)}, resident {before[0] >> 20} -> {rss >> 20} MiB")

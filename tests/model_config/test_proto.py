"""The messages are those that Triton's own client has, field for field."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import tritonclient.grpc
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from tritonclient.grpc import service_pb2 as their_service_pb2

from stubserve.grpc.messages import service_pb2
from stubserve.model_config.proto import ModelConfig, model_config_pb2

from ..real_server import WORK_S

THEIRS = tritonclient.grpc.model_config_pb2


def described(module: Any) -> FileDescriptorProto:
    """What a file holds, with what has no order sorted by name."""
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    _sort(file)
    for service in file.service:
        for method in service.method:
            method.ClearField("options")
    return file


def _sort(holder: FileDescriptorProto | DescriptorProto) -> None:
    held = holder.message_type if isinstance(holder, FileDescriptorProto) else holder.nested_type
    held.sort(key=lambda message: message.name)
    for message in held:
        _sort(message)


@pytest.mark.parametrize(("ours", "theirs"), [(model_config_pb2, THEIRS), (service_pb2, their_service_pb2)])
def test_every_field_is_that_of_triton(ours: Any, theirs: Any) -> None:
    assert described(ours) == described(theirs)


def test_what_one_writes_the_other_reads() -> None:
    config = ModelConfig(name="m", max_batch_size=4)
    config.input.add(name="I", data_type=model_config_pb2.TYPE_FP32, dims=[1, -1])
    config.parameters["p"].string_value = "v"
    config.dynamic_batching.preferred_batch_size.append(2)
    ours = service_pb2.ModelConfigResponse(config=config)
    theirs = their_service_pb2.ModelConfigResponse.FromString(ours.SerializeToString())
    assert str(theirs) == str(ours)
    assert service_pb2.ModelConfigResponse.FromString(theirs.SerializeToString()) == ours


def test_neither_grpc_nor_the_client_is_imported() -> None:
    code = "import sys, stubserve.server.server; print({'grpc', 'tritonclient'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=WORK_S, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr

"""Models with tensors in memory of emulated GPUs, and their server. They stand in for those that use torch or cupy."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stubserve.gpus import DRIVER_VARIABLE
from tests.emulated_gpu import DOWN, PEER, STAGED, UP, WITHIN, build
from tests.real_server import Serving, io_config, write_model

# A framework's arrays: memory of their own, and a stream of their own in which all work on them is done late. `call` is
# a model's function from a request's first input to its output.
FRAMEWORK = '''
import ctypes
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils
from stubserve_stub.api import dlpack
from stubserve_stub.device.gpu import gpu
from stubserve_stub.wire.arena import address_of

_streams = {}


class Array:
    def __init__(self, number, shape):
        self.gpu = gpu(number)
        self.shape, self.nbytes = tuple(shape), 4 * int(np.prod(shape))
        device = self.gpu.device
        device.driver.find("cuMemAlloc", (3020, (ctypes.c_void_p, ctypes.c_size_t)))
        device.driver.find("cuMemFree", (3020, (ctypes.c_ulonglong,)))
        address = ctypes.c_ulonglong()
        device.call("cuMemAlloc", ctypes.addressof(address), self.nbytes)
        self.address = address.value
        self.stream = _streams.setdefault(number, None) or device.stream()
        _streams[number] = self.stream

    def __del__(self):
        self.stream.synchronize()
        self.gpu.device.call("cuMemFree", self.address)

    def __dlpack_device__(self):
        return (2, self.gpu.number)

    def __dlpack__(self, stream=None):
        if stream is not None:
            event = self.gpu.device.event()
            self.stream.record(event)
            self.gpu.device.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event.handle, 0)
            event.close()
        return dlpack.export_device(self, 11, self.shape, self.address, self.gpu.number)


def upload(number, array):
    made = Array(number, array.shape)
    made.stream.copy_up(made.address, address_of(array), array.nbytes)
    return made


def turned(tensor):
    """A new array: the second half of a tensor, and then the first. Nothing is waited for."""
    _, memory = dlpack.imported(tensor.to_dlpack())
    made = Array(tensor.__dlpack_device__()[1], tensor.shape())
    half = made.nbytes // 2
    address = address_of(memory)
    made.stream.copy(made.address, address + half, half)
    made.stream.copy(made.address + half, address, half)
    made.input = memory
    return made


class TritonPythonModel:
    def initialize(self, args):
        self.device = int(args["model_instance_device_id"])

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.call(request.inputs()[0], request)]) for request in requests]

    def call(self, given, request):
        CALL
'''

# The input goes up.
UPLOAD = 'return pb_utils.Tensor.from_dlpack("OUTPUT0", upload(self.device, given.as_numpy()))'
# A new tensor of the input on the GPU
TURN = """assert not given.is_cpu()
        return pb_utils.Tensor.from_dlpack("OUTPUT0", turned(given))"""
# The input's own memory
PASS = """assert not given.is_cpu()
        return pb_utils.Tensor.from_dlpack("OUTPUT0", given)"""

ON_GPU = "instance_group [ { kind: KIND_GPU gpus: [ %s ] } ]"
STAYS = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'


def write_gpu_model(
    repository: Path,
    name: str,
    call: str,
    gpu: int | None = 0,
    stays: bool = True,
    extra: str = "",
    source: str = FRAMEWORK,
) -> None:
    if "instance_group" not in extra:
        extra += "instance_group [ { kind: KIND_CPU } ]" if gpu is None else ON_GPU % gpu
    extra += STAYS if stays else ""
    write_model(repository, name, source.replace("CALL", call.strip()), io_config(extra=extra))


def python_path(*folders: Path) -> str:
    """A PYTHONPATH that has these folders in front, for packages that stand in for others."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


class GpuServing(Serving):
    """A server on a machine with two emulated GPUs. It counts what all of its processes copy.

    `sites` are folders with packages that stand in for others.
    """

    def __init__(
        self, repository: Path, folder: Path, *flags: str, sites: Sequence[Path] = (), **environment: str
    ) -> None:
        self._counters = folder / "counters"
        variables = {"EMULATED_COUNTERS": str(self._counters), "PYTHONPATH": python_path(*sites), **environment}
        super().__init__(repository, *flags, environment={DRIVER_VARIABLE: str(build(folder)), **variables})

    def copied(self) -> dict[int, int]:
        """Bytes by direction, but for directions without any."""
        if not self._counters.exists():
            return {}
        return {direction: count for direction in (UP, DOWN, WITHIN, PEER, STAGED) if (count := self.count(direction))}

    def count(self, what: int) -> int:
        """One of the emulator's counts."""
        found: int = struct.unpack_from("Q", self._counters.read_bytes(), 8 * what)[0]
        return found

    @contextmanager
    def copying(self) -> Iterator[dict[int, int]]:
        """What is copied meanwhile."""
        before, meanwhile = self.copied(), dict[int, int]()
        yield meanwhile
        for direction, count in self.copied().items():
            if count > before.get(direction, 0):
                meanwhile[direction] = count - before.get(direction, 0)


def configured(put: str, got: str, more: str = "") -> str:
    """A configuration without batching, with the dimensions of X and Y."""
    return f"""
        max_batch_size: 0
        input [ {{ name: "X" data_type: TYPE_FP32 dims: [ {put} ] }} ]
        output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ {got} ] }} ]
        {more}
    """


def given(name: str, values: list[Any], datatype: str = "FP32") -> dict[str, Any]:
    """An input of a request in JSON."""
    return {"name": name, "datatype": datatype, "shape": list(np.shape(values)), "data": values}


def check_together(server: Serving, model: str, ask: Callable[[int], Any], expected: Callable[[int], Any]) -> None:
    """Eight requests at once get their own answers, and some of them run in one batch."""
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == list(map(expected, range(8)))
    assert max(one["batch_size"] for one in server.statistics(model)["batch_stats"]) > 1


def write_gpu_chain(repository: Path, name: str, model: str, put: str, got: str) -> None:
    """An ensemble: the input goes up to a GPU, through `model` there, and is turned there."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f"""
        platform: "ensemble" max_batch_size: 0
        input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
        output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
        ensemble_scheduling {{
          step [ {{ model_name: "upload" model_version: -1
                   input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "up" }} }} ]
          step [ {{ model_name: "{model}" model_version: -1
                   input_map {{ key: "{put}" value: "up" }} output_map {{ key: "{got}" value: "done" }} }} ]
          step [ {{ model_name: "turn" model_version: -1
                   input_map {{ key: "INPUT0" value: "done" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }} }} ]
        }}
    """)


CALL = """
        def call(tensor, model, **more):
            wanted = more.pop("decoupled", False)
            tensors = [pb_utils.Tensor.from_dlpack("INPUT0", tensor)]
            more.setdefault("requested_output_names", [])
            request = pb_utils.InferenceRequest(model_name=model, inputs=tensors, **more)
            answer = request.exec(decoupled=wanted)
            if wanted:
                return [one.output_tensors()[0] for one in answer if one.output_tensors()]
            assert not answer.has_error(), answer.error().message()
            return answer.output_tensors()[0]

        GPU = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
        CPU = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)
"""
# Sends the turned input, and then the input itself, from a GPU.
STREAM = """
        sender = request.get_response_sender()
        for tensor in (pb_utils.Tensor.from_dlpack("OUTPUT0", turned(given)), PASSED):
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""".replace("PASSED", 'pb_utils.Tensor.from_dlpack("OUTPUT0", given)')
DECOUPLED = FRAMEWORK.replace(
    "return [pb_utils.InferenceResponse([self.call(request.inputs()[0], request)]) for request in requests]",
    "[self.call(request.inputs()[0], request) for request in requests]",
)
# Writes zeros over the input, on the GPU.
ZERO = """
        _, memory = dlpack.imported(given.to_dlpack())
        stream = Array(self.device, (1,)).stream
        self.zeros = np.zeros(given.shape(), np.float32)
        stream.copy_up(address_of(memory), address_of(self.zeros), memory.nbytes)
        return pb_utils.Tensor.from_dlpack("OUTPUT0", given)"""
HOST = """assert given.is_cpu()
        return pb_utils.Tensor("OUTPUT0", given.as_numpy() + 1)"""

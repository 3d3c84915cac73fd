"""A double of the package tensorrt, whose engines compute by way of the emulated driver, and plans for it.

Plans are JSON. An engine has a `program`, a name of those in PROGRAMS, which makes arrays of its outputs from arrays of
its inputs; that of the program `zeros` has outputs of zeros, in the shape that each says. It is run as a GPU would run
it: on the device that is the current one of the thread, behind the work of the stream, from addresses of the device.
What the real package refuses or wants, as far as the backend meets it, the double refuses and wants, too: a context
before anything else, addresses for all tensors, shapes within the profile.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VERSION = "10.9.0.34"

PACKAGE = '''
import ctypes
import enum
import json
import os

import numpy as np

from stubserve_stub.device import gpu as gpus
from stubserve_stub.wire.arena import address_of

__version__ = "10.9.0.34"

TensorIOMode = enum.Enum("TensorIOMode", "NONE INPUT OUTPUT")
TensorLocation = enum.Enum("TensorLocation", "DEVICE HOST")
TensorFormat = enum.Enum("TensorFormat", "LINEAR CHW4")
DataType = enum.Enum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4")
_NUMPY = {"FLOAT": "f4", "HALF": "f2", "INT32": "i4", "INT64": "i8", "INT8": "i1", "UINT8": "u1", "BOOL": "?"}


class ILogger:
    class Severity(enum.IntEnum):
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class IOutputAllocator:
    pass


class _Registry:
    def load_library(self, path):
        if not os.path.exists(path):
            raise RuntimeError("cannot open shared object file: " + path)


def init_libnvinfer_plugins(logger, namespace):
    return True


def _current(logger):
    """The number of the current device, as libraries of CUDA find it."""
    driver = gpus.driver()
    for number in range(len(driver.devices())):
        device = gpus.gpu(number).device
        found = ctypes.c_void_p()
        if device.driver.status("cuCtxPopCurrent", ctypes.byref(found)):
            break
        device.driver.call("cuCtxPushCurrent", found)
        if found.value == device.context.value:
            return number
    logger.log(ILogger.Severity.ERROR, "[runtime.cpp] CUDA error: no device is current")
    return None


class Runtime:
    def __init__(self, logger):
        self.logger = logger
        self.engine_host_code_allowed = False
        self.DLA_core = -1

    def get_plugin_registry(self):
        return _Registry()

    def deserialize_cuda_engine(self, data):
        number = _current(self.logger)
        if number is None:
            return None
        try:
            plan = json.loads(data)
        except ValueError:
            self.logger.log(ILogger.Severity.ERROR, "Serialization assertion magicTag failed. Magic tag does not match")
            return None
        if plan["version"] != __version__:
            text = "The engine plan file is not compatible with this version of TensorRT, expecting library version "
            self.logger.log(ILogger.Severity.ERROR, text + __version__ + " got " + plan["version"])
            return None
        if plan.get("warning"):
            self.logger.log(ILogger.Severity.WARNING, plan["warning"])
        return ICudaEngine(self.logger, plan, number, self.DLA_core)


class ICudaEngine:
    def __init__(self, logger, plan, device, core):
        self.logger, self.plan, self.device, self.core = logger, plan, device, core
        self.tensors = {tensor["name"]: tensor for tensor in plan["tensors"]}
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = plan.get("profiles", 1)

    def get_tensor_name(self, number):
        return list(self.tensors)[number]

    def get_tensor_mode(self, name):
        return TensorIOMode.INPUT if self.tensors[name]["input"] else TensorIOMode.OUTPUT

    def get_tensor_location(self, name):
        return TensorLocation.HOST if self.tensors[name].get("host") else TensorLocation.DEVICE

    def is_shape_inference_io(self, name):
        return bool(self.tensors[name].get("host"))

    def get_tensor_dtype(self, name):
        return DataType[self.tensors[name]["dtype"]]

    def get_tensor_format(self, name):
        return TensorFormat[self.tensors[name].get("format", "LINEAR")]

    def get_tensor_shape(self, name):
        return tuple(self.tensors[name]["shape"])

    def get_tensor_profile_shape(self, name, number):
        return [tuple(one) for one in self.tensors[name]["ranges"][number]]

    def get_tensor_profile_values(self, number, name):
        return [list(one) for one in self.tensors[name]["ranges"][number]]

    def create_execution_context(self):
        if self.plan.get("fails") == "context":
            self.logger.log(ILogger.Severity.ERROR, "Error Code 2: OutOfMemory")
            return None
        return IExecutionContext(self)


class IExecutionContext:
    def __init__(self, engine):
        self.engine, self.logger = engine, engine.logger
        self.profile = None
        self.shapes, self.addresses, self.allocators = {}, {}, {}

    def _error(self, text):
        self.logger.log(ILogger.Severity.ERROR, text)
        return False

    def set_optimization_profile_async(self, number, stream):
        if not 0 <= number < self.engine.num_optimization_profiles:
            return self._error("no such profile")
        self.profile = number
        return True

    def set_tensor_address(self, name, address):
        if not isinstance(address, int):
            raise TypeError("an address is an int")
        if address % 256 and not self.engine.tensors[name].get("host"):
            return self._error("the address of " + name + " is not aligned")
        self.addresses[name] = address
        return True

    def set_output_allocator(self, name, allocator):
        assert isinstance(allocator, IOutputAllocator)
        self.allocators[name] = allocator
        return True

    def set_input_shape(self, name, shape):
        tensor = self.engine.tensors[name]
        if not tensor.get("host"):
            least, _, largest = tensor["ranges"][self.profile]
            if len(shape) != len(least) or not all(a <= b <= c for a, b, c in zip(least, shape, largest)):
                return self._error("Static dimension mismatch while setting input shape for " + name)
        self.shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name):
        tensor = self.engine.tensors[name]
        if tensor["input"]:
            return self.shapes.get(name, tuple(tensor["shape"]))
        if "zeros" in tensor:
            return tuple(tensor["zeros"])
        inputs = {one: about for one, about in self.engine.tensors.items() if about["input"]}
        values = {one: self._host(one) for one, about in inputs.items() if about.get("host")}
        return tuple(SHAPES[self.engine.plan["program"]](self.shapes, values, name))

    def _host(self, name):
        tensor = self.engine.tensors[name]
        kind = np.dtype(_NUMPY[tensor["dtype"]])
        count = int(np.prod(tensor["shape"]))
        data = ctypes.string_at(self.addresses[name], count * kind.itemsize)
        return np.frombuffer(data, kind)

    def execute_async_v3(self, stream):
        engine = self.engine
        if _current(self.logger) != engine.device:
            return self._error("the current device is not that of the engine")
        if engine.plan.get("fails") == "run":
            return self._error("[pluginV2Runner.cpp::execute::265] Error Code 1: Cuda Runtime (an illegal address)")
        gpu = gpus.gpu(engine.device)
        arrays = {}
        for name, tensor in engine.tensors.items():
            if name not in self.addresses and name not in self.allocators:
                return self._error("the address of " + name + " is not set")
            if tensor["input"] and tensor.get("host"):
                arrays[name] = self._host(name)
            elif tensor["input"]:
                arrays[name] = np.empty(self.shapes[name], _NUMPY[tensor["dtype"]])
                if arrays[name].nbytes:
                    handle = ctypes.c_void_p(stream)
                    gpu.device.call(
                        "cuMemcpyDtoHAsync", address_of(arrays[name]), self.addresses[name], arrays[name].nbytes, handle
                    )
        gpu.device.call("cuStreamSynchronize", ctypes.c_void_p(stream))
        if engine.plan["program"] == "zeros":
            made = {name: np.zeros(one["zeros"]) for name, one in engine.tensors.items() if not one["input"]}
        else:
            made = PROGRAMS[engine.plan["program"]](arrays)
        for name, array in made.items():
            array = np.ascontiguousarray(array, _NUMPY[engine.tensors[name]["dtype"]])
            if engine.tensors[name].get("host"):
                ctypes.memmove(self.addresses[name], array.ctypes.data, array.nbytes)
                continue
            if name in self.allocators:
                address = self.allocators[name].reallocate_output_async(name, None, max(array.nbytes, 1), 256, stream)
                if address is None:
                    return self._error("Error Code 2: OutOfMemory")
                self.allocators[name].notify_shape(name, array.shape)
            else:
                address = self.addresses[name]
            if array.nbytes:
                gpu.device.call("cuMemcpyHtoDAsync", address, address_of(array), array.nbytes, ctypes.c_void_p(stream))
        return True


# Building: a network is Y = X + X, whatever is said of it.

float32 = DataType.FLOAT
ElementWiseOperation = enum.Enum("ElementWiseOperation", "SUM")


class _Network:
    def add_input(self, name, kind, shape):
        self.shape = shape
        return self

    def add_elementwise(self, one, other, operation):
        return self

    def get_output(self, number):
        return self

    def mark_output(self, output):
        pass


class _Profile:
    def set_shape(self, name, *shapes):
        self.shapes = shapes


class Builder:
    def __init__(self, logger):
        pass

    def create_network(self, flags):
        return _Network()

    def create_builder_config(self):
        return self

    def create_optimization_profile(self):
        return _Profile()

    def add_optimization_profile(self, profile):
        self.profile = profile

    def build_serialized_network(self, network, config):
        put = {"name": "X", "shape": network.shape, "dtype": "FLOAT", "input": True, "ranges": [self.profile.shapes]}
        got = {"name": "Y", "shape": network.shape, "dtype": "FLOAT", "input": False}
        plan = {"version": __version__, "program": "double", "tensors": [put, got]}
        return json.dumps(plan).encode()


# By the name of a program: what it makes of arrays; and the shapes of its outputs, where only values say them with -1
PROGRAMS = {
    "double": lambda given: {"Y": given["X"] * 2},
    "sum": lambda given: {"Y": given["A"] + given["B"], "Z": given["A"] - given["B"]},
    "positive": lambda given: {"Y": given["X"][given["X"] > 0]},
    "reshape": lambda given: {"Y": given["X"].reshape(given["S"]), "T": given["S"]},
    "count": lambda given: {"Y": given["X"], "NEXT": given["STATE"] + given["X"]},
    "lengths": lambda given: {"Y": given["N"]},
}
SHAPES = {
    "double": lambda shapes, values, name: shapes["X"],
    "sum": lambda shapes, values, name: shapes["A"],
    "positive": lambda shapes, values, name: (-1,),
    "reshape": lambda shapes, values, name: values["S"].tolist() if name == "Y" else (len(values["S"]),),
    "count": lambda shapes, values, name: shapes["X"],
    "lengths": lambda shapes, values, name: shapes["N"],
}
'''


def install(folder: Path) -> Path:
    """The folder that has the package, for PYTHONPATH."""
    package = folder / "site" / "tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    return package.parent


def tensor(name: str, shape: list[int], dtype: str = "FLOAT", **more: Any) -> dict[str, Any]:
    """An output; with `ranges`, one of (least, best, largest) for each profile, an input."""
    return {"name": name, "shape": shape, "dtype": dtype, "input": "ranges" in more, **more}


def write_plan(
    repository: Path, model: str, program: str, *tensors: dict[str, Any], config: str = "", **more: Any
) -> None:
    """A model with a plan; `more` are other entries of the plan."""
    folder = repository / model / "1"
    folder.mkdir(parents=True)
    plan = {"version": VERSION, "program": program, "tensors": tensors, **more}
    (folder / "model.plan").write_text(json.dumps(plan))
    if config:
        (repository / model / "config.pbtxt").write_text(config)

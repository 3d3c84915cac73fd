"""Checks with the libraries that compute, each where it is installed: that they work on a pool's memory in place."""

from __future__ import annotations

import base64
import importlib
import struct
from typing import Any

from stubserve_stub.device.pool import Pool

from .row import MIB, Gpu, NotTriedError, Row

COUNT = 1 << 18
NBYTES = 4 * COUNT
# An ONNX model of opset 13: Y = X + X, where both are FP32 of the dimension N.
DOUBLE = base64.b64decode(
    "CAcSADo8Cg4KAVgKAVgSAVkiA0FkZBIGZG91YmxlWhAKAVgSCwoJCAESBQoDEgFOYhAKAVkSCwoJCAESBQoDEgFOQgQKABAN"
)


def library(name: str) -> Any:
    """A module. Raises NotTriedError where it is not installed, or does not load."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotTriedError(f"{name} is not installed ({error})") from None


def _floats(value: float) -> bytes:
    return struct.pack("<f", value) * COUNT


class _Tensors:
    """Room in a pool for an input X, whose floats are all 3, and an output Y, all 0."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        # Libraries work in the context that is current.
        gpu.functions.call("cuCtxPushCurrent", gpu.device.context)
        pool = Pool(gpu.device, 16 * MIB)
        self.x, self.y = (pool.window.address(pool.allocate(NBYTES, name), NBYTES) for name in "XY")
        gpu.write(self.x, _floats(3))
        gpu.write(self.y, _floats(0))

    def expect(self, address: int, value: float, what: str) -> None:
        self.gpu.expect(address, _floats(value), what)

    def take_by_dlpack(self, tensor: Any, address: int, value: float) -> None:
        """Copies a tensor into Y in the order of its stream, as its library promises by DLPack's `stream`."""
        with self.gpu.stream() as stream:
            capsule = tensor.__dlpack__(stream=stream.handle.value)
            stream.copy(self.y, address, NBYTES)
            stream.synchronize()
            del capsule
        self.expect(self.y, value, "what was copied in the order of the tensor's stream")


class _Lent:
    """Memory of a pool, for a library that knows the CUDA array interface."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"version": 3, "shape": (COUNT,), "typestr": "<f4", "data": (address, False)}


def with_torch(gpu: Gpu) -> str:
    torch = library("torch")
    if not torch.cuda.is_available():
        raise NotTriedError(f"torch {torch.__version__} finds no GPU")
    tensors = _Tensors(gpu)
    lent = torch.as_tensor(_Lent(tensors.x), device=f"cuda:{gpu.facts.number}")
    if lent.data_ptr() != tensors.x:
        raise NotTriedError("torch made a copy of the pool's memory")
    lent += 1
    torch.cuda.synchronize()
    tensors.expect(tensors.x, 4, "what torch wrote in place")
    large = torch.ones(4096, 4096, device=lent.device)
    made = lent * 0 + (large @ large)[0, 0]
    tensors.take_by_dlpack(made, made.data_ptr(), 4096)
    return f"torch {torch.__version__}"


def with_cupy(gpu: Gpu) -> str:
    cupy = library("cupy")
    tensors = _Tensors(gpu)
    with cupy.cuda.Device(gpu.facts.number):
        memory = cupy.cuda.UnownedMemory(tensors.x, NBYTES, tensors, gpu.facts.number)
        lent = cupy.ndarray((COUNT,), cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
        lent += 1
        cupy.cuda.get_current_stream().synchronize()
        tensors.expect(tensors.x, 4, "what cupy wrote in place")
        made = lent * 2
        tensors.take_by_dlpack(made, made.data.ptr, 8)
    return f"cupy {cupy.__version__}"


def onnxruntime_for_gpus() -> Any:
    """The module. Raises NotTriedError where it is not there, or is made for CPUs."""
    runtime = library("onnxruntime")
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        raise NotTriedError(f"onnxruntime {runtime.__version__} is built without CUDA")
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    return runtime


def with_onnxruntime(gpu: Gpu) -> str:
    runtime, numpy = onnxruntime_for_gpus(), library("numpy")
    tensors = _Tensors(gpu)
    provider = ("CUDAExecutionProvider", {"device_id": gpu.facts.number})
    session = runtime.InferenceSession(DOUBLE, providers=[provider])
    if "CUDAExecutionProvider" not in session.get_providers():
        raise NotTriedError("onnxruntime's CUDA provider does not load here")
    binding = session.io_binding()
    binding.bind_input("X", "cuda", gpu.facts.number, numpy.float32, [COUNT], tensors.x)
    binding.bind_output("Y", "cuda", gpu.facts.number, numpy.float32, [COUNT], tensors.y)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    tensors.expect(tensors.y, 6, "what onnxruntime wrote in place")
    return f"onnxruntime {runtime.__version__}"


def with_tensorrt(gpu: Gpu) -> str:
    tensorrt = library("tensorrt")
    tensors = _Tensors(gpu)
    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    network = builder.create_network(0)
    given = network.add_input("X", tensorrt.float32, (COUNT,))
    result = network.add_elementwise(given, given, tensorrt.ElementWiseOperation.SUM).get_output(0)
    result.name = "Y"
    network.mark_output(result)
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    engine = tensorrt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    context.set_tensor_address("X", tensors.x)
    context.set_tensor_address("Y", tensors.y)
    with gpu.stream() as stream:
        context.execute_async_v3(stream.handle.value)
    tensors.expect(tensors.y, 6, "what TensorRT wrote in place")
    return f"tensorrt {tensorrt.__version__}"


ROWS = [
    Row("torch computes on a pool's memory, and its tensors are copied in their stream's order", with_torch),
    Row("cupy computes on a pool's memory, and its arrays are copied in their stream's order", with_cupy),
    Row("onnxruntime reads inputs from a pool and writes outputs to it", with_onnxruntime),
    Row("TensorRT reads inputs from a pool and writes outputs to it", with_tensorrt),
]

"""Checks of the backends that run files on a GPU, each where its package is installed.

Each runs Y = X + X several times: with inputs on the host and in a pool, and with outputs on the host and on the GPU.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .libraries import COUNT, DOUBLE, library, onnxruntime_for_gpus
from .row import BrokenError, Gpu, NotTriedError, Row


class Ground:
    """What a backend's instance has: blocks of a pool on the GPU, and room on the host."""

    def __init__(self, gpu: Gpu) -> None:
        self.numpy = library("numpy")
        library("msgpack")
        from stubserve_stub.backends.on_gpu import Blocks
        from stubserve_stub.runtime.devices import Devices

        line, self._server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        facts = {"line": line.detach(), "pools": 0, "gpus": gpu.facts.number + 1, "limits": {}, "peers": True}
        self.devices = Devices({**facts, "pinned": 0, "load_limits": {}}, self)  # type: ignore[arg-type]
        self.blocks = Blocks(self.devices, gpu.facts.number)

    def handle(self, kind: str, handler: object) -> None:
        """As `Control` does; no message comes."""

    def room(self, nbytes: int, source: object = None) -> Any:
        return self.numpy.empty(nbytes, self.numpy.uint8)

    def check(self, run: Callable[[Any], Any]) -> None:
        """`run` takes a batch with X of FP32, and returns outputs. Raises BrokenError."""
        from stubserve_stub.backends.gather import Gathered
        from stubserve_stub.backends.native import InputView
        from stubserve_stub.wire.datatypes import BY_NAME

        memory = self.numpy.empty(COUNT, self.numpy.float32)
        for value in (3, 5, 7):
            memory[:] = value
            on_gpu = self.devices.uploaded(memory.view(self.numpy.uint8), self.blocks.gpu.number)
            for place, given in (("host", memory.view(self.numpy.uint8)), ("GPU", on_gpu)):
                view = InputView("X", BY_NAME["FP32"].number, (COUNT,), given)
                for stays in (False, True):
                    output = run(Gathered({"X": view}, {"Y": stays}, 1, COUNT))["Y"]
                    found = self.numpy.frombuffer(bytes(output.memory), self.numpy.float32)
                    if found.size != COUNT or (found != 2 * value).any():
                        where = f"with inputs of {value} on the {place}, outputs on the {'GPU' if stays else 'host'}"
                        raise BrokenError(f"{found[:4]} of {found.size} elements {where}")


def with_onnxruntime(gpu: Gpu) -> str:
    ground, runtime = Ground(gpu), onnxruntime_for_gpus()
    from stubserve_stub.backends.onnxruntime.contract import contract_of
    from stubserve_stub.backends.onnxruntime.execution import Execution
    from stubserve_stub.backends.onnxruntime.session import open_session, options_of

    options = options_of({"name": "double"}, {}, runtime.get_available_providers(), gpu.facts.number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(DOUBLE)
        session = open_session(runtime, str(path), "double_0", options)
    ground.check(Execution(session, contract_of(session), None, ground.room, {}, ground.blocks).run)
    return f"onnxruntime {runtime.__version__}"


def with_tensorrt(gpu: Gpu) -> str:
    ground, tensorrt = Ground(gpu), library("tensorrt")
    from stubserve_stub.backends.tensorrt.execution import PlanExecution
    from stubserve_stub.backends.tensorrt.plan import Log, open_plan, used_profiles

    log = Log(tensorrt, lambda text: None)
    with ground.blocks.gpu.device.current(), tempfile.TemporaryDirectory() as folder:
        builder = tensorrt.Builder(log.logger)
        network = builder.create_network(0)
        given = network.add_input("X", tensorrt.float32, (-1,))
        result = network.add_elementwise(given, given, tensorrt.ElementWiseOperation.SUM).get_output(0)
        result.name = "Y"
        network.mark_output(result)
        config, profile = builder.create_builder_config(), builder.create_optimization_profile()
        profile.set_shape("X", (1,), (COUNT,), (2 * COUNT,))
        config.add_optimization_profile(profile)
        path = Path(folder, "model.plan")
        path.write_bytes(bytes(builder.build_serialized_network(network, config)))
        plan = open_plan(tensorrt, log, str(path), "double_0", [], None, False)
        profiles = used_profiles(plan, [], "double_0")
        execution = PlanExecution(tensorrt, log, plan, profiles, ground.blocks, "double_0", ground.room, {})
        ground.check(execution.run)
    return f"tensorrt {tensorrt.__version__}"


def with_torch(gpu: Gpu) -> str:
    ground, torch = Ground(gpu), library("torch")
    if not torch.cuda.is_available():
        raise NotTriedError(f"torch {torch.__version__} finds no GPU")
    from stubserve_stub.backends.pytorch.execution import TorchExecution
    from stubserve_stub.backends.pytorch.options import options_of
    from stubserve_stub.backends.pytorch.program import Argument, Naming, Tensors, TorchProgram

    described = [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in "XY"]
    config = {"name": "double", "input": described[:1], "output": described[1:]}
    program = TorchProgram(lambda x: x + x, [Argument(["X"])], writes_inputs=False)
    execution = TorchExecution(
        torch,
        program,
        Naming({"X": 0}, {"Y": 0}, ()),
        Tensors(torch),
        config,
        options_of(config, on_gpu=True),
        ground.blocks,
    )
    ground.check(execution.run)
    return f"torch {torch.__version__}"


ROWS = [
    Row("the onnxruntime backend takes and gives tensors on the GPU", with_onnxruntime),
    Row("the tensorrt backend takes and gives tensors on the GPU", with_tensorrt),
    Row("the pytorch backend takes and gives tensors on the GPU", with_torch),
]

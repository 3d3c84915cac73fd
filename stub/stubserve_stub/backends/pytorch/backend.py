"""The backend's functions, and the choice of the way to load a file."""

from __future__ import annotations

import sys
from typing import Callable, Dict, List, Optional

from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.gather import Gatherer
from stubserve_stub.backends.loading import import_package
from stubserve_stub.backends.native import NativeBackend, NativeRequest, NativeResponse
from stubserve_stub.backends.pytorch import file as torch_file
from stubserve_stub.backends.pytorch import saved
from stubserve_stub.backends.pytorch.execution import CPU, TorchExecution, explain
from stubserve_stub.backends.pytorch.options import TorchOptions, options_of, switch
from stubserve_stub.backends.pytorch.program import Tensors, TorchProgram, resolve
from stubserve_stub.backends.ragged import RaggedBatches
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes


class PyTorchBackend(NativeBackend):
    keeps_states = True

    def model_initialize(self, model: ModelFiles) -> None:
        self._torch = import_package("torch", "pytorch")
        self._version_dir = model.version_dir
        # For all instances: the program that they share, by where it runs
        self._shared: Dict[Optional[str], TorchProgram] = {}

    def instance_initialize(self, instance: InstanceSetup) -> None:
        super().instance_initialize(instance)
        config = self.config
        device = self._device_of(instance)
        gpu = None if device == CPU else device
        options = options_of(config, on_gpu=gpu is not None)
        tensors = Tensors(self._torch)
        remarks = [*options.remarks, *switch(self._torch, options)]
        path = torch_file.find(self._version_dir, config)
        program = self._shared.get(device)
        if program is None:
            program = self._load(path, device, gpu, options, tensors)
        if options.shares_weights:
            self._shared[device] = program
        naming = resolve(config, program, tensors)
        for remark in (*remarks, *naming.remarks):
            self._log(remark)
        if not path.endswith(torch_file.SOURCE):
            for line in options.chosen:
                self.host.log(codes.LOG_INFO, "pytorch.py", 0, line)
        self.writes_inputs = program.writes_inputs
        gatherer = Gatherer
        if gpu is not None:
            from stubserve_stub.backends.on_gpu import Blocks, GpuGatherer  # not at the top: only GPUs need it

            devices = self.host.channel.devices
            assert devices is not None, "the server has given the instance a GPU"
            self.blocks = Blocks(devices, int(instance.arguments["model_instance_device_id"]))
            gatherer = GpuGatherer
        self._execution = TorchExecution(self._torch, program, naming, tensors, config, options, self.blocks)
        self._gatherer = gatherer(config["name"], self._batches, RaggedBatches.from_config(config), "TorchScript")

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        return self._gatherer.run(requests, self._execution.run)

    def instance_finalize(self) -> None:
        del self._execution

    def _device_of(self, instance: InstanceSetup) -> Optional[str]:
        """Where an instance runs; None for a model that keeps its own devices (KIND_MODEL). Raises Refusal."""
        kind = instance.arguments["model_instance_kind"]
        if kind != "GPU":
            return None if kind == "MODEL" else CPU
        number = int(instance.arguments["model_instance_device_id"])
        count = self._torch.cuda.device_count() if self._torch.cuda.is_available() else 0
        if number >= count:
            raise Refusal(
                f"model instance '{instance.name}' is to run on GPU {number}, and torch {self._torch.__version__} of "
                f"the environment {sys.prefix} finds {count}: install a torch that is made for the driver's CUDA, or "
                "write `instance_group [ { kind: KIND_CPU } ]` in config.pbtxt"
            )
        return f"cuda:{number}"

    def _load(
        self, path: str, device: Optional[str], gpu: Optional[str], options: TorchOptions, tensors: Tensors
    ) -> TorchProgram:
        name = self.config["name"]
        if path.endswith(torch_file.SOURCE):
            return saved.load_module(self._torch, path, name, options, device or CPU, self._log)
        kind = torch_file.kind_of(path)
        loaders: Dict[str, Callable[[], TorchProgram]] = {
            torch_file.TORCHSCRIPT: lambda: saved.load_torchscript(self._torch, path, device),
            torch_file.EXPORTED: lambda: saved.load_exported(self._torch, path, tensors, gpu),
            torch_file.COMPILED: lambda: saved.load_compiled(self._torch, path, gpu),
        }
        if kind not in loaders:
            raise torch_file.no_torchscript(path, kind)
        if options.compile is not None:
            self._log("TORCH_COMPILE_OPTIONAL_PARAMETERS has no effect: it is for modules in Python")
        if kind == torch_file.TORCHSCRIPT and device == CPU:
            for found in torch_file.cuda_devices(path):
                self._log(torch_file.names_device(path, found))
        try:
            return loaders[kind]()
        except Refusal as refusal:
            raise Refusal(f"unable to load model '{name}': {refusal}") from None
        except Exception as error:
            reason = explain(error, elsewhere=gpu is None)
            raise Refusal(f"failed to load model '{name}': '{path}': {reason}") from None

    def _log(self, text: str) -> None:
        self.host.log(codes.LOG_WARNING, "pytorch.py", 0, f"model '{self.config['name']}': {text}")

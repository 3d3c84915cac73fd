"""The backend's functions, and the choice of the way to load a file."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.gather import Gatherer
from stubserve_stub.backends.loading import import_package, refuse_gpu
from stubserve_stub.backends.native import NativeBackend, NativeRequest, NativeResponse
from stubserve_stub.backends.pytorch import file as torch_file
from stubserve_stub.backends.pytorch import saved
from stubserve_stub.backends.pytorch.execution import TorchExecution, explain
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

    def instance_initialize(self, instance: InstanceSetup) -> None:
        super().instance_initialize(instance)
        config = self.config
        refuse_gpu(instance, "pytorch")
        options = options_of(config)
        tensors = Tensors(self._torch)
        remarks = [*options.remarks, *switch(self._torch, options)]
        path = torch_file.find(self._version_dir, config)
        # With KIND_MODEL the model keeps its own devices.
        device = None if instance.arguments["model_instance_kind"] == "MODEL" else "cpu"
        program = self._load(path, device, options, tensors)
        naming = resolve(config, program, tensors)
        for remark in (*remarks, *naming.remarks):
            self._log(remark)
        if not path.endswith(torch_file.SOURCE):
            for line in options.chosen:
                self.host.log(codes.LOG_INFO, "pytorch.py", 0, line)
        self.writes_inputs = program.writes_inputs
        self._execution = TorchExecution(self._torch, program, naming, tensors, config, options.inference_mode)
        self._gatherer = Gatherer(config["name"], self._batches, RaggedBatches.of(config), "TorchScript")

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        return self._gatherer.run(requests, self._execution.run)

    def instance_finalize(self) -> None:
        del self._execution

    def _load(self, path: str, device: Any, options: TorchOptions, tensors: Tensors) -> TorchProgram:
        name = self.config["name"]
        if path.endswith(torch_file.SOURCE):
            return saved.load_module(self._torch, path, name, options, self._log)
        kind = torch_file.kind_of(path)
        loaders: Dict[str, Callable[[], TorchProgram]] = {
            torch_file.TORCHSCRIPT: lambda: saved.load_torchscript(self._torch, path, device),
            torch_file.EXPORTED: lambda: saved.load_exported(self._torch, path, tensors),
            torch_file.COMPILED: lambda: saved.load_compiled(self._torch, path),
        }
        if kind not in loaders:
            raise torch_file.no_torchscript(path, kind)
        if options.compile is not None:
            self._log("TORCH_COMPILE_OPTIONAL_PARAMETERS has no effect: it is for modules in Python")
        if kind == torch_file.TORCHSCRIPT:
            for found in torch_file.cuda_devices(path):
                self._log(torch_file.names_device(path, found))
        try:
            return loaders[kind]()
        except Refusal as refusal:
            raise Refusal(f"unable to load model '{name}': {refusal}") from None
        except Exception as error:
            raise Refusal(f"failed to load model '{name}': '{path}': {explain(error)}") from None

    def _log(self, text: str) -> None:
        self.host.log(codes.LOG_WARNING, "pytorch.py", 0, f"model '{self.config['name']}': {text}")

"""The backend's functions. An instance has one engine, which completes the configuration and then serves.

No machine with a GPU has run it yet: the tests have a double of the package. Its engines compute by way of the emulated
driver.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.contract import complete, needs_completion, validate
from stubserve_stub.backends.loading import Parameters, import_package
from stubserve_stub.backends.native import NativeBackend, NativeRequest, NativeResponse
from stubserve_stub.backends.on_gpu import Blocks, GpuGatherer
from stubserve_stub.backends.ragged import RaggedBatches
from stubserve_stub.backends.tensorrt.execution import PlanExecution
from stubserve_stub.backends.tensorrt.plan import (
    Log,
    Plan,
    check_batch,
    find_file,
    open_plan,
    used_profiles,
    with_batch_of,
)
from stubserve_stub.device import gpu as gpus
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes


class TensorRtBackend(NativeBackend):
    completes_config = True
    serves_after_completion = True
    writes_inputs = False
    keeps_states = True

    def model_initialize(self, model: ModelFiles) -> None:
        self._version_dir = model.version_dir
        self._tensorrt: Any = None
        # For all instances: at most one plan, and the GPU and file that it is for
        self._opened: List[Tuple[Any, Plan]] = []

    def complete_config(self, model: str, config_json: str) -> str:
        config: Dict[str, Any] = json.loads(config_json)
        groups = [group for group in config.get("instance_group", ()) if group.get("kind") == "KIND_GPU"]
        if not groups:
            raise Refusal(_needs_gpu(model))
        if not needs_completion(config):
            return config_json
        plan = self._open(config, groups[0], groups[0]["gpus"][0], self.host.instance)
        profiles = used_profiles(plan, groups[0].get("profile", ()), self.host.instance)
        for remark in complete(config, with_batch_of(plan, profiles), 0):
            self._log(codes.LOG_WARNING, remark)
        return json.dumps(config)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        super().instance_initialize(instance)
        config = self.config
        if instance.arguments["model_instance_kind"] != "GPU":
            raise Refusal(_needs_gpu(config["name"]))
        number = int(instance.arguments["model_instance_device_id"])
        devices = self.host.channel.devices
        assert devices is not None, "the server has given the instance a GPU"
        group = _group_of(config, instance.name)
        plan = self._open(config, group, number, instance.name)
        profiles = used_profiles(plan, group.get("profile", ()), instance.name)
        contract = with_batch_of(plan, profiles)
        check_batch(config, contract)
        validate(config, contract)
        self.blocks = Blocks(devices, number)
        scalars: Dict[str, Sequence[int]] = {
            output["name"]: [int(dim) for dim in output["dims"]] for output in config["output"]
        }
        with self.blocks.gpu.device.current():
            self._execution = PlanExecution(
                self._tensorrt,
                self._tensorrt_log,
                plan,
                profiles,
                self.blocks,
                instance.name,
                self.room,
                scalars,
            )
        self._gatherer = GpuGatherer(config["name"], self._batches, RaggedBatches.from_config(config))

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        # TensorRT runs on the device that is the current one.
        with self.blocks.gpu.device.current():
            return self._gatherer.run(requests, self._execution.run)

    def instance_finalize(self) -> None:
        del self._execution

    def _open(self, config: Dict[str, Any], group: Mapping[str, Any], number: int, instance: str) -> Plan:
        """The plan on a GPU; the one that is open already if it is for the same. Raises Refusal."""
        if self._tensorrt is None:
            self._tensorrt = import_package("tensorrt", "tensorrt")
            self._tensorrt_log = Log(self._tensorrt, lambda text: self._log(codes.LOG_WARNING, text))
        path = find_file(self._version_dir, config.get("default_model_filename", ""))
        cores = [one.get("device_id", 0) for one in group.get("secondary_devices", ()) if one["kind"] == "KIND_NVDLA"]
        core = int(cores[0]) if cores else None
        key = (path, number, core)
        if [one[0] for one in self._opened] != [key]:
            self._opened.clear()
            plugins = [one for one in self.host.settings.get("plugins", "").split(";") if one]
            trusted = Parameters("tensorrt", config, self.host.settings).setting_is_on("version-compatible")
            with gpus.gpu(number).device.current():
                plan = open_plan(self._tensorrt, self._tensorrt_log, path, instance, plugins, core, trusted)
            self._opened.append((key, plan))
        return self._opened[0][1]

    def _log(self, level: int, text: str) -> None:
        self.host.log(level, "tensorrt.py", 0, text)


def _group_of(config: Mapping[str, Any], instance: str) -> Mapping[str, Any]:
    """The group of an instance, which is named after it."""
    name = instance.rpartition("_")[0]
    found: Mapping[str, Any] = next((one for one in config.get("instance_group", ()) if one["name"] == name), {})
    return found


def _needs_gpu(model: str) -> str:
    return (
        f"unable to load model '{model}', TensorRT backend supports only GPU device: no instance is on a GPU; on a "
        "machine without one, the ONNX file that the plan was built from can be served"
    )

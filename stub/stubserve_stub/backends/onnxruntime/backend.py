"""The backend's functions. A stub has one session, which completes the configuration and then serves its instances.

Upstream completes a configuration with a session that it throws away. Here the same stub goes on to serve with the same
session, because making a session is the slow part of a load. Nothing of it depends on what was completed.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.contract import Contract, complete, needs_completion, validate
from stubserve_stub.backends.gather import Gatherer
from stubserve_stub.backends.loading import Parameters, import_package
from stubserve_stub.backends.native import NativeBackend, NativeRequest, NativeResponse
from stubserve_stub.backends.onnxruntime.contract import contract_of
from stubserve_stub.backends.onnxruntime.execution import Execution
from stubserve_stub.backends.onnxruntime.session import OnnxOptions, find_file, open_session, options_of, run_options
from stubserve_stub.backends.ragged import RaggedBatches
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes


class OnnxRuntimeBackend(NativeBackend):
    completes_config = True
    serves_after_completion = True
    writes_inputs = False
    keeps_states = True

    def model_initialize(self, model: ModelFiles) -> None:
        self._onnxruntime = import_package("onnxruntime", "onnxruntime")
        self._version_dir = model.version_dir
        # For all instances: at most one session, with what it was made from
        self._opened: List[Tuple[str, OnnxOptions, Any, Contract]] = []

    def complete_config(self, model: str, config_json: str) -> str:
        config: Dict[str, Any] = json.loads(config_json)
        if not needs_completion(config):
            return config_json
        _, contract, _ = self._open(config)
        default_batch_size = Parameters("onnxruntime", config, self.host.settings).setting(
            "default-max-batch-size", "4"
        )
        for remark in complete(config, contract, default_batch_size):
            self._log(codes.LOG_WARNING, remark)
        return json.dumps(config)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        super().instance_initialize(instance)
        config = self.config
        on_gpu = instance.arguments["model_instance_kind"] == "GPU"
        device = int(instance.arguments["model_instance_device_id"]) if on_gpu else None
        session, contract, options = self._open(config, device)
        validate(config, contract)
        for remark in options.remarks:
            self._log(codes.LOG_WARNING, f"model '{config['name']}': {remark}")
        for line in options.chosen:
            self._log(codes.LOG_VERBOSE, line)
        scalars: Dict[str, Sequence[int]] = {
            output["name"]: [int(dim) for dim in output["dims"]] for output in config["output"]
        }
        made = run_options(self._onnxruntime, options)
        gatherer = Gatherer
        if device is not None:
            from stubserve_stub.backends.on_gpu import Blocks, GpuGatherer  # not at the top: only GPUs need it

            devices = self.host.channel.devices
            assert devices is not None, "the server has given the instance a GPU"
            self.blocks, gatherer = Blocks(devices, device), GpuGatherer
        self._execution = Execution(session, contract, made, self.room, scalars, self.blocks)
        reader = "onnxruntime's Python package"
        self._gatherer = gatherer(config["name"], self._batches, RaggedBatches.from_config(config), reader)

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        return self._gatherer.run(requests, self._execution.run)

    def instance_finalize(self) -> None:
        del self._execution

    def _open(self, config: Dict[str, Any], device: Optional[int] = None) -> Tuple[Any, Contract, OnnxOptions]:
        """The session for a configuration; the one that is open already if nothing differs. Raises Refusal.

        A configuration is completed by a session on the CPU, also for an instance on a GPU.
        """
        path = find_file(self._version_dir, config.get("default_model_filename", ""))
        options = options_of(config, self.host.settings, self._onnxruntime.get_available_providers(), device)
        if [one[:2] for one in self._opened] != [(path, options)]:
            self._opened.clear()
            session = open_session(self._onnxruntime, path, self.host.instance, options)
            try:
                contract = contract_of(session)
            except Refusal as refusal:
                raise Refusal(f"unable to load '{path}': {refusal}") from None
            self._opened.append((path, options, session, contract))
        _, _, session, contract = self._opened[0]
        return session, contract, options

    def _log(self, level: int, text: str) -> None:
        self.host.log(level, "onnxruntime.py", 0, text)

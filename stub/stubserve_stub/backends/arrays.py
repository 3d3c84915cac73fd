"""A backend whose model computes on arrays: a batch is one array for each input, and one for each output.

This is what most libraries want. Batching, ragged inputs, implicit states and errors are those of `native` and
`gather`. A backend derives from `ArrayBackend` and has `load` and `predict`; `describe` fills in configurations if the
model's file knows its tensors. Where arrays of numpy are not enough (memory of GPUs, room for outputs), derive from
`NativeBackend`.
"""

from __future__ import annotations

import json
from typing import Any, Collection, Dict, List, Mapping, Optional

import numpy as np

from stubserve_stub.api.bytes_tensor import elements_of, object_array
from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.contract import Contract, complete, needs_completion, validate
from stubserve_stub.backends.gather import Gathered, Gatherer
from stubserve_stub.backends.loading import Parameters, added_outputs, import_package
from stubserve_stub.backends.native import InputView, NativeBackend, NativeOutput, NativeRequest, NativeResponse
from stubserve_stub.backends.ragged import RaggedBatches
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_CONFIG_NAME, BY_NUMBER, BYTES


class ArrayBackend(NativeBackend):
    writes_inputs = False
    keeps_states = True
    completes_config = True
    serves_after_completion = True

    def load(self, config: Mapping[str, Any], version_dir: str) -> None:
        """Loads the model. `config` is the configuration as JSON has it. A Refusal fails the load in its own words."""
        raise NotImplementedError

    def predict(self, inputs: Dict[str, np.ndarray], outputs: Collection[str]) -> Mapping[str, np.ndarray]:
        """The outputs, at least those that are asked for. With batching the first dimension of all is the batch's.

        Inputs may be read-only. BYTES are arrays of `str`, and BF16 those of `ml_dtypes.bfloat16`. An exception is the
        answer to the requests of this run.
        """
        raise NotImplementedError

    def describe(self, config: Mapping[str, Any], version_dir: str) -> Optional[Contract]:
        """The tensors of the model's file, to complete and compare the configuration; None if the file has no names.

        Called before `load`, and for the first instance of a model that is to be completed twice.
        """
        return None

    def model_initialize(self, model: ModelFiles) -> None:
        self._version_dir = model.version_dir

    def complete_config(self, model: str, config_json: str) -> str:
        config: Dict[str, Any] = json.loads(config_json)
        contract = self.describe(config, self._version_dir) if needs_completion(config) else None
        if contract is None:
            return config_json
        settings = Parameters(config["backend"], config, self.host.settings)
        for remark in complete(config, contract, settings.setting("default-max-batch-size", "4")):
            self.host.log(codes.LOG_WARNING, f"{config['backend']}.py", 0, remark)
        return json.dumps(config)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        super().instance_initialize(instance)
        config = self.config
        contract = self.describe(config, self._version_dir)
        if contract is not None:
            validate(config, contract)
        outputs = [*config["output"], *added_outputs(config)]
        self._types = {output["name"]: BY_CONFIG_NAME[output["data_type"]].number for output in outputs}
        self._gatherer = Gatherer(config["name"], self._batches, RaggedBatches.from_config(config))
        self.load(config, self._version_dir)

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        return self._gatherer.run(requests, self._run)

    def _run(self, batch: Gathered) -> Dict[str, NativeOutput]:
        made = self.predict({name: self._input(view) for name, view in batch.inputs.items()}, batch.outputs)
        if not isinstance(made, Mapping):
            raise Refusal(
                f"model '{self.config['name']}' has not made outputs by their names, but a {type(made).__name__}"
            )
        missing = [name for name in batch.outputs if name not in made]
        if missing:
            raise Refusal(f"model '{self.config['name']}' has not made the output '{missing[0]}', but {list(made)}")
        return {name: self._output(name, np.asarray(made[name])) for name in batch.outputs}

    def _output(self, name: str, array: np.ndarray) -> NativeOutput:
        datatype = self._types[name]
        if datatype == BYTES:
            return NativeOutput(name, BYTES, array.shape, object_array(elements_of(array)))
        if array.dtype != self._numpy(datatype):
            raise Refusal(
                f"configuration expects datatype {BY_NUMBER[datatype].config_name} for output '{name}', model "
                f"'{self.config['name']}' provides an array of {array.dtype}"
            )
        return NativeOutput(name, datatype, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def _input(self, view: InputView) -> np.ndarray:
        memory: np.ndarray = view.memory if view.datatype == BYTES else view.memory.view(self._numpy(view.datatype))
        return memory.reshape(view.shape)

    def _numpy(self, datatype: int) -> np.dtype:
        """The type of arrays. Raises Refusal for BF16, which numpy does not have, without ml_dtypes, which has it."""
        known = BY_NUMBER[datatype].numpy
        if known is None:
            known = np.dtype(import_package("ml_dtypes", "", self.config["backend"]).bfloat16)
        return known

"""The backend newbackend: `model.newbackend` holds a number, and OUTPUT is INPUT multiplied by it."""

import os

import numpy as np
from stubserve_newbackend.options import factor_of
from stubserve_stub.backends.arrays import ArrayBackend
from stubserve_stub.backends.contract import Contract
from stubserve_stub.backends.loading import TensorInfo
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import BY_NAME

FP32 = BY_NAME["FP32"].number


class Backend(ArrayBackend):
    def describe(self, config, version_dir):
        # The inputs and outputs that the model's file has; -1 is a dimension of any size, and the first is the batch's.
        # Called before `load`: a backend whose file knows them reads the file here, and keeps it for `load`.
        inputs = [TensorInfo("INPUT", FP32, [-1, -1])]
        outputs = [TensorInfo("OUTPUT", FP32, [-1, -1])]
        return Contract({one.name: one for one in inputs}, {one.name: one for one in outputs})

    def load(self, config, version_dir):
        path = os.path.join(version_dir, config.get("default_model_filename") or "model.newbackend")
        try:
            with open(path) as file:
                number = float(file.read())
        except (OSError, ValueError) as error:
            raise Refusal(f"unable to load '{path}' for model '{config['name']}': {error}") from None
        factor = factor_of(config)
        self.factor = np.float32(number if factor is None else factor)

    def predict(self, inputs, outputs):
        # A whole batch: one array for each input, and one for each output, of the type that `describe` says
        # (`.astype(...)`). An exception is the answer to all requests of the batch.
        return {"OUTPUT": inputs["INPUT"] * self.factor}

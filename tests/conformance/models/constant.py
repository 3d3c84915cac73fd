"""Needs no input: VALUE is the model version it runs as."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        value = pb_utils.Tensor("VALUE", np.array([self.version], dtype=np.int32))
        return [pb_utils.InferenceResponse([value]) for _ in requests]

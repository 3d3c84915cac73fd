"""Gives back what initialize got: the args dict with the configuration parsed, as JSON."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        seen = dict(args)
        seen["types"] = sorted({type(value).__name__ for value in args.values()})
        seen["model_config"] = json.loads(args["model_config"])
        seen["model_dir"] = pb_utils.get_model_dir()
        self.text = json.dumps(seen, sort_keys=True)

    def execute(self, requests):
        result = pb_utils.Tensor("ARGS", np.array([self.text], dtype=object))
        return [pb_utils.InferenceResponse([result]) for _ in requests]

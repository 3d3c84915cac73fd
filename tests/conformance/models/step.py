"""A step of a pipeline: OUT is the sum of all inputs and `add`, TWICE the double of that."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.outputs = [output["name"] for output in config["output"]]
        self.add = float(config["parameters"].get("add", {"string_value": "1"})["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            total = self.add + sum(tensor.as_numpy() for tensor in request.inputs())
            values = {"OUT": total, "TWICE": 2 * total}
            wanted = request.requested_output_names()
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor(name, np.asarray(values[name], np.float32))
                        for name in self.outputs
                        if name in wanted
                    ]
                )
            )
        return responses

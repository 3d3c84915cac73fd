"""Tells each request with which others it was executed: the shapes of all their inputs."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.batching = json.loads(args["model_config"])["max_batch_size"] > 0

    def execute(self, requests):
        shapes = sorted(sorted([tensor.name(), list(tensor.shape())] for tensor in each.inputs()) for each in requests)
        told = json.dumps(shapes)
        responses = []
        for request in requests:
            rows = request.inputs()[0].shape()[0] if self.batching and request.inputs() else 1
            array = np.array([[told]] * rows if self.batching else [told], dtype=object).reshape(
                [-1, 1][: 1 + self.batching]
            )
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SHAPES", array)]))
        return responses

"""The mean of a sentence's vectors, without its padding, scaled to length 1: then a dot product is a similarity."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.pool(request) for request in requests]

    def pool(self, request):
        pieces = pb_utils.get_input_tensor_by_name(request, "PIECES").as_numpy()  # [batch, pieces, 384]
        mask = pb_utils.get_input_tensor_by_name(request, "MASK").as_numpy().astype(np.float32)[:, np.newaxis]
        total = (mask @ pieces)[:, 0]
        embedding = total / np.linalg.norm(total, axis=1, keepdims=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", embedding)])

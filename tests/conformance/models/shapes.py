"""Echoes each input and tells the shape that the model saw as SEEN."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            seen = np.array([str(list(array.shape))], dtype=object)
            if array.ndim and array.shape[0] and self.batching:
                seen = np.array([[str(list(array.shape))]] * array.shape[0], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array), pb_utils.Tensor("SEEN", seen)]))
        return responses

    def initialize(self, args):
        self.batching = '"max_batch_size":0' not in args["model_config"].replace(" ", "")

"""Puts the end of the piece before in front of a piece of audio, and says at which rate it was sampled."""

import numpy as np
import triton_python_backend_utils as pb_utils

RATE = np.array([16000])  # samples a second


class TritonPythonModel:
    def execute(self, requests):
        return [self.join(request) for request in requests]

    def join(self, request):
        audio, before = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("AUDIO", "BEFORE"))
        window = np.concatenate([before, audio])[np.newaxis]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("WINDOW", window),
                pb_utils.Tensor("RATE", RATE),
                pb_utils.Tensor("LAST", audio[-len(before) :]),
            ]
        )

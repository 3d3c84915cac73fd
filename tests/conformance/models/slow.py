"""Takes DELAY milliseconds, so that requests pile up behind it."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            delay = request.inputs()[0].as_numpy()
            time.sleep(float(delay.max()) / 1000)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("DONE", delay)]))
        return responses

"""Executes each request as often as its IN says, and tells what it saw of it each time."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    def execute(self, requests):
        return [self.step(request) for request in requests]

    def step(self, request):
        wanted = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(-1)[0]
        if not request.correlation_id():  # an empty slot
            return pb_utils.InferenceResponse([])
        seen = self.seen.setdefault(request.correlation_id(), [])
        inputs = {tensor.name(): tensor.as_numpy().reshape(-1).tolist() for tensor in request.inputs()}
        seen.append([request.request_id(), request.correlation_id(), request.flags(), inputs])
        if wanted < 0 and len(seen) == -wanted:
            del self.seen[request.correlation_id()]
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused by the model"))
        if len(seen) < abs(wanted):
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        del self.seen[request.correlation_id()]
        text = np.array([json.dumps(seen, sort_keys=True)], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", text.reshape(1, 1))])

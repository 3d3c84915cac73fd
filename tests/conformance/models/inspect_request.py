"""Tells what the model can see of its request, as JSON."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = {
                "request_id": request.request_id(),
                "correlation_id": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters()),
                "parameters_type": type(request.parameters()).__name__,
                "requested": sorted(request.requested_output_names()),
                "requested_type": type(request.requested_output_names()).__name__,
                "inputs": sorted(
                    [t.name(), list(t.shape()), str(t.as_numpy().dtype), t.is_cpu()] for t in request.inputs()
                ),
                "cancelled": request.is_cancelled(),
            }
            text = np.array([json.dumps(seen, sort_keys=True)], dtype=object)
            other = np.array(["other"], dtype=object)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", text), pb_utils.Tensor("OTHER", other)])
            )
        return responses

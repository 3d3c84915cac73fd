"""Returns its INT32 scores in every type that classification must accept or refuse."""

import numpy as np
import triton_python_backend_utils as pb_utils

TYPES = {"F32": np.float32, "F64": np.float64, "I8": np.int8, "I64": np.int64, "U8": np.uint8, "F16": np.float16}


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            scores = request.inputs()[0].as_numpy()
            outputs = [pb_utils.Tensor(name, scores.astype(kind)) for name, kind in TYPES.items()]
            outputs.append(pb_utils.Tensor("TRUTH", scores > 2))
            outputs.append(pb_utils.Tensor("WORDS", scores.astype(str).astype(object)))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

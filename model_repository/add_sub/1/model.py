"""The sum and the difference of two vectors: the smallest useful model.

The folder is the interface: `add_sub/` is the model's name, `1/` its version, and this file must define
a class named `TritonPythonModel`.
"""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        """Called with a list of requests; must return one response for each, in the same order."""
        responses = []
        for request in requests:
            # as_numpy() gives the client's tensor as a numpy array of shape [batch, length].
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()

            # The config lets each vector have any length, so only the model can see that two belong together.
            # An error answers this request alone; the others in the list are unharmed.
            if a.shape != b.shape:
                error = pb_utils.TritonError(
                    f"INPUT0 and INPUT1 must have the same shape, got {list(a.shape)} and {list(b.shape)}",
                    pb_utils.TritonError.INVALID_ARG,
                )
                responses.append(pb_utils.InferenceResponse(error=error))
                continue

            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)]
                )
            )
        return responses

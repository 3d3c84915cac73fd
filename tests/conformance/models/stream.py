"""Sends IN responses, counted from zero, then the final flag; a negative IN says what goes wrong, and when."""

import numpy as np
import triton_python_backend_utils as pb_utils


def answer(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            number = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            sender = request.get_response_sender()
            if number == -9:
                raise ValueError("minus nine")
            if number in (-1, -2):
                error = pb_utils.TritonError("an error of the model", pb_utils.TritonError.NOT_FOUND)
                sender.send(pb_utils.InferenceResponse(error=error))
            for value in range(2 if number in (-2, -10, -11) else max(number, 0)):
                sender.send(answer(value))
            if number == -11:
                continue
            if number == -10:
                raise ValueError("minus ten")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

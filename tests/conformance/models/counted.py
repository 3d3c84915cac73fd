"""OUT is IN and one; COUNT says how many executions there were before. IN of -1 is an error, of -2 an exception."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.batched = config["max_batch_size"] > 0
        self.called = config["parameters"].get("calls", {"string_value": ""})["string_value"]
        self.count = 0

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        first = given.ravel()[0] if given.size else 0
        if first == -1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("an error of the model"))
        if first == -2:
            raise ValueError("an exception of the model")
        if self.called:
            call = pb_utils.InferenceRequest(
                model_name=self.called,
                requested_output_names=["OUT", "COUNT"],
                inputs=[pb_utils.Tensor("IN", given)],
            )
            answered = call.exec()
            if answered.has_error():
                return pb_utils.InferenceResponse(error=answered.error())
            return pb_utils.InferenceResponse(answered.output_tensors())
        count = np.full((1, 1) if self.batched else (1,), self.count, np.int32)
        wanted = request.requested_output_names()
        outputs = [pb_utils.Tensor("OUT", given + 1), pb_utils.Tensor("COUNT", count)]
        return pb_utils.InferenceResponse([one for one in outputs if one.name() in wanted])

    def execute(self, requests):
        answers = [self.answer(request) for request in requests]
        self.count += 1
        return answers

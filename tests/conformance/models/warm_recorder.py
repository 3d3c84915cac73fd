"""Keeps what each `execute` was given, and tells it as SEEN; the parameters `values`, `fails` and `late` change it.

With `values` "no" only types and shapes are kept; `fails` is what goes wrong in the first `execute`; with `late` so
many answers come through senders when `execute` has returned.
"""

import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def values_of(array):
    if array.dtype == np.object_:
        return [element.decode() for element in array.reshape(-1)]
    return array.astype(np.float64).reshape(-1).tolist()


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.batching = config["max_batch_size"] > 0
        self.instance = args["model_instance_name"]
        self.bf16 = any(tensor["data_type"] == "TYPE_BF16" for tensor in config["input"])
        self.seen = []

    def execute(self, requests):
        told = json.dumps(self.seen)
        self.seen.append([self.describe(request) for request in requests])
        fails = self.parameters.get("fails") if len(self.seen) == 1 else None
        if fails == "raise":
            raise ValueError("not warm yet")
        if fails == "short":
            return []
        if fails == "none":
            return None
        if fails == "call":
            call = pb_utils.InferenceRequest(model_name="nosuch", requested_output_names=[], inputs=[])
            pb_utils.InferenceRequest.exec(call).output_tensors()
        answers = [self.answer(told, fails, index) for index in range(len(requests))]
        if "late" not in self.parameters:
            return answers
        senders = [request.get_response_sender() for request in requests]
        threading.Thread(target=self.send, args=(senders, answers)).start()
        return None

    def send(self, senders, answers):
        for sender, answer in zip(senders, answers, strict=True):
            for _ in range(int(self.parameters["late"])):
                sender.send(answer)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, told, fails, index):
        if fails == "error" or (fails == "second" and index == 1):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"no {index}"))
        array = np.array([[told]] if self.batching else [told], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", array)])

    def describe(self, request):
        inputs = {}
        for tensor in request.inputs():
            inputs[tensor.name()] = [list(tensor.shape())]
            if not self.bf16:
                array = tensor.as_numpy()
                inputs[tensor.name()] += [str(array.dtype)]
                if self.parameters.get("values") != "no":
                    inputs[tensor.name()] += [values_of(array)]
        return {
            "inputs": inputs,
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "requested": sorted(request.requested_output_names()),
        }

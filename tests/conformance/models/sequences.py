"""Tells of each batch what the model sees in all of its slots, and counts the requests of each sequence."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def plain(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class TritonPythonModel:
    def initialize(self, args):
        self.counts = {}
        # Where clients come at once, nobody promises which of them has which slot.
        self.sorts = "sorted" in json.loads(args["model_config"]).get("parameters", {})

    def execute(self, requests):
        slots = [self.seen(request) for request in requests]
        shown = sorted(slots, key=lambda slot: slot["correlation_id"]) if self.sorts else slots
        responses = []
        for request, slot in zip(requests, slots, strict=True):
            wait_ms = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(-1)[0])
            if not self.is_null(request) and wait_ms > 1:
                time.sleep(wait_ms / 1000)
            key = request.correlation_id()
            if request.flags() & 1:
                self.counts[key] = 0
            self.counts[key] = self.counts.get(key, 0) + 1
            if not self.is_null(request) and wait_ms == -1:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("refused by the model")))
                continue
            text = json.dumps({"own": slot, "slots": shown, "count": self.counts[key]}, sort_keys=True)
            seen = np.array([text], dtype=object)
            if len(pb_utils.get_input_tensor_by_name(request, "IN").shape()) > 1:
                seen = seen.reshape(1, 1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", seen)]))
        return responses

    @staticmethod
    def is_null(request):
        return not request.correlation_id()

    def seen(self, request):
        given = {}
        for tensor in request.inputs():
            array = tensor.as_numpy()
            # What an empty slot has in an input of the client's is nobody's promise.
            values = None if self.is_null(request) and tensor.name() == "IN" else array.reshape(-1).tolist()
            if values is not None:
                values = [plain(value) for value in values]
            given[tensor.name()] = [list(tensor.shape()), str(array.dtype), values]
        return {
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "requested": sorted(request.requested_output_names()),
            "inputs": given,
        }

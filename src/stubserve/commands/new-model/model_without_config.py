"""The model: twice the numbers that a client sends.

The folder is the interface. Its name is the model's name, `1/` is a version of it, and this file must define a class
named `TritonPythonModel`. Each instance of the model is a process of its own with one object of that class.
"""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        """Says what the model takes and gives, in place of a config.pbtxt. The server checks every request against it.

        The dims leave the batch dimension out; -1 means "any length".
        """
        config.set_max_batch_size(64)
        config.set_dynamic_batching()
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def initialize(self, args):
        """Called once, before the first request: load weights here. `args` has the model's name, version and folder."""
        self.factor = 2

    def execute(self, requests):
        """Called with a list of requests; must return one response for each, in the same order."""
        responses = []
        for request in requests:
            # A numpy array of shape [batch, length].
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            # An exception here would answer all requests of the list with an error. An error for one of them is
            # pb_utils.InferenceResponse(error=pb_utils.TritonError("what is wrong with it")).
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.factor * x)]))
        return responses

    def finalize(self):
        """Called once, at the end: close what `initialize` has opened."""

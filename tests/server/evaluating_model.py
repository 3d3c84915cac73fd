"""A model that evaluates expressions of Python in its stub, for tests of what a stub may do."""

from __future__ import annotations

from textwrap import dedent

_SOURCE = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def outcome(attempt, *arguments):
        try:
            attempt(*arguments)
        except OSError as error:
            return type(error).__name__
        return "done"

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                text = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().reshape(-1)[0].decode()
                value = json.dumps(eval(text)).encode()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([value], object))]))
            return responses
"""


def evaluating(helpers: str) -> str:
    """The text of its model.py. Expressions may use what `helpers` defines, and `outcome(attempt, *arguments)`."""
    return dedent(_SOURCE) + dedent(helpers)

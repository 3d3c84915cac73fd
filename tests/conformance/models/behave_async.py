"""The asynchronous twin of behave.py, for the few commands where a coroutine may differ."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0)
        command = requests[0].inputs()[0].as_numpy().reshape(-1)[0].decode()
        if command == "raise":
            raise ValueError("the coroutine says no")
        if command == "tuple":
            return ()
        if command == "none_element":
            return ["text"]
        result = pb_utils.Tensor("RESULT", np.array(["async " + command], dtype=object))
        return [pb_utils.InferenceResponse([result])]

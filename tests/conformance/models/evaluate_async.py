"""The asynchronous twin of evaluate.py: EXPRESSION is awaited where that is possible."""

import asyncio
import inspect

import evaluate
import numpy as np
import triton_python_backend_utils as pb_utils


async def gather(*requests):
    """The outcomes of requests that are made at once."""
    return [evaluate.outcome(r) for r in await asyncio.gather(*(r.async_exec() for r in requests))]


async def collect(request):
    """The outcome of each response of a decoupled model."""
    return [evaluate.outcome(response) for response in await request.async_exec(decoupled=True)]


async def outcome(request):
    return evaluate.outcome(await request.async_exec())


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            source = pb_utils.get_input_tensor_by_name(request, "EXPRESSION").as_numpy()[0].decode()
            try:
                result = eval(source, dict(vars(evaluate), **globals(), request=request))
                text = repr(await result if inspect.isawaitable(result) else result)
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([text], dtype=object))]))
        return responses

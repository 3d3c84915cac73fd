"""A model with types, checked by mypy against the installed package (test_wheel.py). It is never run."""

import asyncio
from typing import Any

import c_python_backend_utils as c
import numpy as np
import triton_python_backend_utils as pb_utils
from typing_extensions import assert_type

from stubserve import testing


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        assert_type(config.as_dict(), dict[str, Any])
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        for request in requests:
            assert_type(pb_utils.get_input_tensor_by_name(request, "X"), pb_utils.Tensor | None)
            assert_type(request.get_response_sender(), c.InferenceResponseSender)
            assert_type(request.parameters(), str)
        batch = pb_utils.stack(requests, "X")
        pb_utils.Logger.log_info("text")
        pb_utils.TritonError("text", pb_utils.TritonError.NOT_FOUND)
        return pb_utils.unstack(requests, {"Y": np.sqrt(batch)})


async def call() -> None:
    request = pb_utils.InferenceRequest(model_name="m", requested_output_names=["Y"], inputs=[])
    assert_type(request.exec(), pb_utils.InferenceResponse)
    assert_type(request.exec(decoupled=True), c.ResponseIterator)
    assert_type(await request.async_exec(), pb_utils.InferenceResponse)
    for response in request.exec(decoupled=True):
        assert_type(response.error(), pb_utils.TritonError | None)


def wrong() -> None:
    pb_utils.InferenceRequest(model_name="m", inputs=[])  # type: ignore[call-overload]
    pb_utils.Tensor("X", [1.0])  # type: ignore[arg-type]
    pb_utils.InferenceResponse(error="text")  # type: ignore[arg-type]
    pb_utils.nothing()  # type: ignore[attr-defined]


def test() -> None:
    with testing.load("m") as model:
        assert_type(model.execute([{}])[0].response, pb_utils.InferenceResponse)
    asyncio.run(call())

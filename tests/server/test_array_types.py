"""Arrays of types that numpy itself does not have, or that Triton refuses, in a `model.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_server import Serving, io_config, write_model
from tests.server.grpc_calls import connected, request

HALVES = """
    import sys
    import numpy as np
    import triton_python_backend_utils as pb_utils

    assert "ml_dtypes" not in sys.modules

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                answer = array / array.dtype.type(2)
                assert str(answer.dtype) == "bfloat16"
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)]))
            return responses
"""
TEXTS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            given = [request.inputs()[0].as_numpy().astype(str) for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.char.upper(one))]) for one in given]
"""


def test_bf16_and_text(repository: Path) -> None:
    pytest.importorskip("ml_dtypes")
    write_model(repository, "halves", HALVES, io_config("BF16"))
    write_model(repository, "texts", TEXTS, io_config("STRING"))
    with Serving(repository) as server, connected(server) as client:
        server.wait_until_ready()
        for count in (2, 100_000):  # in the message, and in shared memory
            answer = client.infer(request("halves", raw=[b"\x80\x40" * count], shape=[count], datatype="BF16"))
            assert answer.raw_output_contents[0] == b"\0\x40" * count
        inputs = [{"name": "INPUT0", "datatype": "BYTES", "shape": [2], "data": ["ab", "c"]}]
        assert server.infer_json("texts", inputs).json()["outputs"][0]["data"] == ["AB", "C"]

"""`pb_utils.stack` and `unstack` in a server: inputs in the arena, joined to one array."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.real_server import Serving, binary_output, io_config, write_model

# Says in the first column of each row how many requests the batch has, and 10 more if the array is their memory.
STACKING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.kept = None

        def execute(self, requests):
            batch = pb_utils.stack(requests, "INPUT0")
            arrays = [request.inputs()[0].as_numpy() for request in requests]
            batch[:, 1:] *= 2
            batch[:, 0] = all(np.shares_memory(batch, array) for array in arrays) * 10 + len(requests)
            # Held beyond its requests: their memory must not be used for others.
            if self.kept is not None:
                assert (self.kept[1] == self.kept[0]).all(), "memory of a held batch was used again"
            self.kept = (batch.copy(), batch)
            return pb_utils.unstack(requests, {"OUTPUT0": batch})
"""
# Calls the other model with each row of its own, all at a time.
SPREADING = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def execute(self, requests):
            rows = pb_utils.stack(requests, "INPUT0")
            calls = [
                pb_utils.InferenceRequest(
                    model_name="stacking",
                    requested_output_names=["OUTPUT0"],
                    inputs=[pb_utils.Tensor("INPUT0", row[None])],
                ).async_exec()
                for row in rows
            ]
            answers = await asyncio.gather(*calls)
            joined = np.concatenate([answer.output_tensors()[0].as_numpy() for answer in answers])
            return pb_utils.unstack(requests, {"OUTPUT0": joined})
"""


def test_rows_spread_over_a_batching_model(repository: Path) -> None:
    batching = "dynamic_batching { max_queue_delay_microseconds: 2000000 preferred_batch_size: 4 }"
    write_model(repository, "stacking", STACKING, io_config(max_batch_size=4, extra=batching))
    write_model(repository, "spreading", SPREADING, io_config(max_batch_size=4))
    with Serving(repository) as server:
        seen = []
        for number in range(5):
            rows = np.full((4, 16384), number + 1, np.float32) + np.arange(4, dtype=np.float32)[:, None]
            answer = server.infer_array("spreading", rows)
            assert answer.status == 200, answer
            output = binary_output(answer)
            assert (output[:, 1:] == 2 * rows[:, 1:]).all()
            seen += output[:, 0].tolist()
        # Four requests, in a copy; one request's array is its own memory.
        assert 4 in seen
        assert 14 not in seen
        assert server.infer_json(
            "stacking", [{"name": "INPUT0", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}]
        ).json()["outputs"][0]["data"] == [11, 4, 11, 8]

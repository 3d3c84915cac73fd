"""Models with implicit state, which tell the state that they are given and answer with a new one."""

from __future__ import annotations

import struct

from .repository import Model, io

_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = {tensor.name(): tensor for tensor in request.inputs()}
            state = tensors["STATE"].as_numpy()
            told = "{} {} {}".format(sorted(tensors), state.shape, state.reshape(-1).tolist())
            told = np.array([told], dtype=object).reshape([1] * state.ndim)
            new = pb_utils.Tensor("NEW", state + tensors["IN"].as_numpy())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", told), new]))
        return responses
"""
_IO = io("input", "IN", "INT32", "1") + io("output", "SEEN", "STRING", "1")
_ASKED = io("output", "NEW", "INT32", "3")
_FOUR = "max_batch_size: 4\n"
_ZERO = 'initial_state { name: "z" data_type: TYPE_INT32 dims: [3] zero_data: true }'
_FILE = 'initial_state { name: "f" data_type: TYPE_INT32 dims: [2] data_file: "first" }'
_FILES: dict[str, str | bytes] = {"initial_state/first": struct.pack("<iii", 500, -600, 0)}


def _model(
    name: str, dims: str, initial: str, strategy: str = "direct { }", more: str = _FOUR, outputs: str = ""
) -> Model:
    state = f'state {{ input_name: "STATE" output_name: "NEW" data_type: TYPE_INT32 dims: [{dims}] {initial} }}'
    batching = f"sequence_batching {{ {strategy}\nmax_sequence_idle_microseconds: 10000000\n{state} }}\n"
    return Model(f"state_{name}", _IO + outputs + more + batching, code=_CODE, files={**_FILES})


MODELS = (
    _model("zero", "3", _ZERO),
    _model("file", "2", _FILE),
    _model("oldest", "2", _FILE, "oldest { max_candidate_sequences: 4 }"),
    _model("single", "2", _FILE, more=""),
    _model("variable", "-1", _ZERO),
    _model("asked", "3", _ZERO, outputs=_ASKED),
)

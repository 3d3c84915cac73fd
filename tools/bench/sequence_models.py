"""The models of the rows about sequences: each adds up what every one of its sequences sends."""

from __future__ import annotations

from pathlib import Path

from .repository import write_configured

# The sums by place of the batch, which is what the direct strategy is for
BY_PLACE = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = np.zeros((64, 1, 1), np.int32)

    def execute(self, requests):
        responses = []
        for sum, request in zip(self.sums, requests):
            if pb_utils.get_input_tensor_by_name(request, "READY").as_numpy()[0, 0]:
                if pb_utils.get_input_tensor_by_name(request, "START").as_numpy()[0, 0]:
                    sum[:] = 0
                sum += pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", sum)]))
        return responses
"""

# The sums by correlation id
BY_ID = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = int(pb_utils.get_input_tensor_by_name(request, "ID").as_numpy()[0, 0])
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if pb_utils.get_input_tensor_by_name(request, "START").as_numpy()[0, 0]:
                self.sums[key] = np.zeros((1, 1), np.int32)
            self.sums[key] = self.sums[key] + value
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.sums[key])]))
        return responses
"""

CONFIG = """\
backend: "python"
max_batch_size: {rows}
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
sequence_batching {{
  {strategy}
  max_sequence_idle_microseconds: 600000000
  control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }}
  {control}
}}
instance_group [ {{ count: 4 kind: KIND_CPU }} ]
"""
READY = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }'
ID = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }'


def write_sequences(repository: Path) -> None:
    """One model of each strategy, with places for 256 sequences on four instances."""
    write_configured(repository, "direct", BY_PLACE, CONFIG.format(rows=64, strategy="direct { }", control=READY))
    oldest = "oldest { max_candidate_sequences: 64 }"
    write_configured(repository, "oldest", BY_ID, CONFIG.format(rows=32, strategy=oldest, control=ID))

"""More models for a run over everything: cached ones, an ONNX one, two that share a resource, one that is late."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tools.bench.repository import write_configured

from ..models import WORKS_CONFIG, each, ensemble

# y = 3x + 1, and the turn that its configuration has: an answer that was kept from an earlier turn shows.
CACHED = """\
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.turn = int(json.loads(args["model_config"])["parameters"]["turn"]["string_value"])

    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, x):
        turn = np.full((x.shape[0], 1), self.turn, np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", 3 * x + 1), pb_utils.Tensor("TURN", turn)])
"""
CACHED_CONFIG = """\
backend: "python"
max_batch_size: 16
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "TURN" data_type: TYPE_INT32 dims: [ 1 ] } ]
dynamic_batching { }
response_cache { enable: true }
parameters { key: "turn" value { string_value: "%d" } }
instance_group [ { count: 2 kind: KIND_CPU } ]
"""

# y = x + 1, where nobody else holds the resource; else nonsense. The lock ends with the process.
LIMITED = """\
import fcntl
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.file = open(os.environ["CHAOS_RESOURCE"], "w")

    def execute(self, requests):
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            more = -1000
        else:
            more = 1
            time.sleep(0.001)
            fcntl.flock(self.file, fcntl.LOCK_UN)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() + more)])
            for request in requests
        ]
"""
LIMITED_CONFIG = """\
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [
  { count: 2 kind: KIND_CPU rate_limiter { resources [ { name: "THE_ONE" count: 1 } ] priority: %d } }
]
"""

# y = 5x, later than some can wait.
LATE = each("5 * x", 0.02)
LATE_CONFIG = """\
backend: "python"
max_batch_size: 2
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching {
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy {
    timeout_action: REJECT default_timeout_microseconds: 500000 allow_timeout_override: true max_queue_size: 6
  }
}
"""

# What goes in, whatever it is.
ECHO_CONFIG = """\
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
"""

ADDS_CONFIG = """\
backend: "onnxruntime"
max_batch_size: 16
input [ { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "B" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
"""

# y = -6x - 3: `works` in Python, the sum of what it makes and x in ONNX, and a model that calls `works` with that.
MIXED_CONFIG = ensemble("works X=X -> Y=a", "adds A=X B=a -> SUM=b", "calls X=b -> Y=Y")

# y = 3x + 1, in a while, and sometimes an error: equal requests meet, and nobody gets the error of another.
MOODY = """\
import random
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, x):
        if random.random() < 0.15:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("not in the mood"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", 3 * x + 1)])
"""
MOODY_CONFIG = WORKS_CONFIG + "response_cache { enable: true }\n"

# y = 6x + 2: two steps that ask the same of `moody`, and the sum of what they get.
TWINS_CONFIG = ensemble(
    "moody X=X -> Y=a", "moody X=X -> Y=b", "adds A=a B=b -> SUM=Y", more="  max_inflight_requests: 2"
)

# y = 10x and its release, which only its file tells. The ensemble answers the same, and both are cached.
RELEASED = each("10 * x + %d")
FLOW_CONFIG = ensemble("released X=X -> Y=Y") + "response_cache { enable: true }\n"

# Members come before their ensembles.
ADDED = ["cached", "limited", "urgent", "late", "echo", "adds", "mixed", "moody", "twins", "released", "flow"]


def write(repository: Path) -> None:
    """Beside those that are there."""
    write_configured(repository, "cached", CACHED, CACHED_CONFIG % 0)
    write_configured(repository, "limited", LIMITED, LIMITED_CONFIG % 2)
    write_configured(repository, "urgent", LIMITED, LIMITED_CONFIG % 1)
    write_configured(repository, "late", LATE, LATE_CONFIG)
    write_configured(repository, "moody", MOODY, MOODY_CONFIG)
    write_configured(repository, "released", RELEASED % 0, MOODY_CONFIG)
    configs = {"echo": ECHO_CONFIG, "adds": ADDS_CONFIG, "mixed": MIXED_CONFIG, "twins": TWINS_CONFIG}
    for name, config in {**configs, "flow": FLOW_CONFIG}.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    onnx.save(_sum(), repository / "adds" / "1" / "model.onnx")
    # A store has no folders that are empty.
    for folder in repository.glob("*/1"):
        (folder / "version").touch()


def _sum() -> onnx.ModelProto:
    a, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in ("A", "B", "SUM"))
    graph = helper.make_graph([helper.make_node("Add", ["A", "B"], ["SUM"])], "sum", [a, b], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

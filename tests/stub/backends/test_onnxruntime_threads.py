"""onnxruntime's default number of threads, in an interpreter of its own: the change is made once per process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime")

PROGRAM = """
import json, sys
from stubserve_stub.backends.onnxruntime import threads

def field(number, value):
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value if isinstance(value, bytes) else value.encode()
    return bytes([number << 3 | 2, len(data)]) + data

# An ONNX model that returns its input, in protobuf's wire format: node, name, input, output; ir_version, graph, opset.
tensor_type = field(1, field(1, 1) + field(2, field(1, field(1, 1))))
value = lambda name: field(1, name) + field(2, tensor_type)
graph = field(1, field(1, "x") + field(2, "y") + field(4, "Identity")) + field(2, "g") + field(11, value("x"))
model = field(1, 8) + field(7, graph + field(12, value("y"))) + field(8, field(2, 13))

threads.limit(3)
assert "onnxruntime" not in sys.modules
from onnxruntime import InferenceSession, SessionOptions
import onnxruntime

def threads(session):
    return session.get_session_options().intra_op_num_threads

own = SessionOptions()
own.intra_op_num_threads = 2
print(json.dumps({
    "default": threads(InferenceSession(model)),
    "options": threads(InferenceSession(model, SessionOptions(), providers=["CPUExecutionProvider"])),
    "own": threads(InferenceSession(model, sess_options=own)),
    "names": [InferenceSession.__name__, InferenceSession.__module__],
    "is_instance": isinstance(own, onnxruntime.SessionOptions),
    "finders": sum(type(finder).__module__.startswith("stubserve") for finder in sys.meta_path),
}))
"""


def test_only_the_default_changes() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "default": 3,
        "options": 3,
        "own": 2,
        "names": ["InferenceSession", "onnxruntime"],
        "is_instance": True,
        "finders": 0,
    }

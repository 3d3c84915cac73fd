"""Models that strangers have to do with. Others than those of every run."""

from __future__ import annotations

from pathlib import Path

from tests.server.openai_models import text_input, write_words
from tools.bench.repository import write_configured

from ..models import WORKS_CONFIG
from ..world import HOST

NAMES = ["peer", "lied", "video", "words", "poisoned"]

# A call of another server ends within this time, whatever is said there.
TIMEOUT_S = 5
REMOTE_CONFIG = WORKS_CONFIG.replace('"python"', '"remote"').replace("count: 2 ", "count: 1 ") + (
    'parameters { key: "url" value { string_value: "http://%s:%d" } }\n'
    'parameters { key: "timeout_s" value { string_value: "%d" } }\n'
)
VIDEO_CONFIG = """\
backend: "video"
parameters { key: "networks" value { string_value: "127.0.0.1/32" } }
parameters { key: "stall_ms" value { string_value: "2000" } }
parameters { key: "reconnect_ms" value { string_value: "1000" } }
"""

# y = x, but a number below zero kills the stub.
POISONED = """\
import os
import signal

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [request.inputs()[0].as_numpy() for request in requests]
        if any((tensor < 0).any() for tensor in tensors):
            os.kill(os.getpid(), signal.SIGKILL)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""
# Of a batch with poison in it all would fail.
POISONED_CONFIG = WORKS_CONFIG.replace("dynamic_batching { }\n", "").replace("count: 2 ", "count: 1 ")


def write(repository: Path, port: int) -> None:
    """`port` is the stranger's."""
    for name in ("peer", "lied"):
        write_configured(repository, name, "", REMOTE_CONFIG % (HOST, port, TIMEOUT_S))
    write_configured(repository, "video", "", VIDEO_CONFIG)
    write_words(repository, "words", text_input("text_input"))
    write_configured(repository, "poisoned", POISONED, POISONED_CONFIG)

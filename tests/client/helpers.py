"""What tests of the client share: models, processes that use a client, and what lies in /dev/shm."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stubserve.client import owner
from stubserve.client.pool import loan_of
from tests.real_server import io_config, write_model

SHAPE = (4, 300, 400)
NBYTES = 4 * 300 * 400
FLAG = "--allow-client-shm=true"

# Waits for the file "go" in its folder, after it has made the file "executes".
WAITS = """
    import os
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            open(os.path.join(self.folder, "executes"), "w").close()
            while not os.path.exists(os.path.join(self.folder, "go")):
                time.sleep(0.005)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""


def write_image(root: Path) -> None:
    """The model `image`, which echoes what has the shape SHAPE."""
    write_model(root, "image", config=io_config("UINT8", ", ".join(map(str, SHAPE))))


def write_models(root: Path) -> None:
    """`image`, and others that vary in what their names say."""
    write_image(root)
    write_model(root, "other", config=io_config("UINT8", ", ".join(map(str, SHAPE))))
    write_model(root, "open", config=io_config("FP32", "-1"))
    write_model(root, "batched", config=io_config("FP16", "50000", 8))
    write_model(root, "strings", config=io_config("STRING", "-1"))
    write_model(root, "waits", WAITS, io_config("UINT8", ", ".join(map(str, SHAPE))))


def image(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def in_pool(array: np.ndarray) -> bool:
    return loan_of(array) is not None


def names_of(pid: int) -> list[str]:
    """The files of a process in /dev/shm, by the pid in their names."""
    return [path.name for path in owner.FOLDER.glob(f"stubserve-client-*-{pid}-*")]


@contextlib.contextmanager
def running(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of this Python, whose output is read line by line; killed at the end."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def regions(triton: Any) -> list[str]:
    """The names of the regions that a server lists, by a tritonclient of either protocol."""
    if type(triton).__module__.startswith("tritonclient.grpc"):
        return list(triton.get_system_shared_memory_status(as_json=True).get("regions", {}))
    return [row["name"] for row in triton.get_system_shared_memory_status()]

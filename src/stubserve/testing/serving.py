"""A real server for a test: its models in their stubs, on free ports of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

import numpy as np
from stubserve_stub.api.exceptions import TritonError

from stubserve.testing.model import ModelError

_NUMPY = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BYTES": "object",
}  # fmt: skip
# A proxy that the environment names does not reach this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_STARTED = re.compile(r"Started HTTPService at \S+:(\d+)")
_STOP_S = 60
_LOOK_S = 0.02


class Server:
    """A server that runs. `url` is its address for HTTP."""

    def __init__(self, url: str) -> None:
        self.url = url

    def infer(self, model: str, /, **inputs: Any) -> dict[str, np.ndarray]:
        """The outputs of one request. Lists become arrays of the model's types. Raises ModelError for an error."""
        types = {one["name"]: one["datatype"] for one in self._ask(f"/v2/models/{model}")["inputs"]}
        tensors = [_tensor(name, types.get(name, "FP32"), value) for name, value in inputs.items()]
        answer = self._ask(f"/v2/models/{model}/infer", {"inputs": tensors})
        return {
            one["name"]: np.array(one["data"], _NUMPY[one["datatype"]]).reshape(one["shape"])
            for one in answer["outputs"]
        }

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            with _OPENER.open(self.url + path, data) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ModelError(TritonError(json.load(error)["error"])) from None


def _tensor(name: str, datatype: str, value: Any) -> dict[str, Any]:
    array = np.asarray(value, _NUMPY[datatype])
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.reshape(-1).tolist()}


@contextmanager
def serve(repository: str | PathLike[str], *flags: str) -> Iterator[Server]:
    """A server of a repository, or of one model's folder, for as long as the `with` block. `flags` are those of the
    command `serve`, but that the log says where the server listens. Raises RuntimeError with the log if it does not
    start.
    """
    address = ("--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false")
    log = ("--log-info=true", "--log-file=")
    command = [sys.executable, "-m", "stubserve", "serve", str(repository), *address, *flags, *log]
    # A file takes whatever the server and its models write; a pipe would have to be read.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield Server(f"http://127.0.0.1:{_port(process, output)}")
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(process: subprocess.Popen[bytes], output: Any) -> str:
    """The port that a server has started on, by its log."""
    while True:
        ended = process.poll() is not None
        text = os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0).decode(errors="replace")
        started = _STARTED.search(text)
        if started is not None:
            return started[1]
        if ended:
            raise RuntimeError(f"the server has ended with the code {process.returncode}:\n{text}")
        time.sleep(_LOOK_S)

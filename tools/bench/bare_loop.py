"""The most that a model gives on one thread: a loop that does nothing but run it, in its own process.

`python -m tools.bench.bare_loop FILE VALUES ROWS SECONDS` prints the rows per second and the milliseconds of a run as
JSON. FILE is ONNX, or TorchScript if it is called *.pt. It is opened as the servers open it, and its inputs lie in
memory already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import onnx_models
from .wrk import LoadError

INPUTS = 4
WARM_UP_RUNS = 3


@dataclass(frozen=True)
class Pace:
    rows_per_s: float
    ms_per_run: float


def run(python: str, path: Path, values: int, rows: int, seconds: float) -> Pace:
    """Runs the loop in a process of the interpreter `python`. Raises LoadError."""
    command = [python, "-m", "tools.bench.bare_loop", str(path), str(values), str(rows), str(seconds)]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        raise LoadError(f"the bare loop: {finished.stderr[-800:]}")
    return Pace(**json.loads(finished.stdout))


def main() -> None:
    path, values, rows, seconds = sys.argv[1:]
    run_one = _torchscript(path) if path.endswith(".pt") else _onnx(path)
    random = np.random.default_rng(0)
    batches = [random.standard_normal((int(rows), int(values)), np.float32) for _ in range(INPUTS)]
    for number in range(WARM_UP_RUNS):
        run_one(batches[number % INPUTS])
    runs = 0
    begin = now = time.perf_counter()
    while now < begin + float(seconds):
        run_one(batches[runs % INPUTS])
        runs += 1
        now = time.perf_counter()
    spent = now - begin
    print(json.dumps(asdict(Pace(runs * int(rows) / spent, spent / runs * 1000))))


def _onnx(path: str) -> Callable[[Any], Any]:
    session = onnx_models.open_session(Path(path))
    return lambda batch: session.run(None, {"X": batch})


def _torchscript(path: str) -> Callable[[Any], Any]:
    import torch

    torch.set_num_threads(1)
    module = torch.jit.load(path)

    def run_one(batch: Any) -> Any:
        with torch.inference_mode():
            return module(torch.from_numpy(batch)).numpy()

    return run_one


if __name__ == "__main__":
    main()

"""The check of a machine with a GPU, run with the emulated driver, and what of it can be checked without any."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubserve_stub.device.cuda_functions import LIBRARY_VARIABLE

from tests import onnxruntime_double, tensorrt_double
from tests.emulated_gpu import build
from tools.gpu_check import backends, kernels, libraries
from tools.gpu_check.__main__ import ROWS

ROOT = Path(__file__).parents[2]


def check(driver: object, *arguments: str, **machine: str) -> tuple[int, str]:
    """(exit status, what it prints) of the check with a driver."""
    done = subprocess.run(
        # Without any package that is installed, numpy and stubserve included
        [sys.executable, "-S", "-m", "tools.gpu_check", *arguments],
        cwd=ROOT,
        env={**os.environ, LIBRARY_VARIABLE: str(driver), **machine},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def test_without_a_driver_it_says_so_and_that_is_no_failure(tmp_path: Path) -> None:
    code, printed = check(tmp_path / "libcuda.so.1")
    assert code == 0
    assert re.fullmatch(
        r"Nothing was tried: there is no CUDA driver: .*libcuda.so.1 cannot be loaded .*\(--gpus all\)\.\n", printed
    )


def test_every_promise_that_needs_no_kernel_holds_with_the_emulated_driver(tmp_path: Path) -> None:
    code, printed = check(build(tmp_path), "--mib", "2", "--markdown", str(tmp_path / "table.md"))
    assert code == 0, printed
    *lines, last = printed.splitlines()
    outcomes = {row.promise: line[:9].strip() for row, line in zip(ROWS, lines, strict=True) if row.promise in line}
    assert len(outcomes) == len(ROWS)
    not_tried = {row.promise for row in (*kernels.ROWS, *libraries.ROWS, *backends.ROWS)}
    for row in ROWS:
        expected = "measured" if row.measures else "not tried" if row.promise in not_tried else "holds"
        assert outcomes[row.promise] == expected, printed
    assert printed.count("the driver runs no kernels (CUDA_ERROR_NOT_SUPPORTED)") == len(kernels.ROWS)
    assert re.fullmatch(r"\d+ holds, 0 fails, \d+ not tried, 3 measured", last)
    assert len((tmp_path / "table.md").read_text().splitlines()) == len(ROWS) + 2


def test_a_promise_that_does_not_hold_is_a_failure(tmp_path: Path) -> None:
    """On a device that cannot share its memory nearly nothing holds; and each row fails by itself."""
    code, printed = check(build(tmp_path), EMULATED_VMM="0", EMULATED_GPUS="1")
    assert code == 1
    assert "fails      the driver is found" in printed
    assert "cannot share memory; CUDA 12.4" in printed
    assert "fails      another process maps a pool" in printed
    assert "not tried  bytes go from one device to another: there is one GPU only" in printed
    assert "holds      a call leaves the context that the model has made current" in printed


@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (9, 0), (10, 0), (12, 0)])
def test_the_kernels_compile(capability: tuple[int, int], tmp_path: Path) -> None:
    """By NVIDIA's assembler, where it is installed and still knows the architecture."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("needs ptxas, NVIDIA's assembler")
    architecture = "sm_{}{}".format(*capability)
    if architecture not in subprocess.run([ptxas, "--help"], capture_output=True, text=True).stdout:
        pytest.skip(f"ptxas does not know {architecture}")
    source = tmp_path / "kernels.ptx"
    source.write_bytes(kernels.ptx(capability))
    subprocess.run([ptxas, f"-arch={architecture}", "-o", os.devnull, source], check=True)


@pytest.mark.parametrize(("package", "double"), [("onnxruntime", onnxruntime_double), ("tensorrt", tensorrt_double)])
def test_the_rows_of_backends(package: str, double: Any, tmp_path: Path) -> None:
    """With a double of the package, on the emulated driver."""
    if package != "tensorrt":
        pytest.importorskip(package)
    row = f"from tools.gpu_check import backends, row; print(backends.with_{package}(row.Gpu(0)))"
    done = subprocess.run(
        [sys.executable, "-c", row],
        cwd=ROOT,
        env={
            **os.environ,
            LIBRARY_VARIABLE: str(build(tmp_path)),
            "USE_DOUBLES": "1",
            "PYTHONPATH": os.pathsep.join([str(double.install(tmp_path)), *sys.path]),
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(package + " "), done.stderr


def test_the_model_for_onnxruntime_doubles() -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(libraries.DOUBLE, providers=["CPUExecutionProvider"])
    (doubled,) = session.run(["Y"], {"X": np.arange(4, dtype=np.float32)})
    assert doubled.tolist() == [0, 2, 4, 6]

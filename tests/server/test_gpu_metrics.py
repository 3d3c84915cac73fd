"""Metrics of GPUs, with a stand-in for the driver's library (`nvml.c`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.emulated_gpu import compiler
from tests.real_server import Serving, eventually

pytest.importorskip("pynvml")
LIBRARY = "libnvidia-ml.so.1"
INTERVAL_MS = 20


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has a driver of GPUs, but no GPU for models; the file that ends the process of the metrics."""
    source = Path(__file__).with_name("nvml.c")
    flags = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler(), *flags, "-o", str(tmp_path / LIBRARY), str(source)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("STUBSERVE_CUDA_DRIVER", str(tmp_path / "libcuda.so.1"))
    monkeypatch.setenv("NVML_FAIL", str(tmp_path / "fail"))
    (tmp_path / "models").mkdir()
    return tmp_path


def metrics(server: Serving) -> dict[str, dict[str, float]]:
    """The values of each GPU, by name."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(server.metrics().body.decode()):
        for sample in family.samples:
            if "gpu_uuid" in sample.labels:
                found.setdefault(sample.labels["gpu_uuid"], {})[sample.name.removesuffix("_total")] = sample.value
    return found


def test_each_gpu_has_its_values(machine: Path) -> None:
    with Serving(machine / "models", f"--metrics-interval-ms={INTERVAL_MS}") as server:
        server.wait_until_ready()
        first, second = eventually(lambda: metrics(server)).values()
        assert first.pop("nv_energy_consumption") >= 0
        common = {
            "nv_gpu_memory_total_bytes": 1000,
            "nv_gpu_memory_used_bytes": 400,
            "nv_gpu_power_usage": 70.5,
            "nv_gpu_power_limit": 300,
        }
        assert first == {"nv_gpu_utilization": 0.25, **common}
        assert second == {"nv_gpu_utilization": 0.26, **common}
        # Joules since the first look: one at each
        eventually(lambda: metrics(server)["GPU-0"]["nv_energy_consumption"] >= 3)


def test_a_library_that_crashes_takes_only_the_metrics_with_it(machine: Path) -> None:
    with Serving(machine / "models", f"--metrics-interval-ms={INTERVAL_MS}") as server:
        server.wait_until_ready()
        eventually(lambda: metrics(server))
        (machine / "fail").touch()
        eventually(lambda: not metrics(server))
        server.wait_for("there are no metrics of GPUs: their process ended with -6")
        assert server.get("/v2/health/ready").status == 200


def test_without_the_library_the_log_says_so(machine: Path) -> None:
    (machine / LIBRARY).unlink()
    with Serving(machine / "models") as server:
        server.wait_until_ready()
        server.wait_for("there are no metrics of GPUs: NVML: NVML Shared Library Not Found")
        assert not metrics(server)


def test_they_can_be_switched_off(machine: Path) -> None:
    with Serving(machine / "models", "--allow-gpu-metrics=false") as server:
        server.wait_until_ready()
        assert not psutil.Process(server.process.pid).children()

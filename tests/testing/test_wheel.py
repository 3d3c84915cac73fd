"""The wheel as others install it: what it brings to an environment of its own, beside the packages that it needs."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from stubserve.commands import deploy

ROOT = Path(__file__).parents[2]
TYPED_MODEL = Path(__file__).parent / "typed_model.py"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed; the rest is this one's."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Not processed for .pth files in turn, so the checkout that is installed there does not come along.
    (packages / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "env" / "bin" / "python"


def run(python: Path, *words: str) -> str:
    done = subprocess.run([python, *words], env={}, cwd=python.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_import_outside_a_server(python: Path) -> None:
    program = """
import triton_python_backend_utils as pb_utils
print(pb_utils.__file__)
request = pb_utils.InferenceRequest(model_name="m", requested_output_names=[], inputs=[])
try:
    request.exec()
except pb_utils.TritonModelException as error:
    print(error)
"""
    place, text = run(python, "-c", program).splitlines()
    assert Path(place).is_relative_to(python.parents[1])
    assert text == "BLS is only supported during the 'execute' function."


@pytest.mark.long
def test_types(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="`make check` installs it")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--config-file="]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "wheel"), str(TYPED_MODEL)]
    done = subprocess.run(command, env={}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_brings_what_is_deployed(python: Path, tmp_path: Path) -> None:
    for name in deploy.NAMES:
        printed = run(python, "-m", "stubserve", "deploy", name, f"--to={tmp_path / name}").splitlines()
        files = sorted((ROOT / "src" / "stubserve" / "deploy" / name).iterdir())
        assert printed == [str(tmp_path / name / file.name) for file in files]
        assert [Path(file).read_bytes() for file in printed] == [file.read_bytes() for file in files]
    unit = run(python, "-m", "stubserve", "deploy", "systemd")
    assert "\n[Service]\n" in unit
    manifests = yaml.safe_load_all(run(python, "-m", "stubserve", "deploy", "kubernetes"))
    kinds = {manifest["kind"] for manifest in manifests}
    gateway = {"Gateway", "HTTPRoute", "GRPCRoute"}
    assert kinds == {"Deployment", "Service", "ScaledObject", "PodDisruptionBudget"} | gateway


def test_it_draws_traces(python: Path, tmp_path: Path) -> None:
    span = {"traceId": "0af7", "spanId": "1", "name": "InferRequest", "startTimeUnixNano": "0"}
    parent = {**span, "endTimeUnixNano": "2000000"}
    child = {**span, "spanId": "2", "parentSpanId": "1", "name": "echo", "endTimeUnixNano": "1000000"}
    export = {"resourceSpans": [{"scopeSpans": [{"spans": [parent, child]}]}]}
    (tmp_path / "spans").write_text(json.dumps(export) + "\n")
    first, *rows = run(python, "-m", "stubserve", "trace", str(tmp_path / "spans")).splitlines()
    assert first == "trace 0af7, 2.00 ms"
    assert [row.split() for row in rows] == [
        ["└─", "InferRequest", "█" * 40, "2.000", "ms"],
        ["└─", "echo", "█" * 20 + "·" * 20, "1.000", "ms"],
    ]

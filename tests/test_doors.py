"""An optional feature is one folder and one line that names it. Without both, everything else goes on.

Each case works on a copy of the sources without them: all that is left is imported, a server answers over HTTP and
gRPC, and a model that asks for the feature is told what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as grpc

from stubserve.parts import IMPORTED_BY_NEED, PARTS
from tests.real_server import WORK_S, Serving, write_model

ROOT = Path(__file__).parents[1]
BACKENDS = "stub/stubserve_stub/backends"


class Door(NamedTuple):
    """A feature's folder, and the line that names it in a file; some folders are named nowhere."""

    folder: str
    file: str = ""
    line: str = ""


def backend(folder: str) -> Door:
    return Door(f"{BACKENDS}/{folder}", f"{BACKENDS}/cards.py", f'    "{folder}",\n')


def part(folder: str) -> Door:
    return Door(f"src/stubserve/{folder.replace('.', '/')}", "src/stubserve/parts.py", f'    "{folder}",\n')


DOORS = {
    name: backend(name)
    for name in ("onnxruntime", "pytorch", "tensorrt", "llamacpp", "remote", "video", "tracking", "identity", "repeat")
}
DOORS |= {folder.rpartition(".")[2]: part(folder) for folder in (*PARTS, *IMPORTED_BY_NEED)}
DOORS |= {name: Door(f"src/stubserve/{name}") for name in ("fleet", "client", "testing")}
# The cases that a change breaks least often
LONG = ("memory_pressure", "gpu_metrics", "cloud", "agents", "fleet", "client", "testing")
# What `check` and a load say of a model that asks for the feature: its configuration, and the text
ASKED = {
    name: (f'backend: "{name}"', f"unable to find backend library for backend '{name}'")
    for name, door in DOORS.items()
    if door.folder.startswith(BACKENDS)
}
ASKED["agents"] = (
    'backend: "python" model_repository_agents { agents { name: "checksum" } }',
    "the part 'agents' of stubserve is not installed here",
)
ASKED["sequences"] = (
    'backend: "python" max_batch_size: 2 sequence_batching { }',
    "the part 'sequences' of stubserve is not installed here",
)
ASKED["ensembles"] = (
    'platform: "ensemble" ensemble_scheduling { step { model_name: "echo" model_version: -1 } }',
    "the part 'ensembles' of stubserve is not installed here",
)
# What a command line is told that asks for the feature
REFUSED = {
    "memory_pressure": "serve REPOSITORY --shed-on-memory-pressure",
    "openai": "serve REPOSITORY --openai",
    "platforms": "serve REPOSITORY --allow-sagemaker",
    "pages": "serve REPOSITORY --try-page",
    "traces": "serve REPOSITORY --trace-config=triton,file=traces.json",
    "response_cache": "serve REPOSITORY --cache-config=local,size=1M",
    "redis_store": "serve REPOSITORY --cache-config=redis,host=127.0.0.1,port=1",
    "rate_limiter": "serve REPOSITORY --rate-limit=execution_count",
    "cloud": "serve s3://bucket/models",
    "commands": "check REPOSITORY",
}
# Modules that need packages which are not there cannot be imported with the feature either.
IMPORT_ALL = """
import importlib, pathlib, sys
failed = []
for root in map(pathlib.Path, sys.argv[1:]):
    for file in sorted(root.rglob("*.py")):
        name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        if not any(part in name for part in ("__main__", "new-", "janitor_program", "ray_serve", "span_worker")):
            try:
                importlib.import_module(name)
            except ImportError as error:
                if (error.name or "").startswith("stubserve"):
                    failed.append(f"{name}: {error}")
print(*failed, sep="\\n")
"""


@pytest.fixture
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the sources without a feature."""
    door: Door = request.param
    for root in ("src", "stub"):
        # With the byte code, which saves most of the time; that of a file that is changed does not count.
        shutil.copytree(ROOT / root, tmp_path / root)
    shutil.rmtree(tmp_path / door.folder)
    if door.file:
        file = tmp_path / door.file
        text = file.read_text()
        assert text.count(door.line) == 1
        file.write_text(text.replace(door.line, ""))
    return tmp_path


@pytest.mark.parametrize(
    ("tree", "feature"),
    [pytest.param(door, name, id=name, marks=[pytest.mark.long] * (name in LONG)) for name, door in DOORS.items()],
    indirect=["tree"],
)
def test_a_feature_can_be_taken_out(tree: Path, feature: str, repository: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree / 'stub'}"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=WORK_S, env=environment)

    done = run("-W", "ignore", "-c", IMPORT_ALL, str(tree / "src"), str(tree / "stub"))
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr
    write_model(repository, "echo")
    if feature != "commands":
        assert run("-m", "stubserve", "check", str(repository)).stdout == "1 model, 0 errors, 0 warnings\n"
    with Serving(repository, environment=environment) as server:
        assert server.infer_array("echo", np.ones(3, np.float32)).status == 200
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            given = grpc.InferInput("INPUT0", [3], "FP32")
            given.set_data_from_numpy(np.ones(3, np.float32))
            assert client.infer("echo", [given]).as_numpy("OUTPUT0").tolist() == [1, 1, 1]
    if feature in REFUSED:
        done = run("-m", "stubserve", *REFUSED[feature].replace("REPOSITORY", str(repository)).split())
        assert (done.returncode, "not installed here" in done.stderr) == (1, True), done.stderr
    if feature not in ASKED:
        return
    config, told = ASKED[feature]
    folder = repository / "wanted"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    assert told in run("-m", "stubserve", "check", str(repository)).stdout

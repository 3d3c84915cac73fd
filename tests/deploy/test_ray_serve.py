"""Ray Serve: two replicas on this machine, one of them killed. docs/deployment/ray-serve.md tells of it.

ray is half a gigabyte, so it has a Python of its own: `make test-deploy` makes it and names it in RAY_PYTHON.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.real_server import write_model

PAGE = Path(__file__).parents[2] / "docs" / "deployment" / "ray-serve.md"
WHO = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            pids = np.array([os.getpid(), os.getppid()])
            return [pb_utils.InferenceResponse([pb_utils.Tensor("PIDS", pids)]) for _ in requests]
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("RAY_PYTHON" not in os.environ, reason="make test-deploy makes a Python with ray")
def test_a_replica_that_is_killed_is_replaced_and_its_stubs_are_gone(repository: Path) -> None:
    write_model(
        repository, "who", WHO, 'backend: "python" output [ { name: "PIDS" data_type: TYPE_INT64 dims: [ 2 ] } ]'
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # A socket's path is short, and those of pytest's folders are long.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        command = [
            os.environ["RAY_PYTHON"],
            str(Path(__file__).with_name("ray_replicas.py")),
            str(repository),
            port,
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["replicas"], facts["others answered meanwhile"], facts["stub lives"]) == (2, True, False)
    # What the killed replica had under way may fail, and nothing else
    assert facts["failures"] <= 1


@pytest.mark.slow
@pytest.mark.skipif("RAY_PYTHON" not in os.environ, reason="make test-deploy makes a Python with ray")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"repository": "m", "replica": "2"}, "no argument 'replica', only cpus, flags, replicas, repository"),
        ({"replicas": "2"}, "name the folder of models"),
    ],
)
def test_arguments_that_there_are_not_are_refused(arguments: dict[str, str], text: str) -> None:
    source = f"from stubserve import ray_serve; ray_serve.app({arguments!r})"
    done = subprocess.run([os.environ["RAY_PYTHON"], "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert text in done.stderr.splitlines()[-1]


def test_the_page_names_arguments_that_there_are() -> None:
    (command,) = re.findall(r"^serve run (.*)$", PAGE.read_text(), re.MULTILINE)
    target, *arguments = shlex.split(command)
    module, _, name = target.partition(":")
    source = (Path(__file__).parents[2] / "src" / Path(*module.split("."))).with_suffix(".py").read_text()
    assert f"def {name}(" in source
    for argument in arguments:
        assert f'"{argument.partition("=")[0]}"' in source

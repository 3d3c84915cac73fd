"""The commands `stubserve env build` and `stubserve env check`; numpy comes from the package index."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.environments.made import pyenv
from tests.real_server import Serving, binary_output, io_config, write_model

USES_GREETING = """
    import greeting
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            print("GREETING", greeting.TEXT)

        async def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""


def stubserve(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stubserve", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})


def write_wheel(folder: Path) -> Path:
    """A wheel of a package `greeting` with a script of the same name."""
    wheel = folder / "greeting-1.0-py3-none-any.whl"
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "TEXT = 'hello'\ndef main():\n    print(TEXT)\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ngreeting = greeting:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.mark.parametrize(
    "installer", [pytest.param("pip", marks=pytest.mark.slow), pytest.param("uv", marks=pytest.mark.long)]
)
def test_build_check_and_serve(installer: str, repository: Path, tmp_path: Path) -> None:
    config = io_config(extra="# a comment of mine")
    folder = write_model(repository, "m", USES_GREETING, config)
    file = folder / "config.pbtxt"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    before = file.read_bytes()
    # Without the package the check says what a load would.
    done = stubserve("env", "check", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ModuleNotFoundError: No module named 'greeting'")
    assert f'  File "{folder}/1/model.py", line 2, in <module>\n    import greeting\n' in done.stderr
    assert f"This model's Python is {sys.executable}, which has no module 'greeting'." in done.stderr
    assert "`stubserve env build`" in done.stderr
    assert "_bootstrap" not in done.stderr
    (folder / "requirements.txt").write_text(f"{write_wheel(tmp_path)}\n")
    words = ["--installer=pip"] if installer == "pip" else []
    # uv is the default, and found beside the interpreter too.
    done = stubserve(
        "env", "build", folder, "--python", pyenv("3.10") / "bin" / "python3.10", *words, PATH="/usr/bin:/bin"
    )
    assert done.returncode == 0, done.stderr
    assert ("making the environment with uv" in done.stderr) == (installer == "uv")
    assert done.stdout.startswith(f"{folder}/env.tar.gz: ")
    after = file.read_bytes()
    assert after.startswith(before)
    assert b'"$$TRITON_MODEL_DIRECTORY/env.tar.gz"' in after
    assert sorted(entry.name for entry in folder.iterdir()) == ["1", "config.pbtxt", "env.tar.gz", "requirements.txt"]
    # Scripts find the interpreter where they are now.
    with tarfile.open(folder / "env.tar.gz") as archive:
        archive.extractall(tmp_path / "elsewhere", filter="fully_trusted")
    script = subprocess.run([tmp_path / "elsewhere" / "bin" / "greeting"], capture_output=True, text=True, check=False)
    assert (script.stdout, script.stderr) == ("hello\n", "")

    cache = tmp_path / "cache"
    done = stubserve("env", "check", folder, "--environment-cache", cache)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert found["model"] == "m, version 1"
    assert found["interpreter"].startswith(str(cache))
    assert found["python"].startswith("CPython 3.10.")
    assert found["class"] == "TritonPythonModel with initialize, execute"
    assert found["numpy"]
    with Serving(repository, f"--environment-cache={cache}") as server:
        server.wait_for("GREETING hello")
        assert "Extracting Python execution env" not in server.output
        array = np.arange(3, dtype=np.float32)
        np.testing.assert_array_equal(binary_output(server.infer_array("m", array)), array)


def test_a_build_that_fails_changes_nothing(repository: Path, tmp_path: Path) -> None:
    folder = write_model(repository, "m")
    before = (folder / "config.pbtxt").read_text()
    done = stubserve("env", "build", folder)
    assert done.returncode == 1
    assert f"there is no {folder}/requirements.txt" in done.stderr
    (folder / "requirements.txt").write_text(f"{tmp_path}/nosuch-1.0-py3-none-any.whl\n")
    done = stubserve("env", "build", folder)
    assert done.returncode == 1
    assert "failed with exit code" in done.stderr
    assert (folder / "config.pbtxt").read_text() == before
    assert not (folder / "env.tar.gz").exists()


def test_a_python_that_is_not_there(repository: Path, tmp_path: Path) -> None:
    folder = write_model(repository, "m")
    (folder / "requirements.txt").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3.9").symlink_to(sys.executable)
    done = stubserve("env", "build", folder, "--python", "3.5", "--installer=pip", PATH=str(programs))
    assert done.returncode == 1
    assert "there is no Python '3.5' on this machine's PATH (it has python3.9)" in done.stderr


def test_a_configuration_that_cannot_be_read(repository: Path) -> None:
    folder = write_model(repository, "m", config="bogus: 1")
    (folder / "requirements.txt").touch()
    done = stubserve("env", "build", folder)
    assert done.returncode == 1
    assert 'has no field named "bogus"' in done.stderr
    assert "making the environment" not in done.stderr


def test_a_configuration_that_is_no_utf8(repository: Path) -> None:
    folder = write_model(repository, "m")
    (folder / "config.pbtxt").write_bytes(b"# gr\xfcn\n")
    (folder / "requirements.txt").touch()
    done = stubserve("env", "build", folder)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {folder / 'config.pbtxt'} cannot be changed: no UTF-8 at byte 4\n",
    )


def test_an_error_in_a_model_shows_its_line(repository: Path) -> None:
    folder = write_model(repository, "m", "import json\nWEIGHTS = json.loads('[')\n")
    done = stubserve("env", "check", folder)
    assert done.returncode == 1
    first, *lines = done.stderr.splitlines()
    assert first.startswith("error: json.decoder.JSONDecodeError: Expecting value")
    assert lines[1:3] == [f'  File "{folder}/1/model.py", line 2, in <module>', "    WEIGHTS = json.loads('[')"]
    assert "_bootstrap" not in done.stderr
    (folder / "1" / "model.py").write_text("import no_such_package\n")
    done = stubserve("env", "check", folder)
    assert f"This model's Python is {sys.executable}, which has no module 'no_such_package'." in done.stderr
    assert "`stubserve env build`" in done.stderr


def test_a_model_without_execute(repository: Path) -> None:
    folder = write_model(repository, "m", "class TritonPythonModel: pass\n")
    done = stubserve("env", "check", folder)
    assert done.returncode == 1
    assert "class: TritonPythonModel with no methods" in done.stdout
    assert f"error: Python model {folder}/1/model.py does not implement `execute` method." in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("env",), "build | check"),
        (("env", "build", "/nowhere"), "/nowhere is not a folder"),
        (("env", "build", "/", "--output", "../env.tar.gz"), "--output must be a file name"),
        (("env", "build", "/", "--output", "env.zip"), "--output must be a file name"),
    ],
)
def test_usage(words: tuple[str, ...], expected: str) -> None:
    done = stubserve(*words)
    assert done.returncode == 2
    assert expected in done.stderr

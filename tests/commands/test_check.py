"""The command `stubserve check`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_server import write_model


def stubserve(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stubserve", *words], capture_output=True, text=True, check=False)


def test_plain_text_and_exit_codes(repository: Path) -> None:
    write_model(repository, "good")
    done = stubserve("check", str(repository))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 model, 0 errors, 0 warnings\n", "")
    write_model(repository, "bad", config='backend: "python"\nmax_batch_size: -1\nbogus: 1\n')
    done = stubserve("check", str(repository))
    assert done.returncode == 1
    file = repository / "bad" / "config.pbtxt"
    assert done.stdout.splitlines() == [
        f"{file}:2: error: 'max_batch_size' must be non-negative value for bad",
        f"{file}:3: error: ModelConfig has no field named 'bogus'",
        "2 models, 2 errors, 0 warnings",
    ]


def test_warnings_do_not_fail(repository: Path) -> None:
    write_model(repository, "m")
    (repository / "m" / "02").mkdir()
    done = stubserve("check", str(repository))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 model, 0 errors, 1 warning")


def test_on_a_terminal(repository: Path) -> None:
    write_model(repository, "bad", config='backend: "python"\nbogus: [1]\n')
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "stubserve", "check", str(repository)], stdout=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass  # a terminal's other end is closed
    os.close(ours)
    assert process.wait() == 1
    assert b"\x1b[31merror\x1b[0m" in shown
    assert b"ModelConfig has no field named 'bogus'" in shown


def test_without_a_gpu(repository: Path) -> None:
    write_model(repository, "m", config='backend: "python"\ninstance_group { kind: KIND_GPU }\n')
    done = stubserve("check", str(repository))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "1 model, 1 error, 0 warnings")
    done = stubserve("check", str(repository), "--gpu-fallback=cpu")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 model, 0 errors, 1 warning")
    done = stubserve("check", str(repository), "--gpu-fallback=gpu")
    assert done.returncode == 2
    assert "--gpu-fallback must be cpu or none. Got gpu" in done.stderr


def test_one_model_and_a_folder_that_holds_none(repository: Path) -> None:
    folder = write_model(repository, "good")
    write_model(repository, "bad", config="bogus: 1\n")
    for given in (folder, folder / "1", folder / "1" / "model.py"):
        done = stubserve("check", str(given))
        assert (done.returncode, done.stdout) == (0, "1 model, 0 errors, 0 warnings\n")
    done = stubserve("check", str(repository.parent))
    assert f"hint: there are no models in {repository.parent}, but there are in {repository}" in done.stderr
    (repository.parent / "empty").mkdir()
    done = stubserve("check", str(repository.parent / "empty"))
    assert f"stubserve init {repository.parent}/empty/NAME" in done.stderr


@pytest.mark.parametrize("given", [".", "lone", "lone/model.py"])
def test_a_lone_file_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    (tmp_path / "lone").mkdir()
    (tmp_path / "lone" / "model.py").write_text("def predict(x):\n    return x\n")
    monkeypatch.chdir(tmp_path / "lone" if given == "." else tmp_path)
    done = stubserve("check", given)
    file = "model.py" if given == "." else "lone/model.py"
    error = f"{file}: error: does not define the class TritonPythonModel"
    assert (done.stdout, done.stderr) == (f"{error}\n1 model, 1 error, 0 warnings\n", "")


def test_usage() -> None:
    done = stubserve("check")
    assert done.returncode == 2
    assert "REPOSITORY" in done.stderr
    done = stubserve("check", "/nowhere")
    assert done.returncode == 2
    assert "'/nowhere' does not exist." in done.stderr
    assert "stubserve check REPOSITORY" in stubserve("--help").stdout

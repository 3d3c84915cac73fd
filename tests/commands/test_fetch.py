"""The command `stubserve fetch`, with pip and wheels that are made here: pip is told to look nowhere else."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stubserve.checking.repository import check_repositories
from tests.real_server import Serving, write_model

Fetch = Callable[..., "subprocess.CompletedProcess[str]"]


def write_wheel(folder: Path, name: str, files: Mapping[str, bytes], requires: str = "") -> str:
    """A wheel of version 1.0, found by pip in `folder`; its hash as pip wants it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    if requires:
        metadata += f"Requires-Dist: {requires}\n"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, content in files.items():
            archive.writestr(inside, content)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def write_list(repository: Path, model: str, text: str) -> Path:
    folder = repository / model
    folder.mkdir(exist_ok=True)
    (folder / "model_files.txt").write_text(text)
    return folder


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def fetch(repository: Path, wheels: Path) -> Fetch:
    """Runs the command on the repository."""
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stubserve", "fetch", *(words or (str(repository),))]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})

    return run


def test_files_out_of_a_wheel(repository: Path, wheels: Path, fetch: Fetch) -> None:
    pinned = write_wheel(wheels, "nets", {"nets/a.onnx": b"A" * 100, "nets/b.onnx": b"B"}, requires="nowhere-to-be-had")
    write_model(repository, "other")
    a = write_list(repository, "a", f"# A comment.\nnets==1.0 {pinned}\n    nets/a.onnx -> 1/model.onnx\n")
    b = write_list(repository, "b", "nets==1.0\n  nets/b.onnx -> 3/deep/b.onnx\n\n  nets/a.onnx->a\n")
    done = fetch()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{a}/1/model.onnx: 0.0 MB, from nets 1.0",
        f"{b}/3/deep/b.onnx: 0.0 MB, from nets 1.0",
        f"{b}/a: 0.0 MB, from nets 1.0",
    ]
    assert (a / "1" / "model.onnx").read_bytes() == (b / "a").read_bytes() == b"A" * 100
    assert (b / "3" / "deep" / "b.onnx").read_bytes() == b"B"
    assert sorted(path.name for path in (a / "1").iterdir()) == ["model.onnx"]


def test_what_is_there_is_left_alone_until_the_list_changes(repository: Path, wheels: Path, fetch: Fetch) -> None:
    write_wheel(wheels, "nets", {"a": b"A", "b": b"B"})
    folder = write_list(repository, "m", "nets==1.0\n  a -> 1/model.onnx\n")
    assert fetch().stdout
    (wheels / "nets-1.0-py3-none-any.whl").rename(wheels / "away")
    done = fetch()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (wheels / "away").rename(wheels / "nets-1.0-py3-none-any.whl")
    write_list(repository, "m", "nets==1.0\n  b -> 1/model.onnx\n")
    assert fetch().stdout
    assert (folder / "1" / "model.onnx").read_bytes() == b"B"
    (folder / "1" / "model.onnx").unlink()
    assert fetch().stdout
    assert (folder / "1" / "model.onnx").read_bytes() == b"B"


def test_a_wheel_with_another_hash_is_refused(repository: Path, wheels: Path, fetch: Fetch) -> None:
    write_wheel(wheels, "nets", {"a": b"A"})
    wrong = f"--hash=sha256:{'0' * 64}"
    folder = write_list(repository, "m", f"nets==1.0 {wrong}\n  a -> 1/model.onnx\n")
    done = fetch()
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert f"error: {folder}/1/model.onnx: pip could not download nets==1.0 (exit code 1)" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["model_files.txt"]


def test_a_package_that_cannot_be_had(repository: Path, wheels: Path, fetch: Fetch) -> None:
    folder = write_list(repository, "m", "nets==1.0\n  a -> 1/model.onnx\n  b -> 1/other\n")
    done = fetch()
    assert done.returncode == 1
    names = f"{folder}/1/model.onnx, {folder}/1/other"
    assert f"error: {names}: pip could not download nets==1.0 (exit code 1); its output is above" in done.stderr


def test_a_file_that_is_not_in_the_wheel(repository: Path, wheels: Path, fetch: Fetch) -> None:
    write_wheel(wheels, "nets", {"small": b"1", "large": b"12" * 1000})
    folder = write_list(repository, "m", "nets==1.0\n  model -> 1/model.onnx\n")
    done = fetch()
    assert done.returncode == 1
    assert f"error: {folder}/1/model.onnx: nets 1.0 has no file model. Its largest are large, " in done.stderr


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nets\n", "model_files.txt:1: a package is listed as NAME==VERSION"),
        ("nets>=1.0\n", "Got nets>=1.0"),
        ("--index-url=x nets==1.0\n", "Got --index-url=x nets==1.0"),
        ("# c\n  a -> b\n", "model_files.txt:2: below a package stands PATH IN ITS WHEEL -> PATH HERE. Got a -> b"),
        ("nets==1.0\n  a\n", "Got a"),
        ("nets==1.0\n  a -> ../b\n", "model_files.txt:2: ../b is not within the model's folder"),
        ("nets==1.0\n  a -> /b\n", "/b is not within the model's folder"),
    ],
)
def test_lists_that_are_wrong(repository: Path, fetch: Fetch, text: str, error: str) -> None:
    write_list(repository, "m", text)
    done = fetch()
    assert (done.returncode, done.stdout) == (1, "")
    assert error in done.stderr


def test_a_link_out_of_the_folder_is_not_followed(repository: Path, wheels: Path, fetch: Fetch, tmp_path: Path) -> None:
    write_wheel(wheels, "nets", {"a": b"A"})
    folder = write_list(repository, "m", "nets==1.0\n  a -> out/model.onnx\n")
    (tmp_path / "elsewhere").mkdir()
    (folder / "out").symlink_to(tmp_path / "elsewhere")
    done = fetch()
    assert done.returncode == 1
    assert "is outside of the model's folder, by way of a link" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


def test_usage(fetch: Fetch) -> None:
    assert fetch("/nowhere").returncode == 2
    assert "/nowhere is not a folder" in fetch("/nowhere").stderr


def test_check_and_serve_say_where_a_file_comes_from(repository: Path, wheels: Path, fetch: Fetch) -> None:
    write_model(repository, "m")
    folder = write_list(repository, "m", "nets==1.0\n  a -> 1/model.onnx\n")
    said = f"lacks 1/model.onnx: to be had with `stubserve fetch {repository}`, as model_files.txt says"
    (problem,) = check_repositories([repository], Path("/nowhere")).problems
    assert (problem.file, problem.text, problem.is_warning) == (folder, said, True)
    with Serving(repository, "--exit-on-error=false") as server:
        assert f"model 'm' {said}" in server.output
    write_wheel(wheels, "nets", {"a": b"A"})
    assert fetch().returncode == 0
    assert check_repositories([repository], Path("/nowhere")).problems == ()

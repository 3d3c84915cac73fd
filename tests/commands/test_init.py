"""`stubserve init`: what it writes can be served, asked and tested as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stubserve.checking.repository import check_repositories
from stubserve.commands import init
from tests.conftest import ROOT
from tests.documentation.pages import blocks, words_of
from tests.real_server import WORK_S, Serving


@pytest.mark.parametrize("flags", [(), ("--no-config",)])
def test_a_new_model_is_served_asked_and_tested(
    tmp_path: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models" / "twice"
    assert init.run([str(folder), *flags]) == 0
    assert f"stubserve serve {folder} --dev" in capsys.readouterr().out
    assert (folder / "config.pbtxt").exists() is not bool(flags)
    assert check_repositories([folder.parent], Path("/nowhere")).problems == ()
    # In a process of its own, as a person would: this one has other settings.
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(tests, cwd=tmp_path, capture_output=True, text=True, timeout=WORK_S)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    with Serving(folder) as server:
        client = [sys.executable, str(folder / "client.py"), f"--url=http://127.0.0.1:{server.port}"]
        done = subprocess.run(client, capture_output=True, text=True, timeout=WORK_S)
        assert done.stdout == "Y [2, 3] [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]\n", done.stderr
        # What a person sees whose client asks for another model, or asks nobody.
        (folder.parent / "thrice").mkdir()
        lost = (folder / "client.py").rename(folder.parent / "thrice" / "client.py")
        client[1] = str(lost)
        done = subprocess.run(client, capture_output=True, text=True, timeout=WORK_S)
        url = client[2].removeprefix("--url=")
        refused = (
            f"the server at {url} refused: Request for unknown model: 'thrice' is not found. Did you mean 'twice'?\n"
        )
        assert (done.returncode, done.stderr) == (1, refused)
    done = subprocess.run(client, capture_output=True, text=True, timeout=WORK_S)
    assert done.returncode == 1
    advice = f"start one with `stubserve serve {lost.parent}`"
    assert done.stderr == f"no server answers at {url} ([Errno 111] Connection refused): {advice}\n"


def test_what_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "notes").write_text("mine")
    assert init.run([str(tmp_path / "twice")]) == 1
    assert "is there already" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "twice").iterdir()] == ["notes"]


def test_a_name_that_no_model_can_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init.run([str(tmp_path / "two?")]) == 1
    assert "invalid characters" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_new_backend_is_installed_tested_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, site = tmp_path / "forest", tmp_path / "site"
    # What docs/guides/own-backends.md shows, but that this environment stays as it is.
    shown = "stubserve init --backend forest\npip install pytest -e forest\npython -m pytest forest\n"
    assert f"```sh\n{shown}```" in (ROOT / "docs" / "guides" / "own-backends.md").read_text()
    assert init.run(["--backend", str(folder)]) == 0
    assert f"pip install pytest -e {folder}" in capsys.readouterr().out
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(folder)], check=True, timeout=WORK_S)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(tests, cwd=tmp_path, capture_output=True, text=True, timeout=WORK_S, env=environment)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    section = (ROOT / "docs" / "guides" / "own-backends.md").read_text().partition("\n## ")[0]
    written, asked = blocks(section)[1:]
    *commands, (serve, _) = written.commands
    for command, _ in commands:
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert serve == "stubserve serve models"
    [(ask, answer)] = asked.commands
    with Serving(tmp_path / "models", environment={"PYTHONPATH": str(site)}) as server:
        url = {**environment, "STUBSERVE_URL": f"http://127.0.0.1:{server.port}"}
        words = [sys.executable, "-m", *words_of(ask)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=WORK_S, env=url)
    assert done.stdout == answer, done.stderr
    version = tmp_path / "models" / "triple" / "1"
    (version.parent / "config.pbtxt").write_text(
        'backend: "forest"\nparameters { key: "FACTOR" value { string_value: "many" } }\n'
    )
    check = [sys.executable, "-m", "stubserve", "check", str(tmp_path / "models")]
    done = subprocess.run(check, capture_output=True, text=True, timeout=WORK_S, env=environment)
    assert "parameter 'FACTOR' of model 'triple' must be a number, got 'many'" in done.stdout
    # Without the package the backend is unknown.
    done = subprocess.run(check, capture_output=True, text=True, timeout=WORK_S)
    assert "unable to find backend library for backend 'forest'" in done.stdout


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("two-words", "has small letters, digits and _"),
        ("end_", "does not end with _"),
        ("identity", "there is a backend 'identity'"),
        ("openvino", "there is a backend 'openvino'"),
    ],
)
def test_a_name_that_no_backend_can_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    assert init.run(["--backend", str(tmp_path / name)]) == 1
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

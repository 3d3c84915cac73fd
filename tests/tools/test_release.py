"""What makes a commit a release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from stubserve import __version__
from tools import release
from tools.release import version, why_dry


@pytest.mark.parametrize(
    ("tags", "changed", "why"),
    [
        (["v1.2.0"], [], ""),
        (["latest", "v1.2.0"], [], ""),
        ([], [], "the version is 1.2.0, and this commit has no tag: git tag -s v1.2.0"),
        (["v1.1.0"], [], "the version is 1.2.0, and this commit has the tags v1.1.0: git tag -s v1.2.0"),
        (["v1.2.0"], [" M README.md", "?? x"], "2 files are changed or new, README.md for instance"),
    ],
)
def test_a_release_is_a_tagged_commit_without_changes(tags: list[str], changed: list[str], why: str) -> None:
    assert why_dry("1.2.0", tags, changed) == why


def test_the_version_is_that_of_the_program() -> None:
    assert version() == __version__


def test_a_compiled_wheel_is_built_or_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert release.pythons() == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert release.compiled("3.11", tmp_path) == "there is no C compiler"
    monkeypatch.setenv("CC", "true")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "there is no Python '3.99'" in release.compiled("3.99", tmp_path)


def test_each_python_of_the_package_is_built_elsewhere_too() -> None:
    settings = tomllib.loads((release.ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert settings["build"] == [f"cp{python.replace('.', '')}-manylinux_*" for python in release.pythons()]
    assert tuple(settings["archs"]) == release.MACHINES


def test_the_first_request_of_an_installation() -> None:
    script = [sys.executable, str(release.ROOT / "tools" / "first_request.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.stdout == "Y [2, 3] [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]\n", done.stderr
    done = subprocess.run([*script, "--compiled"], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("connection.py is not compiled\n")

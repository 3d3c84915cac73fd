"""Finding the interpreter that an environment is to be made with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stubserve.environments.build import BuildFailed, find_interpreter


def program(folder: Path, text: str) -> None:
    folder.mkdir()
    file = folder / "python3.9"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_a_shim_that_has_no_such_python_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "shims", "echo 'pyenv: python3.9: command not found' >&2; exit 127")
    program(tmp_path / "real", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'real'}")
    for name in ("3.9", "python3.9"):
        assert find_interpreter(name) == str(tmp_path / "real" / "python3.9")


def test_where_none_runs_each_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "shims", "echo 'pyenv: python3.9: command not found' >&2; exit 127")
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    with pytest.raises(BuildFailed, match=r"runs: .*/shims/python3\.9 says: pyenv: python3\.9: command not found"):
        find_interpreter("3.9")
    with pytest.raises(BuildFailed, match=r"there is no Python '3\.77' on this machine's PATH \(it has python3\.9\)"):
        find_interpreter("3.77")


def test_a_path_is_that_interpreter() -> None:
    assert find_interpreter(sys.executable) == sys.executable

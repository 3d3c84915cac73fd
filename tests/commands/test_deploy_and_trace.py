"""What `stubserve deploy` and `stubserve trace` refuse; tests/testing/test_wheel.py runs them from a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from stubserve.commands import deploy, trace


def test_there_is_a_folder_for_each_name_and_no_other() -> None:
    folders = Path(deploy.__file__).parents[1] / "deploy"
    assert sorted(folder.name for folder in folders.iterdir()) == sorted(deploy.NAMES)


def test_what_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rules.yml").write_text("mine")
    assert deploy.run(["prometheus", f"--to={tmp_path}"]) == 1
    error = f"error: {tmp_path / 'rules.yml'} is there already, and nothing was written\n"
    assert capsys.readouterr() == ("", error)
    assert [file.name for file in tmp_path.iterdir()] == ["rules.yml"]
    assert deploy.run(["grafana", f"--to={tmp_path / 'rules.yml'}"]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'rules.yml'} cannot be written: File exists\n"


def test_files_that_cannot_be_one_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy.run(["prometheus"]) == 1
    said = "error: prometheus is prometheus.yml and rules.yml: say with --to into which folder they go\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("content", [b"{", b"[1]\n", b'{"resourceSpans": [{}]}\n', b"\xff\n"])
def test_a_file_without_traces(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spans"
    assert trace.run([str(file)]) == 1
    assert capsys.readouterr().err == f"error: {file} cannot be read: No such file or directory\n"
    file.write_bytes(content)
    assert trace.run([str(file)]) == 1
    assert capsys.readouterr().err == f"error: {file} has no traces in OTLP's JSON form, an export in each line\n"

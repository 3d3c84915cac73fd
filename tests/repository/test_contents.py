"""What counts as a change in a model's folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stubserve.repository.contents import contents_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    for path in ("1/model.py", "2/model.py", "2/deep/er/weights", "config.pbtxt", "labels.txt", "shared/helper.py"):
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_text("a")
    return model


def changed(folder: Path, path: str) -> set[str]:
    """Which parts differ after a file has been written."""
    before = contents_of(folder)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text("other")
    after = contents_of(folder)
    parts = {part for part in ("config", "rest") if getattr(before, part) != getattr(after, part)}
    versions = before.versions.keys() | after.versions.keys()
    return parts | {version for version in versions if before.versions.get(version) != after.versions.get(version)}


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("config.pbtxt", {"config"}),
        ("1/model.py", {"1"}),
        ("1/new.py", {"1"}),
        ("2/deep/er/weights", {"2"}),
        ("3/model.py", {"3"}),
        ("labels.txt", {"rest"}),
        ("shared/helper.py", {"rest"}),
        ("configs/small.pbtxt", {"rest"}),
        ("2/config.pbtxt", {"2"}),
        ("1/__pycache__/model.cpython-311.pyc", set()),
        ("shared/__pycache__/helper.cpython-311.pyc", set()),
        ("__pycache__/x.pyc", set()),
    ],
)
def test_a_file_belongs_to_one_part(folder: Path, path: str, parts: set[str]) -> None:
    assert changed(folder, path) == parts


def test_what_is_the_same(folder: Path) -> None:
    assert contents_of(folder) == contents_of(folder)


def test_times_sizes_and_names_count(folder: Path) -> None:
    file = folder / "1" / "model.py"
    looks = [contents_of(folder)]
    found = file.stat()
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    looks.append(contents_of(folder))
    file.write_text("aa")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    looks.append(contents_of(folder))
    file.rename(folder / "1" / "other.py")
    looks.append(contents_of(folder))
    (folder / "1" / "other.py").unlink()
    looks.append(contents_of(folder))
    (folder / "1" / "empty").mkdir()
    looks.append(contents_of(folder))
    assert len({look.versions["1"] for look in looks}) == len(looks)
    assert len({(look.config, look.rest, look.versions["2"]) for look in looks}) == 1


def test_links_to_files_and_versions_are_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "version").mkdir(parents=True)
    for path in ("config", "version/model.py", "version/deep"):
        (outside / path).write_text("a")
    (folder / "config.pbtxt").unlink()
    (folder / "config.pbtxt").symlink_to(outside / "config")
    (folder / "3").symlink_to(outside / "version")
    (folder / "1" / "loop").symlink_to(folder)
    (folder / "1" / "nowhere").symlink_to(outside / "nothing")
    assert changed(folder, "config.pbtxt") == {"config"}
    assert changed(folder, "3/model.py") == {"3"}
    before = contents_of(folder)
    (outside / "config").write_text("yet another")
    (outside / "version" / "deep").write_text("yet another")
    after = contents_of(folder)
    assert before.config != after.config
    assert before.versions["3"] != after.versions["3"]
    assert before.versions["1"] == after.versions["1"]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    assert contents_of(tmp_path / "nothing") == contents_of(tmp_path / "nothing either")

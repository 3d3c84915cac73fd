"""Copies of repositories: what is fetched, what happens when models change meanwhile, and how long a copy stays."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stubserve.errors import ServeError, unavailable
from stubserve.repository.cloud import mirror as mirror_module
from stubserve.repository.cloud.mirror import Mirror
from stubserve.repository.cloud.store import Address, Stamp, Store
from tests.real_server import eventually

pytest.importorskip("fsspec")


class CountingStore(Store):
    """A folder as a store. It counts what is fetched; `before_fetch` and `failing` are for the test to set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Address("test://", "file", str(folder), "s3", "nowhere"))
        self.fetched: list[str] = []
        self.before_fetch: Callable[[], None] = lambda: None
        self.failing = False
        # Folders that a store can have and a disk cannot
        self.strange: list[str] = []

    def names(self) -> list[str]:
        self._fail()
        return [*super().names(), *self.strange]

    def listing(self, name: str) -> dict[str, Stamp]:
        self._fail()
        return super().listing(name)

    def fetch(self, name: str, path: str, target: Path) -> None:
        self._fail()
        self.before_fetch()
        self.fetched.append(f"{name}/{path}")
        super().fetch(name, path, target)

    def _fail(self) -> None:
        if self.failing:
            raise unavailable("the store is gone")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    write(folder, "m/config.pbtxt", "a")
    write(folder, "m/1/model.py", "b")
    return folder


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_has_not_changed_is_not_fetched_again(source: Path, tmp_path: Path) -> None:
    store = CountingStore(source)
    mirror = Mirror(store, "test://", tmp_path / "cache")
    first = mirror.refresh("m")
    assert texts(first.folder) == {"config.pbtxt": "a", "1/model.py": "b"}
    assert mirror.refresh("m") is first
    write(source, "m/1/model.py", "bb")
    second = mirror.refresh("m")
    assert texts(second.folder) == {"config.pbtxt": "a", "1/model.py": "bb"}
    assert texts(first.folder)["1/model.py"] == "b"  # what serves is left as it is
    assert sorted(store.fetched) == ["m/1/model.py", "m/1/model.py", "m/config.pbtxt"]
    assert os.path.samefile(mirror.models / "m", second.folder)
    mirror.close()
    again = CountingStore(source)
    other = Mirror(again, "test://", tmp_path / "cache")
    assert texts(other.refresh("m").folder)["1/model.py"] == "bb"
    assert again.fetched == []
    other.close()


def test_a_copy_goes_when_nobody_holds_it(source: Path, tmp_path: Path) -> None:
    mirror = Mirror(CountingStore(source), "test://", tmp_path / "cache")
    first = mirror.refresh("m")
    folder = first.folder
    write(source, "m/config.pbtxt", "aa")
    mirror.refresh("m")
    gc.collect()
    assert folder.is_dir()
    del first
    gc.collect()
    eventually(lambda: not folder.exists())
    mirror.close()


def test_a_model_that_changes_while_it_is_copied_is_copied_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "_PAUSE_S", 0.0)
    store = CountingStore(source)
    mirror = Mirror(store, "test://", tmp_path / "cache")
    changes = iter(["c", "cc"])

    def change() -> None:
        text = next(changes, "")
        if text:
            write(source, "m/1/model.py", text)

    store.before_fetch = change
    assert texts(mirror.refresh("m").folder) == {"config.pbtxt": "a", "1/model.py": "cc"}
    numbers = iter(range(10, 10**6))
    store.before_fetch = lambda: write(source, "m/1/model.py", "x" * next(numbers))
    write(source, "m/1/model.py", "y")
    with pytest.raises(ServeError, match="changes all the time while it is copied"):
        mirror.refresh("m")
    assert not list((tmp_path / "cache").glob("*/objects/.fetching*"))
    mirror.close()


def test_a_store_that_fails_changes_nothing(source: Path, tmp_path: Path) -> None:
    store = CountingStore(source)
    mirror = Mirror(store, "test://", tmp_path / "cache")
    mirror.look(60)
    copy = mirror.copy_of("m")
    store.failing = True
    mirror.look(60)
    assert mirror.names() == ["m"]
    assert mirror.copy_of("m") is copy
    with pytest.raises(ServeError, match="the store is gone"):
        mirror.refresh("m")
    store.failing = False
    (source / "m").rename(source / "n")
    mirror.look(60)
    assert (mirror.copy_of("m"), mirror.names()) == (None, ["n"])
    assert not (mirror.models / "m").exists()
    with pytest.raises(ServeError, match="model not found"):
        mirror.refresh("m")
    mirror.close()


def test_at_first_it_has_to_be_there(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "nowhere")
    mirror = Mirror(store, "test://", tmp_path / "cache")
    with pytest.raises(ServeError, match="cannot be read: there is no"):
        mirror.names()
    mirror.close()


def test_a_cache_that_cannot_be_written(source: Path) -> None:
    with pytest.raises(ServeError, match=r"repository 'test://' cannot be copied to /proc/nowhere: "):
        Mirror(CountingStore(source), "test://", Path("/proc/nowhere"))


def test_what_can_be_no_models_name_is_not_copied(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A store knows folders of any name, and a name becomes part of paths."""
    store = CountingStore(source)
    store.strange = ["..", ".", "a\\b", "a;b", ".git"]
    write(source, ".git/config", "c")
    write(tmp_path, "outside", "o")
    mirror = Mirror(store, "test://", tmp_path / "cache")
    mirror.look(60)
    assert mirror.names() == ["m"]
    assert sorted(store.fetched) == ["m/1/model.py", "m/config.pbtxt"]
    assert os.listdir(mirror.models) == ["m"]
    assert "ignore model directory 'test:///..': invalid model name '..'" in caplog.text
    mirror.close()

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import psutil
import pytest
from stubserve_stub.runtime.confinement import landlock_version

from stubserve.environments import cache
from stubserve.environments.cache import Entry
from stubserve.environments.environment import Environment
from stubserve.environments.resolve import Environments
from stubserve.errors import ServeError


def pack(archive: Path, text: str = "", activate: str = "bin/activate") -> Path:
    """An archive of what looks like an environment."""
    folder = archive.parent / "packing"
    (folder / "bin").mkdir(parents=True)
    (folder / activate).write_text(text)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, ".")
    shutil.rmtree(folder)
    return archive


def obtain(folder: Path, *archives: Path) -> list[Environment]:
    """As one server does for models that load at the same time."""

    async def find() -> list[Environment]:
        environments = Environments(folder)
        return list(await asyncio.gather(*(environments.extracted(archive) for archive in archives)))

    return asyncio.run(find())


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_key(tmp_path: Path) -> None:
    archive = tmp_path / "a"
    archive.write_bytes(os.urandom(10 << 20))
    before = cache.key_of(archive)
    assert cache.key_of(shutil.copy2(archive, tmp_path / "b")) == before
    status = archive.stat()
    with archive.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"x")
    os.utime(archive, ns=(0, status.st_mtime_ns))
    assert cache.key_of(archive) != before
    os.utime(tmp_path / "b", ns=(0, status.st_mtime_ns + 1))
    assert cache.key_of(tmp_path / "b") != before


def test_models_share_one_extraction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = pack(tmp_path / "env.tar.gz")
    copy = shutil.copy2(archive, tmp_path / "copy.tar.gz")
    with caplog.at_level("INFO", "stubserve.environments"):
        found = obtain(tmp_path / "cache", archive, copy, archive, archive)
    assert len({one.prefix for one in found}) == 1
    assert caplog.text.count("Extracting Python execution env") == 1
    with caplog.at_level("INFO", "stubserve.environments"):
        obtain(tmp_path / "cache", archive)
    assert caplog.text.count("Extracting Python execution env") == 1


def test_an_interrupted_extraction_is_thrown_away(tmp_path: Path) -> None:
    archive = pack(tmp_path / "env.tar.gz", "whole")
    folder = tmp_path / "cache"
    cache.make_folder(folder)
    key = cache.key_of(archive)
    entry = Entry(folder, key)
    assert entry.lock()
    with entry:
        entry.begin()
        (folder / key / "bin").mkdir()
        (folder / key / "bin" / "activate").write_text("ha")
        (folder / key / "left").write_text("over")
        assert cache.lease(folder, key) is None
    (found,) = obtain(folder, archive)
    assert (Path(found.prefix) / "bin" / "activate").read_text() == "whole"
    assert not (Path(found.prefix) / "left").exists()


def test_refused_archives_leave_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    archive.write_bytes(b"no archive" * 100)
    with pytest.raises(ServeError, match="archive_read_open_filename"):
        obtain(tmp_path / "cache", archive)
    assert entries(tmp_path / "cache") == []


def test_without_activate(tmp_path: Path) -> None:
    archive = pack(tmp_path / "env.tar.gz", activate="bin/other")
    with pytest.raises(ServeError) as raised:
        obtain(tmp_path / "cache", archive)
    assert raised.value.message == (
        f"Path {tmp_path}/cache/{cache.key_of(archive)}/bin/activate does not exist. "
        "The Python environment should contain an 'activate' script."
    )


def test_a_changed_archive_replaces_its_entry_when_nobody_uses_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    archive = pack(tmp_path / "env.tar.gz", "old")
    (old,) = obtain(folder, archive)
    os.utime(archive, ns=(1, 1))
    (touched,) = obtain(folder, archive)
    assert touched.prefix != old.prefix
    assert (Path(old.prefix) / "bin" / "activate").read_text() == "old"  # its lease lives
    del old, touched
    archive.unlink()
    (new,) = obtain(folder, pack(archive, "new"))
    assert entries(folder) == [Path(new.prefix).name, f"{Path(new.prefix).name}.json"]


def test_clean(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    archives = [pack(tmp_path / name, name) for name in ("used", "idle", "fresh")]
    used, _, _ = obtain(folder, *archives)
    long_ago = (1.0, 1.0)
    for archive in archives[:2]:
        os.utime(folder / f"{cache.key_of(archive)}.json", long_ago)
    (folder / "interrupted.json").touch()
    (folder / "interrupted").mkdir()
    removed = cache.clean(folder, "another", "key")
    assert sorted(removed) == sorted([cache.key_of(archives[1]), "interrupted"])
    assert Path(used.prefix).is_dir()


def test_a_deleted_folder_is_extracted_again(tmp_path: Path) -> None:
    archive = pack(tmp_path / "env.tar.gz", "text")
    (first,) = obtain(tmp_path / "cache", archive)
    shutil.rmtree(first.prefix)
    (second,) = obtain(tmp_path / "cache", archive)
    assert (Path(second.prefix) / "bin" / "activate").read_text() == "text"


def test_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ServeError, match="others may write there; choose one with --environment-cache"):
        obtain(folder, pack(tmp_path / "env.tar.gz"))


def test_servers_wait_for_each_other(tmp_path: Path) -> None:
    """A lock held by another process; it is let go when that dies."""
    archive = pack(tmp_path / "env.tar.gz", "text")
    folder = tmp_path / "cache"
    cache.make_folder(folder)
    key = cache.key_of(archive)
    program = "import sys; from pathlib import Path; from stubserve.environments.cache import Entry\n"
    program += "e = Entry(Path(sys.argv[1]), sys.argv[2]); e.lock(); e.begin(); print('locked', flush=True)\n"
    program += "sys.stdin.read()"
    command = [sys.executable, "-c", program, str(folder), key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"

        async def find() -> Environment:
            loop = asyncio.get_running_loop()
            waiting = asyncio.ensure_future(Environments(folder).extracted(archive))
            said = asyncio.Event()

            class Listener(logging.Handler):
                def emit(self, record: logging.LogRecord) -> None:
                    if "another server is extracting" in record.getMessage():
                        loop.call_soon_threadsafe(said.set)

            logger, listener = logging.getLogger("stubserve.environments"), Listener()
            logger.addHandler(listener)
            logger.setLevel("INFO")
            await said.wait()
            logger.removeHandler(listener)
            assert not waiting.done()
            other.kill()
            return await waiting

        found = asyncio.run(find())
    assert (Path(found.prefix) / "bin" / "activate").read_text() == "text"


def relocating_archive(folder: Path, script: str) -> Path:
    """An archive of an environment with a script that conda-pack would have left in it."""
    archive = folder / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in (("bin/activate", b""), ("bin/conda-unpack", script.encode())):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, sys.executable
        tar.addfile(link)
    return archive


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_what_relocates_an_environment_writes_nowhere_else(tmp_path: Path) -> None:
    """The archive may be one that a model has changed."""
    code = f"""if True:
        import os
        open(os.path.dirname(os.path.abspath(__file__)) + "/here", "w").close()
        try:
            open({str(tmp_path / "elsewhere")!r}, "w").close()
        except PermissionError:
            pass
    """
    found = asyncio.run(Environments(tmp_path / "cache").extracted(relocating_archive(tmp_path, code)))
    assert (Path(found.prefix) / "bin" / "here").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_what_relocates_an_environment_ends_with_who_wanted_it(tmp_path: Path) -> None:
    """It writes to the folder, which the next who extracts empties."""
    pid = "open(os.path.dirname(os.path.abspath(__file__)) + '/pid', 'w').write(f'{os.getpid()}\\n')"
    archive = relocating_archive(tmp_path, f"import os, time; {pid}; time.sleep(1000)")

    def told() -> str:
        return "".join(path.read_text() for path in tmp_path.glob("cache/*/bin/pid"))

    async def give_up() -> psutil.Process:
        extracting = asyncio.create_task(Environments(tmp_path / "cache").extracted(archive))
        while not (pid := told()).endswith("\n"):
            await asyncio.sleep(0.01)
            assert not extracting.done()
        process = psutil.Process(int(pid))
        extracting.cancel()
        await asyncio.gather(extracting, return_exceptions=True)
        return process

    with contextlib.suppress(psutil.NoSuchProcess):
        assert not psutil.wait_procs([asyncio.run(give_up())], 10)[1]


@pytest.mark.parametrize("value", ["{}/missing", "{}/circle", "{}/a\0b"])
def test_a_place_that_is_none(tmp_path: Path, value: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    text = value.format(tmp_path)
    with pytest.raises(ServeError, match="Failed to get the canonical path for " + re.escape(text)):
        asyncio.run(Environments(tmp_path).find(text, tmp_path))

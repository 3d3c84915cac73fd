"""Models with an environment each, made of a few files: enough to run a stub in, or wrong in one way.

A good one is the interpreter that runs the suite under another name, with its numpy. Triton's stub brings a Python of
its own and needs of an environment only that its script `bin/activate` runs.
"""

from __future__ import annotations

import bz2
import gzip
import io as streams
import lzma
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy

from .repository import Model, io

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_IO = io("input", "IN", "FP32", "1") + io("output", "OUT", "FP32", "1")
_INTERPRETER = Path(sys.executable).resolve()
_SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
_ACTIVATE = {"bin/activate": b""}
_PYTHON = {
    "pyvenv.cfg": f"home = {_INTERPRETER.parent}\n".encode(),
    f"{_SITE}/numpy.pth": f"{Path(numpy.__file__).parents[1]}\n".encode(),
}
_GOOD = _PYTHON | _ACTIVATE


def _tar(files: dict[str, bytes], *others: tarfile.TarInfo, python: bool = True) -> bytes:
    """A tar file with these files, ``others`` of no content, and unless told otherwise a ``bin/python``."""
    if python:
        others = (*others, _link("bin/python", str(_INTERPRETER)))
    stream = streams.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, streams.BytesIO(content))
        for other in others:
            tar.addfile(other)
    return stream.getvalue()


def _link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


def _entry(name: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, 0o600
    entry.devmajor, entry.devminor = 1, 3
    return entry


def _model(name: str, path: str, files: dict[str, str | bytes | Path] | None = None) -> Model:
    """A model whose environment is at ``path``, relative to its own folder if it begins with a dollar."""
    value = path.replace("$", "$$TRITON_MODEL_DIRECTORY/", 1)
    config = _IO + f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{value}" }} }}\n'
    return Model(name, config, "identity", files=files or {})


def _archive(name: str, content: bytes, pack: Callable[[bytes], bytes] = gzip.compress) -> Model:
    return _model(name, "$env.tar.gz", {"env.tar.gz": pack(content)})


def _folder(name: str, files: Mapping[str, bytes | Path]) -> Model:
    return _model(name, "$env", {f"env/{path}": content for path, content in files.items()})


MODELS = (
    Model("none", _IO, "identity"),
    _archive("archive", _tar(_GOOD)),
    _archive("archive_plain", _tar(_GOOD), bytes),
    _model("archive_missing", "$env.tar.gz"),
    _folder("folder", {**_GOOD, "bin/python": _INTERPRETER}),
    _folder("folder_no_activate", {"bin/readme": b""}),
    _folder("folder_conda_meta", {**_PYTHON, "conda-meta/history": b"", "bin/python": _INTERPRETER}),
    _folder("folder_no_python", _ACTIVATE),
    _model("relative", "no/such/env.tar.gz"),
    _model("relative_dots", "../env.tar.gz"),
    _model("empty_path", ""),
    _model("only_the_folder", "$"),
    _model("variable_within", "/x/$env.tar.gz"),
)

# Each in a server of its own: once real Triton could not extract one archive, it can extract no other.
ALONE = (
    _archive("archive_bzip2", _tar(_GOOD), bz2.compress),
    _archive("archive_xz", _tar(_GOOD), lzma.compress),
    _archive("archive_zstd", _tar(_GOOD), zstd.compress),
    _archive("archive_no_activate", _tar(_PYTHON)),
    _archive("archive_truncated", _tar(_GOOD), lambda content: gzip.compress(content)[:-100]),
    _archive("archive_damaged", _tar(_GOOD)[:1000], bytes),
    _model("archive_text", "$env.tar.gz", {"env.tar.gz": "no archive at all\n"}),
    _model("archive_of_no_bytes", "$env.tar.gz", {"env.tar.gz": b""}),
    _archive("archive_climbs", _tar({**_GOOD, "../escaped": b""})),
    _archive("archive_device", _tar(_GOOD, _entry("null", tarfile.CHRTYPE))),
    _archive("archive_pipe", _tar(_GOOD, _entry("pipe", tarfile.FIFOTYPE))),
    _archive("archive_link_outside", _tar(_GOOD, _link("etc", "/etc"))),
)

"""The kind of a PyTorch file, found without loading it: by the names in its zip archive.

Nothing that runs code may be unpickled. So the kind has to be known before torch gets the file: TorchScript, whose
reader makes only tensors and TorchScript's types, or a pickle of Python objects, which `torch.save` writes into
archives that look the same from outside.
"""

from __future__ import annotations

import os
import re
import zipfile
from typing import Any, List, Mapping, Set

from stubserve_stub.backends.loading import HEAD_BYTES, resemblance
from stubserve_stub.runtime.failure import Refusal

TORCHSCRIPT = "TorchScript"
EXPORTED = "a program of torch.export"
COMPILED = "a package of AOTInductor"
PICKLE = "a pickle of Python objects"

SOURCE = ".py"

_DEFAULT_FILE = "model.pt"
_RUNTIME = "model.py"

_ZIP = b"PK\x03\x04"
# How the last record of an archive begins, and how many bytes follow
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 18
# How pickles begin, from protocol 2 on; `torch.save` writes them without an archive in its old format.
_PICKLE = b"\x80"

# How the source code in TorchScript names a device
_DEVICE = re.compile(rb'torch\.device\("(cuda(?::\d+)?)"\)')


def find(version_dir: str, config: Mapping[str, Any]) -> str:
    """The file of a model; with `runtime: "model.py"` a module in Python if there is one. Raises Refusal."""
    named = config.get("default_model_filename", "")
    names = [named or _DEFAULT_FILE]
    if config.get("runtime") == _RUNTIME:
        names = [*filter(None, [named]), _RUNTIME, _DEFAULT_FILE]
    paths = [os.path.join(version_dir, name) for name in names]
    for path in paths:
        if os.path.isfile(path):
            return path
    places = " or ".join(f"'{path}'" for path in paths)
    raise Refusal(f"unable to find {places} for model '{config.get('name', '')}'")


def kind_of(path: str) -> str:
    """The kind of a file: one of the constants above. Raises Refusal for other files, and for incomplete ones."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise Refusal(f"'{path}' cannot be read: {error.strerror}") from None
    if not head:
        raise Refusal(f"'{path}' is no PyTorch model: it is empty")
    if head.startswith(_PICKLE):
        return PICKLE
    if not head.startswith(_ZIP):
        raise Refusal(f"'{path}' is no PyTorch model: it is no archive{resemblance(head)}")
    kind = _kind_of_archive(_names(path))
    if not kind:
        raise Refusal(f"'{path}' is no PyTorch model: it is a zip archive of something else")
    return kind


def cuda_devices(path: str) -> List[str]:
    """The GPUs that the code in a TorchScript file names; it fails when it gets there."""
    found: Set[bytes] = set()
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                found.update(_DEVICE.findall(archive.read(name)))
    return sorted(device.decode() for device in found)


def names_device(path: str, device: str) -> str:
    """The warning about a TorchScript file with code that names a GPU."""
    return f"'{path}' names '{device}' in its code: where it gets there, it fails on a CPU"


def no_torchscript(path: str, kind: str) -> Refusal:
    """Why a file cannot be served as it is, and what to do."""
    return Refusal(
        f"'{path}' is no TorchScript: it is {kind}, as torch.save writes a state_dict or a whole module, and those are "
        "not unpickled, because that runs code. `torch.jit.script(model).save(...)` and `torch.jit.trace` make "
        'TorchScript; the weights of a class in a model.py beside it are read with `runtime: "model.py"` in '
        "config.pbtxt"
    )


def _names(path: str) -> Set[str]:
    try:
        # The directory of a zip archive is at its end. The module zipfile also looks before that, and would find the
        # directory of an archive inside an archive that is cut off.
        with open(path, "rb") as file:
            file.seek(-len(_ZIP_END) - _ZIP_END_BYTES, os.SEEK_END)
            if file.read(len(_ZIP_END)) != _ZIP_END:
                raise zipfile.BadZipFile
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError):
        raise Refusal(
            f"'{path}' is no whole PyTorch model: it is damaged, or cut off after {os.path.getsize(path)} bytes"
        ) from None


def _kind_of_archive(names: Set[str]) -> str:
    # All but some old exported programs are in a folder, which has the name of the file that was written.
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return TORCHSCRIPT
    if any(name.startswith("data/aotinductor/") for name in inner):
        return COMPILED
    if any(name.startswith("models/") for name in inner) or "serialized_exported_program.json" in names | inner:
        return EXPORTED
    return PICKLE if "data.pkl" in inner else ""

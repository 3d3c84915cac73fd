"""Small models of PyTorch's for tests, and files of them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

# By the names of the protocol
ELEMENT_TYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}

# In some versions of torch, all that makes or reads TorchScript says that it is deprecated.
IGNORE_DEPRECATIONS = "ignore:`torch.jit:DeprecationWarning"


class Copy(torch.nn.Module):
    """Y = X, but in memory of its own"""

    def forward(self, x):
        return x.clone()


class Same(torch.nn.Module):
    """Y is X itself"""

    def forward(self, x):
        return x


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Arithmetic(torch.nn.Module):
    """a + b, a - b"""

    def forward(self, a, b):
        return a + b, a - b


class ArithmeticList(torch.nn.Module):
    def forward(self, a, b):
        return [a + b, a - b]


class ArithmeticDict(torch.nn.Module):
    def forward(self, a, b):
        return {"SUM": a + b, "DIFFERENCE": a - b}


class Both(NamedTuple):
    total: torch.Tensor
    difference: torch.Tensor


class ArithmeticNamed(torch.nn.Module):
    def forward(self, a, b):
        return Both(a + b, a - b)


class DictSum(torch.nn.Module):
    """Takes a dictionary of tensors."""

    def forward(self, tensors: dict[str, torch.Tensor]):
        return tensors["left"] - tensors["right"]


class AddsToInput(torch.nn.Module):
    """Writes to what it is given."""

    def forward(self, x):
        x.add_(1)
        return x * 2


class KeepsInput(torch.nn.Module):
    """Answers with the input of the call before, which it has kept where it was."""

    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(1, 1)

    def forward(self, x):
        before = self.kept
        self.kept = x
        return before + torch.zeros_like(x)


class Lengths(torch.nn.Module):
    """Strings in capital letters, and how long they are."""

    def forward(self, texts: list[str]):
        lengths: list[int] = []
        shouted: list[str] = []
        for text in texts:
            lengths.append(len(text))
            shouted.append(text.upper())
        return shouted, torch.tensor(lengths)


class OnGpu(torch.nn.Module):
    """Names a device that is not there."""

    def forward(self, x):
        return x.to("cuda:0") * 2


def script(module: Any, version_dir: Path, filename: str = "model.pt") -> Path:
    version_dir.mkdir(parents=True, exist_ok=True)
    path = version_dir / filename
    torch.jit.script(module).save(str(path))
    return path


def export(module: Any, example: Sequence[Any], version_dir: Path, filename: str = "model.pt2", **more: Any) -> Path:
    version_dir.mkdir(parents=True, exist_ok=True)
    path = version_dir / filename
    torch.export.save(torch.export.export(module.eval(), tuple(example), **more), str(path))
    return path


def rewrite(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Changes the files in a zip archive, given by their names without the folder that all of them are in."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, change(name.partition("/")[2], data))


class Evil:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


def config(inputs: dict[str, str], outputs: dict[str, str], more: str = "") -> str:
    """A configuration: data type and dimensions by name, as in "FP32 3 -1"."""

    def tensors(described: dict[str, str]) -> str:
        parts = []
        for name, text in described.items():
            datatype, *dims = text.split()
            kind = "STRING" if datatype == "BYTES" else datatype
            parts.append(f"{{ name: '{name}' data_type: TYPE_{kind} dims: [ {', '.join(dims)} ] }}")
        return ", ".join(parts)

    return f"{more} input [ {tensors(inputs)} ] output [ {tensors(outputs)} ]"

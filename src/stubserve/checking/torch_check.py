"""Mistakes that keep a PyTorch model from being served, as far as its file and its configuration tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stubserve_stub.backends.pytorch import file as torch_file
from stubserve_stub.runtime.failure import Refusal

from stubserve.checking.file_problem import FileProblem
from stubserve.model_config.render import to_json_dict


def file_problems(config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the file of a version."""
    path = str(version_dir)
    try:
        path = torch_file.find(path, to_json_dict(config))
        if path.endswith(torch_file.SOURCE):
            return
        kind = torch_file.kind_of(path)
        if kind == torch_file.PICKLE:
            raise torch_file.no_torchscript(path, kind)
    except Refusal as refusal:
        yield FileProblem(Path(path), str(refusal))
        return
    if kind == torch_file.TORCHSCRIPT:
        for device in torch_file.cuda_devices(path):
            yield FileProblem(Path(path), torch_file.names_device(path, device), is_warning=True)

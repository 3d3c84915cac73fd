"""What is wrong with a PyTorch file, found without torch."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from stubserve_stub.backends.card import FileProblem
from stubserve_stub.backends.pytorch import file
from stubserve_stub.runtime.failure import Refusal


def file_problems(config: Mapping[str, Any], version_dir: str) -> Iterator[FileProblem]:
    path = version_dir
    try:
        path = file.find(path, config)
        if path.endswith(file.SOURCE):
            return
        kind = file.kind_of(path)
        if kind == file.PICKLE:
            raise file.no_torchscript(path, kind)
    except Refusal as refusal:
        yield FileProblem(path, str(refusal))
        return
    if kind == file.TORCHSCRIPT:
        for device in file.cuda_devices(path):
            yield FileProblem(path, file.names_device(path, device), is_warning=True)

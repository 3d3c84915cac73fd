"""Mistakes that keep an ONNX model from being served, as far as its file and its configuration tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stubserve_stub.backends.onnxruntime import file as onnx_file
from stubserve_stub.backends.onnxruntime.contract import needs_completion, validate
from stubserve_stub.backends.onnxruntime.options import options_of
from stubserve_stub.backends.onnxruntime.session import find_file
from stubserve_stub.runtime.failure import Refusal

from stubserve.checking.file_problem import FileProblem
from stubserve.checking.onnx_declared import declared
from stubserve.model_config.render import to_json_dict

# Whether an accelerator is installed is known where the model runs.
_ALL_PROVIDERS = ("CPUExecutionProvider", "OpenVINOExecutionProvider")


def file_problems(config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the file of a version."""
    path = find_file(str(version_dir), config.default_model_filename)
    if not Path(path).is_file():
        yield FileProblem(version_dir, f"unable to find '{path}' for model '{config.name}'")
        return
    try:
        onnx_file.read(path)
        said = to_json_dict(config)
        contract = None if needs_completion(said) else declared(Path(path), said)
        if contract is not None:
            validate(said, contract)
    except Refusal as refusal:
        yield FileProblem(Path(path), str(refusal))


def read_options(config: dict[str, Any]) -> object:
    """The backend's options, as JSON has the configuration. Raises Refusal."""
    return options_of(config, {}, _ALL_PROVIDERS)

"""What keeps an ONNX model from being served, as far as its file and its configuration tell."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from stubserve_stub.backends.onnxruntime import file as onnx_file
from stubserve_stub.backends.onnxruntime.completion import needs_completion
from stubserve_stub.backends.onnxruntime.options import options_of
from stubserve_stub.backends.onnxruntime.session import find_file
from stubserve_stub.backends.onnxruntime.validation import validate
from stubserve_stub.runtime.failure import Refusal

from stubserve.environments.resolve import PARAMETER
from stubserve.model_config.render import to_json_dict
from stubserve.repository.onnx_declared import declared

BACKEND = "onnxruntime"

# Whether an accelerator is installed is known where the model runs.
_ALL_PROVIDERS = ("CPUExecutionProvider", "OpenVINOExecutionProvider")


def file_problem(config: Any, version_dir: Path) -> tuple[Path, str] | None:
    """What is wrong with the file of a version, and which file it is."""
    path = find_file(str(version_dir), config.default_model_filename)
    if not Path(path).is_file():
        return version_dir, f"unable to find '{path}' for model '{config.name}'"
    try:
        onnx_file.read(path)
        said = to_json_dict(config)
        contract = None if needs_completion(said) else declared(Path(path), said)
        if contract is not None:
            validate(said, contract)
    except Refusal as refusal:
        return Path(path), str(refusal)
    return None


def config_problem(config: Any) -> str:
    """What the backend would refuse of the configuration, empty for nothing."""
    try:
        options_of(to_json_dict(config), {}, _ALL_PROVIDERS)
    except Refusal as refusal:
        return str(refusal)
    return ""


def package_problem(config: Any) -> str:
    """Says how to get onnxruntime if the model runs in this environment, which does not have it."""
    if PARAMETER in config.parameters or importlib.util.find_spec(BACKEND) is not None:
        return ""
    return (
        f"model '{config.name}' needs the package onnxruntime: pip install 'stubserve[onnxruntime]', or an environment "
        f"that has it in the parameter {PARAMETER}"
    )

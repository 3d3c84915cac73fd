"""What can be said of models that a backend loads out of a file, without loading them: one check for each backend."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stubserve_stub.backends.loading import lacks
from stubserve_stub.backends.onnxruntime import file as onnx_file
from stubserve_stub.backends.onnxruntime.contract import needs_completion, validate
from stubserve_stub.backends.onnxruntime.session import find_file, options_of
from stubserve_stub.backends.pytorch import file as torch_file
from stubserve_stub.backends.pytorch import options as torch_options
from stubserve_stub.runtime.failure import Refusal

from stubserve.checking.onnx_declared import declared
from stubserve.environments.resolve import PARAMETER
from stubserve.model_config.render import to_json_dict


class FileProblem(NamedTuple):
    """`file` is what to look at. A warning does not keep the model from being served."""

    file: Path
    text: str
    is_warning: bool = False


# Whether an accelerator is installed is known where the model runs.
_ALL_PROVIDERS = ("CPUExecutionProvider", "OpenVINOExecutionProvider")


def onnx_problems(config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the ONNX file of a version, as far as it and the configuration tell."""
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


def onnx_options(config: dict[str, Any]) -> object:
    """The backend's options, as JSON has the configuration. Raises Refusal."""
    return options_of(config, {}, _ALL_PROVIDERS)


def torch_problems(config: Any, version_dir: Path) -> Iterator[FileProblem]:
    """What is wrong with the PyTorch file of a version, as far as it and the configuration tell."""
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


@dataclass(frozen=True)
class FileCheck:
    """The check of one backend. `package` is what it imports, `extra` what `pip install stubserve[extra]` calls that.

    `read_options` raises the Refusal of a configuration that the backend would not take, given as JSON has it;
    `file_problems` says what is wrong with the file in a version's folder.
    """

    package: str
    extra: str
    read_options: Callable[[dict[str, Any]], object]
    file_problems: Callable[[Any, Path], Iterator[FileProblem]]

    def config_problem(self, config: Any) -> str:
        """What the backend would refuse of the configuration, empty for nothing."""
        try:
            self.read_options(to_json_dict(config))
        except Refusal as refusal:
            return str(refusal)
        return ""

    def package_problem(self, config: Any) -> str:
        """Says how to get the package if the model runs in this environment, which does not have it."""
        if PARAMETER in config.parameters or importlib.util.find_spec(self.package) is not None:
            return ""
        return lacks(self.package, self.extra)


FILE_CHECKS = {
    "onnxruntime": FileCheck("onnxruntime", "onnxruntime", onnx_options, onnx_problems),
    "pytorch": FileCheck("torch", "pytorch", torch_options.options_of, torch_problems),
}

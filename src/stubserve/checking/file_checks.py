"""What can be said of models that a backend loads out of a file, without loading them: one check for each backend."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubserve_stub.backends.loading.refusals import lacks
from stubserve_stub.backends.pytorch import options as torch_options
from stubserve_stub.runtime.failure import Refusal

from stubserve.checking import onnx_check, torch_check
from stubserve.checking.file_problem import FileProblem
from stubserve.environments.resolve import PARAMETER
from stubserve.model_config.render import to_json_dict


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
    "onnxruntime": FileCheck("onnxruntime", "onnxruntime", onnx_check.read_options, onnx_check.file_problems),
    "pytorch": FileCheck("torch", "pytorch", torch_options.options_of, torch_check.file_problems),
}

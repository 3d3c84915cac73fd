"""Models whose files or configurations change while they serve: each case of ``cases/changing.py`` has its own.

What Python writes beside model.py is a change of the model for Triton, which then loads it once more, and for stubserve
it is not. So that both can be compared, a file lies where Python wants a folder, and it writes nothing.
"""

from __future__ import annotations

from pathlib import Path

from .repository import Model

HEADER = 'backend: "python"\n'
# The folder in which only those that look at the repository are interested
BEACON = "beacon"

# Answers with a number that the source has, and the name of its instance; groups named ``bad...`` do not start.
_SOURCE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        if self.name.startswith("bad"):
            raise ValueError("not this one")

    def execute(self, requests):
        number = pb_utils.Tensor("NUMBER", np.array([{number}], dtype=np.int32))
        name = pb_utils.Tensor("NAME", np.array([self.name], dtype=object))
        return [pb_utils.InferenceResponse([number, name]) for _ in requests]
"""


def source(number: int) -> str:
    return _SOURCE.format(number=number)


def version(number: int, code: str) -> dict[str, str]:
    """The files of a version, by path in the model's folder."""
    return {f"{number}/model.py": code, f"{number}/__pycache__": ""}


def config(*groups: str, more: str = "") -> str:
    """The text of a configuration without its first line; ``groups`` are the inner parts of ``instance_group``."""
    return (
        'output { name: "NUMBER" data_type: TYPE_INT32 dims: [1] }\n'
        'output { name: "NAME" data_type: TYPE_STRING dims: [1] }\n'
        + "".join(f"instance_group {{ {group} }}\n" for group in groups)
        + more
    )


def cpu(count: int, more: str = "") -> str:
    return f"count: {count} kind: KIND_CPU {more}"


ALL_VERSIONS = "version_policy { all { } }\n"
PARAMETER = 'parameters { key: "changed" value { string_value: "yes" } }\n'


def _model(name: str, count: int = 1, more: str = "", versions: tuple[str, ...] = ("1",)) -> Model:
    no_cache: dict[str, str | bytes | Path] = {f"{version}/__pycache__": "" for version in versions}
    return Model(name, config(cpu(count), more=more), code=source(1), versions=versions, files=no_cache)


MODELS = (
    _model(BEACON),
    *map(
        _model,
        (
            "code",
            "code_and_group",
            "code_breaks",
            "config",
            "config_breaks",
            "config_goes",
            "goes",
            "grows",
            "group_bad",
            "kind",
            "moves",
            "refused",
            "rewritten",
        ),
    ),
    _model("shrinks", 3),
    _model("renamed", 2),
    _model("version_comes", more=ALL_VERSIONS),
    _model("version_changes", more=ALL_VERSIONS, versions=("1", "2")),
    _model("version_goes", more=ALL_VERSIONS, versions=("1", "2")),
    _model("policy", more=ALL_VERSIONS, versions=("1", "2")),
)

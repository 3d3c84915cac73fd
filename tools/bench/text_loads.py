"""Real models of texts on both servers: a `model.py` with a tokenizer and onnxruntime, and texts that differ, as JSON.

`embedder` is all-MiniLM-L6-v2 with weights of 8 bits, for which a text takes some milliseconds: what a server costs
hardly shows. `classifier` has the same tokenizer, and a network of two layers that takes as long as that. Both are
compared with a loop over the same code in a process of its own, with the texts in batches of the size that suits it.

Packages and files come from the environment and the examples of this checkout: `model_files.txt` of the examples says
what `stubserve fetch` has to bring. Triton's Python finds the packages in the model's folder, where they are linked;
so both servers run the very same, if their Pythons are of one version.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from . import text_loop, wrk
from .onnx_loads import BARE, SHARE
from .payloads import WrongAnswerError
from .repository import write_configured
from .servers import Server
from .varied import VariedRequest
from .varied_loads import VariedLoad
from .workloads import RATE, Figures, Subject

REPOSITORY = "texts"
PACKAGES = ("onnxruntime", "tokenizers")
EXAMPLES = Path(__file__).parents[2] / "model_repository"
# So many answers are compared with those of the same code. They differ in their last digits with the batch, those of
# 8-bit weights in more, as their scale is that of the batch.
CHECKED = 16
LIKENESS = 0.95
BATCH = 64

# Each model: how long its rows are, and of how many texts at once the network makes most of its time
MODELS = {"embedder": (384, 1), "classifier": (16, 16)}

MODEL = """\
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from text_model import TextModel


class TritonPythonModel:
    def initialize(self, args):
        self.model = TextModel(Path(__file__).parent, {most})

    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "TEXTS").as_numpy()[0, 0] for request in requests]
        rows = self.model.run([text.decode() for text in texts])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("ROW", row[np.newaxis])]) for row in rows]
"""

CONFIG = """\
backend: "python"
max_batch_size: {batch}
input [ {{ name: "TEXTS" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "ROW" data_type: TYPE_FP32 dims: [ {width} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""


def available() -> bool:
    """Whether the packages and the examples are there."""
    packages = all(importlib.util.find_spec(name) is not None for name in (*PACKAGES, "onnx"))
    return packages and EXAMPLES.is_dir()


def all_loads() -> list[VariedLoad]:
    return [TextLoad("embedder", "sentence embedder"), TextLoad("classifier", "text classifier")]


def write(repository: Path) -> None:
    """The models, with their files fetched. Raises LoadError."""
    for name, (width, most) in MODELS.items():
        config = CONFIG.format(batch=BATCH, width=width)
        write_configured(repository, name, MODEL.replace("{most}", str(most)), config)
        folder = repository / name / "1"
        (folder / "text_model.py").write_text((Path(__file__).parent / "text_model.py").read_text())
        for package in PACKAGES:
            found = importlib.util.find_spec(package)
            assert found is not None
            (folder / package).symlink_to(Path(str(found.origin)).parent)
        wanted = ["sentence_tokenizer"] if name == "classifier" else ["sentence_tokenizer", "sentence_encoder"]
        files = "".join((EXAMPLES / example / "model_files.txt").read_text() for example in wanted)
        (repository / name / "model_files.txt").write_text(files)
    write_classifier(repository / "classifier" / "1" / "model.onnx")
    command = [sys.executable, "-m", "stubserve", "fetch", str(repository)]
    fetched = subprocess.run(command, capture_output=True, text=True)
    if fetched.returncode != 0:
        raise wrk.LoadError(f"the files of the models cannot be fetched: {fetched.stderr[-800:]}")


def write_classifier(file: Path) -> None:
    """Two layers for each word piece: the smallest network that does some work of its own."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    sizes = {"embedding": (30522, 64), "hidden": (64, 64), "last": (64, MODELS["classifier"][0])}
    weights = [numpy_helper.from_array(random.standard_normal(size, np.float32), name) for name, size in sizes.items()]
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "hidden"], ["first"]),
        helper.make_node("Relu", ["first"], ["relu"]),
        helper.make_node("MatMul", ["relu", "last"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "p"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", "p", sizes["last"][1]])],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(file))


class TextLoad(VariedLoad):
    """One text a request, 16 at a time."""

    large = True

    def __init__(self, model: str, name: str) -> None:
        super().__init__(name, 16, lambda variety: variety.json_texts(model, 1))
        self._model = model

    @cached_property
    def texts(self) -> list[str]:
        return [request.outputs[0].values[0] for request in self.requests]

    def prepare(self, subject: Subject) -> None:
        server = self.server(subject)
        rows = text_loop.rows(self._folder(subject), MODELS[self._model][1], self.texts[:CHECKED])
        for request, row in zip(self.requests, rows, strict=False):
            require_like(_row(server, request), row)
        self._load(subject, server, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        bare = text_loop.run(sys.executable, self._folder(subject), MODELS[self._model][1], seconds)
        figures = super().measure(subject, seconds)
        return {SHARE: figures[RATE] / bare, **figures, BARE: bare}

    def server(self, subject: Subject) -> Server:
        return subject.serving(REPOSITORY, write)

    def _folder(self, subject: Subject) -> Path:
        return subject.workspace / REPOSITORY / self._model / "1"


def _row(server: Server, request: VariedRequest) -> Sequence[float]:
    answer, _ = request.exchange(server.http_port)
    row: list[float] = json.loads(answer)["outputs"][0]["data"]
    return row


def require_like(row: Sequence[float], expected: np.ndarray[Any, Any]) -> None:
    """Raises WrongAnswerError unless two rows point nearly the same way."""
    if len(row) != len(expected):
        raise WrongAnswerError(f"a row of {len(row)} floats, where {len(expected)} are right")
    likeness = float(np.dot(row, expected) / np.linalg.norm(row) / np.linalg.norm(expected))
    if not likeness > LIKENESS:
        raise WrongAnswerError(f"a row that is {likeness:.3f} like the right one")

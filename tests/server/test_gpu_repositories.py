"""Configurations for GPUs as public repositories have them, with models that stand in for theirs: they load and answer.

Each line is one repository's: its platform or backend, its largest batch, inputs, outputs, and what else it says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests import onnxruntime_double, tensorrt_double
from tests.onnx_models import helper, model, node
from tests.server.gpu_models import GpuServing, given

ONE_GPU = "instance_group [ { kind: KIND_GPU count: 1 } ]"
FIRST_GPU = "instance_group [ { kind: KIND_GPU count: 1 gpus: [ 0 ] } ]"
NUMPY = {"FP32": "f4", "INT32": "i4", "INT64": "i8", "UINT8": "u1"}
TENSORRT = {"FP32": "FLOAT", "INT32": "INT32", "INT64": "INT64", "UINT8": "UINT8"}

Tensors = dict[str, tuple[str, list[int]]]


class Found(NamedTuple):
    platform: str
    rows: int
    inputs: Tensors
    outputs: Tensors
    rest: str


PICTURE = {"images": ("FP32", [3, 64, 64])}
REPOSITORIES = {
    "detector_of_one_picture": Found(
        "tensorrt_plan", 0, {"images": ("FP32", [1, 3, 64, 64])}, {"output0": ("FP32", [1, 84, 840])}, ONE_GPU
    ),
    "classifier_of_one_picture": Found(
        "tensorrt", 0, {"input": ("FP32", [1, 3, 48, 48])}, {"output": ("FP32", [1, 17])}, ONE_GPU
    ),
    "segments_in_large_batches": Found(
        "tensorrt_plan",
        200,
        {"images": ("FP32", [3, 32, 32])},
        {"output0": ("FP32", [37, 210]), "output1": ("FP32", [32, 8, 8])},
        "dynamic_batching { preferred_batch_size: [ 1, 2, 4, 8, 16, 32, 64, 128, 200 ] "
        "max_queue_delay_microseconds: 500 }"
        "instance_group { kind: KIND_GPU count: 1 }",
    ),
    "pictures_of_any_size": Found(
        "tensorrt_plan",
        16,
        {"images": ("FP32", [3, -1, -1])},
        {"output0": ("FP32", [-1, -1]), "1877": ("FP32", [-1, -1])},
        "dynamic_batching { max_queue_delay_microseconds: 100 } version_policy: { latest { num_versions: 1 } }"
        + FIRST_GPU,
    ),
    "graphs_of_cuda": Found(
        "tensorrt_plan",
        2,
        {"input": ("FP32", [3, 64, 64])},
        {"output": ("FP32", [252, 6])},
        "dynamic_batching { max_queue_delay_microseconds: 100 preferred_batch_size: [ 2 ] }"
        "optimization { cuda { graphs: true } }" + FIRST_GPU,
    ),
    "no_group": Found("tensorrt_plan", 1, PICTURE, {"output0": ("FP32", [7, 840])}, ""),
    "any_number_of_boxes": Found(
        "onnxruntime",
        8,
        PICTURE,
        {"output0": ("FP32", [84, -1])},
        "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 1000 }" + ONE_GPU,
    ),
    "three_of_a_transformer": Found(
        "onnxruntime",
        512,
        {name: ("INT32", [-1]) for name in ("input_ids", "token_type_ids", "attention_mask")},
        {"classes": ("INT32", [-1])},
        "dynamic_batching { max_queue_delay_microseconds: 1000 } instance_group [ { count: 3 kind: KIND_GPU } ]",
    ),
    "accelerated": Found(
        "onnxruntime_onnx",
        8,
        PICTURE,
        {"output0": ("FP32", [84, 840])},
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" '
        'parameters { key: "precision_mode" value: "FP16" } } } }' + ONE_GPU,
    ),
    "pictures_and_texts": Found(
        "onnxruntime_onnx",
        8,
        {"pixel_values": ("FP32", [3, 38, 38]), "input_ids": ("INT64", [-1]), "attention_mask": ("INT64", [-1])},
        {"logits": ("FP32", [-1, 305])},
        "instance_group [ { kind: KIND_GPU, count: 1, gpus: [0] } ]"
        "dynamic_batching { preferred_batch_size: [ 1, 2, 4, 8 ] max_queue_delay_microseconds: 1000 }",
    ),
    "language_model_by_torch": Found(
        "python",
        0,
        {"input_token_ids": ("INT32", [-1])},
        {"output_token_ids": ("INT32", [1, 1, -1])},
        'parameters { key: "model_dir" value: { string_value: "/checkpoints" } }'
        "instance_group { count: 1 kind: KIND_GPU }",
    ),
    "preprocessing_without_a_group": Found(
        "python", 8, {"IMAGE": ("UINT8", [-1, -1, 3])}, {"images": ("FP32", [3, 64, 64])}, ""
    ),
    "tensors_that_stay": Found(
        "python",
        0,
        {"in": ("FP32", [-1])},
        {"out": ("FP32", [-1])},
        'parameters: { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "no" } }' + FIRST_GPU,
    ),
}


def made(found: Found, dims: list[int]) -> list[int]:
    """The shape of a tensor with these dimensions: two rows at most, and 2 for each variable dimension."""
    return [min(found.rows, 2)] * bool(found.rows) + [2 if dim == -1 else dim for dim in dims]


def described(found: Found) -> str:
    named = ("backend" if found.platform in ("python", "onnxruntime", "tensorrt") else "platform", found.platform)
    tensors = [
        f'{what} {{ name: "{name}" data_type: TYPE_{kind} dims: {dims} }}'
        for what, group in (("input", found.inputs), ("output", found.outputs))
        for name, (kind, dims) in group.items()
    ]
    return "\n".join(['{}: "{}"'.format(*named), f"max_batch_size: {found.rows}", *tensors, found.rest])


def stand_in(found: Found, folder: Path) -> None:
    """A model with these inputs and outputs, whose outputs are zeros."""
    rows = [-1] if found.rows else []
    if "tensorrt" in found.platform:
        inputs = [
            tensorrt_double.tensor(name, rows + dims, TENSORRT[kind], ranges=[ranges(found, dims)])
            for name, (kind, dims) in found.inputs.items()
        ]
        outputs = [
            tensorrt_double.tensor(name, rows + dims, TENSORRT[kind], zeros=made(found, dims))
            for name, (kind, dims) in found.outputs.items()
        ]
        plan = {"version": tensorrt_double.VERSION, "program": "zeros", "tensors": [*inputs, *outputs]}
        (folder / "model.plan").write_text(json.dumps(plan))
    elif "onnx" in found.platform:
        named = {name: (kind, ["n"] * bool(rows) + [None if d == -1 else d for d in dims]) for name, (kind, dims) in
                 {**found.inputs, **found.outputs}.items()}  # fmt: skip
        first = next(iter(found.inputs))
        nodes = [node("Shape", first, "shape"), node("Gather", "shape zero", "rows")]
        numbers = {"zero": [0]}
        for name, (kind, dims) in found.outputs.items():
            numbers.update({f"{dim}": [dim] for dim in dims})
            nodes += [
                node(
                    "Concat",
                    " ".join("rows" if dim == -1 else str(dim) for dim in [-1, *dims]),
                    f"{name}_shape",
                    axis=0,
                ),
                node("ConstantOfShape", f"{name}_shape", name, value=helper.make_tensor("", onnx_type(kind), [1], [0])),
            ]
        graph = model(
            nodes,
            [(name, *named[name]) for name in found.inputs],
            [(name, *named[name]) for name in found.outputs],
            [helper.make_tensor(name, 7, [1], value) for name, value in numbers.items()],
        )
        (folder / "model.onnx").write_bytes(graph.SerializeToString())
    else:
        zeros = {name: (NUMPY[kind], made(found, dims)) for name, (kind, dims) in found.outputs.items()}
        (folder / "model.py").write_text(f"""
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        assert args["model_instance_kind"] == "GPU"

    def execute(self, requests):
        outputs = {zeros}
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor(name, np.zeros(shape, kind)) for name, (kind, shape) in outputs.items()
        ]) for _ in requests]
""")


def onnx_type(kind: str) -> int:
    return {"FP32": 1, "INT32": 6, "INT64": 7, "UINT8": 2}[kind]


def ranges(found: Found, dims: list[int]) -> list[list[int]]:
    least, most = ([1], [found.rows]) if found.rows else ([], [])
    least, most = least + [1 if d == -1 else d for d in dims], most + [64 if d == -1 else d for d in dims]
    return [least, least, most]


def test_repositories_for_gpus(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    repository = tmp_path / "models"
    for name, found in REPOSITORIES.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(described(found))
        stand_in(found, repository / name / "1")
    sites = []
    for double in (onnxruntime_double, tensorrt_double):
        (tmp_path / double.__name__).mkdir()
        sites.append(double.install(tmp_path / double.__name__))
    with GpuServing(repository, tmp_path, sites=sites) as server:
        server.wait_until_ready()
        for name, found in REPOSITORIES.items():
            inputs = [
                given(one, np.ones(made(found, dims), NUMPY[kind]).tolist(), kind)
                for one, (kind, dims) in found.inputs.items()
            ]
            answer = server.infer_json(name, inputs)
            assert answer.status == 200, (name, answer.body)
            shapes = {output["name"]: output["shape"] for output in answer.json()["outputs"]}
            assert shapes == {one: made(found, dims) for one, (_, dims) in found.outputs.items()}
            groups = server.get(f"/v2/models/{name}/config").json()["instance_group"]
            expected = [0] if "gpus" in found.rest else [0, 1]
            assert [(group["kind"], group["gpus"]) for group in groups] == [("KIND_GPU", expected)]

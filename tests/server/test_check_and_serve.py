"""`stubserve check` and a load say the same of a repository: what is refused, what is served, and in which words."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from stubserve.checking.repository import check_repositories
from tests.onnx_models import arithmetic, identity, model, node
from tests.real_server import Serving, io_config, write_model

NOWHERE = Path("/nowhere")
TENSOR = '{{ name: "{}" data_type: TYPE_{} dims: [ {} ] }}'


def onnx_config(inputs: str, outputs: str, more: str = "") -> str:
    """Tensors are written as `A FP32 -1 3`, with commas between."""
    sides = []
    for side, tensors in (("input", inputs), ("output", outputs)):
        written = []
        for tensor in tensors.split(","):
            name, datatype, *dims = tensor.split()
            written.append(TENSOR.format(name, datatype, ", ".join(dims)))
        sides.append(f"{side} [ {', '.join(written)} ]")
    return f'backend: "onnxruntime"\n{sides[0]}\n{sides[1]}\n{more}\n'


def write_onnx(repository: Path, name: str, content: bytes, config: str = "") -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(content)
    if config:
        (folder / "config.pbtxt").write_text(config)


def write_ensemble(repository: Path, name: str, steps: str, outputs: str = "B FP32 -1", more: str = "") -> None:
    """Steps are written as `model: INNER=outer > INNER=outer`, with semicolons between; the input is A FP32 [-1]."""
    written = []
    for step in steps.split(";"):
        member, _, maps = step.partition(":")
        given, _, made = maps.partition(">")
        pairs = [("input_map", pair) for pair in given.split()] + [("output_map", pair) for pair in made.split()]
        text = " ".join(
            f'{kind} {{ key: "{pair.partition("=")[0]}" value: "{pair.partition("=")[2]}" }}' for kind, pair in pairs
        )
        written.append(f'{{ model_name: "{member.strip()}" model_version: -1 {text} }}')
    tensor, datatype, *dims = outputs.split()
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f'platform: "ensemble"\ninput [ {TENSOR.format("A", "FP32", "-1")} ]\n'
        f"output [ {TENSOR.format(tensor, datatype, ', '.join(dims))} ]\n"
        f"ensemble_scheduling {{ step [ {', '.join(written)} ] }}\n{more}"
    )


def write_everything(repository: Path) -> None:
    write_model(repository, "echo")
    write_model(repository, "batched", config=io_config(max_batch_size=4, extra="dynamic_batching { }"))
    write_model(repository, "template", config='backend: "python"\nmax_batch_size: ${size}\n')
    write_model(repository, "kept", config=io_config(extra='parameters { key: "a" value { string_value: "${a}" } }'))
    write_model(repository, "gpu", config=io_config(extra="instance_group { kind: KIND_GPU }"))
    write_model(
        repository,
        "labels",
        config=io_config(extra='output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "x" } ]'),
    )
    write_model(repository, "dims", config=io_config(dims="0"))
    write_model(
        repository,
        "timeout",
        config=io_config(extra='parameters { key: "EXECUTE_TIMEOUT_SECS" value { string_value: "x" } }'),
    )

    write_model(
        repository,
        "openai_routes",
        config=io_config(extra='parameters { key: "OPENAI_ROUTES" value { string_value: "chat" } }'),
    )

    warm_up = 'model_warmup {{ name: "w" inputs {{ key: "{}" value {{ data_type: TYPE_FP32 dims: [ 2 ] {} }} }} }}'
    for name, tensor, data in (
        ("warm", "INPUT0", "zero_data: true"),
        ("warm_unknown", "NOSUCH", "zero_data: true"),
        ("warm_without_file", "INPUT0", 'input_data_file: "gone"'),
    ):
        write_model(repository, name, config=io_config(extra=warm_up.format(tensor, data)))
    (repository / "torch_pickle" / "1").mkdir(parents=True)
    (repository / "torch_pickle" / "1" / "model.pt").write_bytes(pickle.dumps({}))
    (repository / "torch_pickle" / "config.pbtxt").write_text(
        io_config().replace("python", "pytorch").replace("INPUT0", "INPUT__0").replace("OUTPUT0", "OUTPUT__0")
    )

    plain = identity("FP32", ["n"]).SerializeToString()
    both = arithmetic(["batch", 3]).SerializeToString()
    scaled = model([node("Mul", "X W", "Y")], [("X", "FP32", ["n"]), ("W", "FP32", [1])], [("Y", "FP32", ["n"])])
    write_onnx(repository, "onnx", plain, onnx_config("X FP32 -1", "Y FP32 -1"))
    write_onnx(repository, "onnx_alone", both)
    write_onnx(repository, "onnx_both", both, onnx_config("A FP32 3, B FP32 3", "SUM FP32 3", "max_batch_size: 8"))
    write_onnx(repository, "onnx_narrower", plain, onnx_config("X FP32 7", "Y FP32 -1"))
    write_onnx(repository, "onnx_name", plain, onnx_config("INPUT FP32 -1", "Y FP32 -1"))
    write_onnx(repository, "onnx_output", plain, onnx_config("X FP32 -1", "OUT FP32 -1"))
    write_onnx(repository, "onnx_type", plain, onnx_config("X INT64 -1", "Y FP32 -1"))
    write_onnx(repository, "onnx_output_type", plain, onnx_config("X FP32 -1", "Y INT32 -1"))
    write_onnx(repository, "onnx_rank", plain, onnx_config("X FP32 -1 -1", "Y FP32 -1"))
    write_onnx(repository, "onnx_dims", both, onnx_config("A FP32 4, B FP32 3", "SUM FP32 3", "max_batch_size: 8"))
    write_onnx(repository, "onnx_output_dims", both, onnx_config("A FP32 -1 3, B FP32 -1 3", "SUM FP32 -1 4"))
    write_onnx(repository, "onnx_too_few", both, onnx_config("A FP32 -1 3", "SUM FP32 -1 3"))
    write_onnx(
        repository,
        "onnx_batch",
        scaled.SerializeToString(),
        onnx_config("X FP32 1, W FP32 1", "Y FP32 1", "max_batch_size: 8"),
    )
    write_onnx(repository, "onnx_cut_off", both[:-20], onnx_config("A FP32 -1 3, B FP32 -1 3", "SUM FP32 -1 3"))
    write_onnx(repository, "onnx_no_onnx", b"<html>", onnx_config("X FP32 -1", "Y FP32 -1"))
    write_onnx(
        repository,
        "onnx_parameter",
        plain,
        onnx_config("X FP32 -1", "Y FP32 -1", 'parameters { key: "execution_mode" value { string_value: "x" } }'),
    )
    write_onnx(
        repository, "onnx_gone", plain, onnx_config("X FP32 -1", "Y FP32 -1", 'default_model_filename: "other.onnx"')
    )

    write_ensemble(repository, "chain", "echo: INPUT0=A > OUTPUT0=t; onnx: X=t > Y=B")
    write_onnx(repository, "onnx_bare", plain, 'backend: "onnxruntime"\n')
    write_ensemble(repository, "of_completed", "echo: INPUT0=A > OUTPUT0=t; onnx_bare: X=t > Y=B")
    write_ensemble(repository, "no_member", "nosuch: INPUT0=A > OUTPUT0=B")
    write_ensemble(repository, "circle", "circle: A=A > B=B")
    write_ensemble(repository, "twice", "echo: INPUT0=A > OUTPUT0=B; echo: INPUT0=A > OUTPUT0=B")
    write_ensemble(repository, "nobody_makes", "echo: INPUT0=t > OUTPUT0=B")
    write_ensemble(repository, "unknown_input", "echo: NOSUCH=A > OUTPUT0=B")
    write_ensemble(repository, "unknown_output", "echo: INPUT0=A > NOSUCH=B")
    write_ensemble(repository, "other_type", "echo: INPUT0=A > OUTPUT0=B", "B INT32 -1")
    write_ensemble(repository, "other_shape", "onnx_both: A=A B=A > SUM=B")
    write_ensemble(repository, "no_steps_batch", "echo: INPUT0=A > OUTPUT0=B", more="max_batch_size: 4\n")
    write_ensemble(repository, "with_instances", "echo: INPUT0=A > OUTPUT0=B", more="instance_group { count: 1 }\n")
    for name, version in (("no_version", ""), ("other_version", "model_version: 3")):
        write_ensemble(repository, name, "echo: INPUT0=A > OUTPUT0=B")
        file = repository / name / "config.pbtxt"
        file.write_text(file.read_text().replace("model_version: -1", version))
    write_ensemble(repository, "of_a_broken_one", "onnx_name: X=A > Y=B")


# Where the reason is another model's, check says it of that model.
FOLLOWS = {"of_a_broken_one"}
# Where check has words of its own: it names the step, or the model where a load names the instance.
OTHER_WORDS = {"no_member", "onnx_gone"}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], dict[str, str]]:
    """What check says is wrong with each model; the reasons of those that are not served."""
    repository = tmp_path_factory.mktemp("models")
    write_everything(repository)
    wrong: dict[str, list[str]] = {path.name: [] for path in repository.iterdir()}
    for problem in check_repositories([repository], NOWHERE).problems:
        if not problem.is_warning:
            wrong[problem.model].append(problem.text)
    with Serving(repository, "--exit-on-error=false", "--strict-readiness=false") as server:
        rows = server.request("POST", "/v2/repository/index").json()
    states = {row["name"]: row["state"] for row in rows}
    assert set(states.values()) == {"READY", "UNAVAILABLE"}
    return wrong, {row["name"]: row["reason"] for row in rows if row["state"] == "UNAVAILABLE"}


def test_they_agree_on_what_is_served(outcome: tuple[dict[str, list[str]], dict[str, str]]) -> None:
    wrong, reasons = outcome
    assert {name for name, texts in wrong.items() if texts} | FOLLOWS == reasons.keys()


def test_they_agree_on_the_words(outcome: tuple[dict[str, list[str]], dict[str, str]]) -> None:
    wrong, reasons = outcome
    different = {
        name: (reason, wrong[name])
        for name, reason in reasons.items()
        if name not in FOLLOWS | OTHER_WORDS and not any(text.rstrip() in reason for text in wrong[name])
    }
    assert different == {}

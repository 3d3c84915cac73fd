"""`stubserve check` and a load say the same of a repository: what is refused, what is served, and in which words."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import NamedTuple

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


IO = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
ONNX_IO = IO.replace("INPUT0", "X").replace("OUTPUT0", "Y")


def agents(name: str, parameters: str = "") -> str:
    return f'model_repository_agents {{ agents {{ name: "{name}" {parameters} }} }}'


def accelerator(kind: str, name: str) -> str:
    return f'optimization {{ execution_accelerators {{ {kind}_execution_accelerator {{ name: "{name}" }} }} }}'


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


def step(model: str) -> str:
    maps = 'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }'
    return f'ensemble_scheduling {{ step {{ model_name: "{model}" model_version: -1 {maps} }} }}'


METRIC = 'metric_identifier { family: "other" } histogram_options { buckets: 1 }'
# What a configuration of a Python model has beside its tensors. One cause each, so check has one line.
ODD = {
    "agent_unknown": agents("nosuch"),
    "agent_no_name": agents(""),
    "checksum_other": agents("checksum", 'parameters { key: "MD5:config.pbtxt" value: "0" }'),
    "checksum_gone": agents("checksum", 'parameters { key: "MD5:1/gone.py" value: "0" }'),
    "checksum_odd": agents("checksum", 'parameters { key: "SHA:1/model.py" value: "0" }'),
    "file_odd": 'default_model_filename: "model.txt"',
    "file_gone": 'default_model_filename: "other.py"',
    "no_version_of_two": "version_policy { specific { versions: [ 3, 4 ] } }",
    "one_version_of_two": "version_policy { specific { versions: [ 1, 4 ] } }",
    "no_version": "version_policy { latest { num_versions: 0 } }",
    "many_instances": "instance_group { count: 2000 }",
    "gpus_of_auto": "instance_group { gpus: [ 0 ] }",
    "profile": 'instance_group { profile: "0" }',
    "metric_tag": 'metric_tags { key: "a-b" value: "x" }',
    "default_level": "dynamic_batching { priority_levels: 3 default_priority_level: 4 }",
    "preferred": "max_batch_size: 2 dynamic_batching { preferred_batch_size: 4 }",
    "slots": "sequence_batching { direct { minimum_slot_utilization: 2 } }",
    "force": parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe"),
    "threads": parameter("THREADS_PER_INSTANCE", "x"),
    "environment": parameter("EXECUTION_ENV_PATH", "/nowhere/env.tar.gz"),
    "cached_stream": "response_cache { enable: true } model_transaction_policy { decoupled: true }",
    # Those that are served, with a remark or without
    "cached": "response_cache { enable: true }",
    "limited": 'instance_group { rate_limiter { resources { name: "r" count: 1 } } }',
    "host_policy": 'instance_group { host_policy: "numa0" }',
    "secondary": "instance_group { secondary_devices { kind: KIND_NVDLA } }",
    "graph": "optimization { graph { level: 1 } }",
    "accelerator": accelerator("gpu", "tensorrt"),
    "pinned": "optimization { input_pinned_memory { enable: false } }",
    "operations": 'model_operations { op_library_filename: "/nowhere/x.so" }',
    "other_files": 'cc_model_filenames { key: "7.5" value: "x" }',
    "batch_input": 'batch_input { target_name: "N" data_type: TYPE_FP32 source_input: "INPUT0" }',
    "metric": f"model_metrics {{ metric_control {{ {METRIC} }} }}",
}
# Whole configurations with a mistake from which other things seem to follow
MISREAD = {
    "field_inputs": 'backend: "python"' + IO.replace("input", "inputs"),
    "field_batch": f'backend: "python"\nmax_batchsize: 4\ndynamic_batching {{ preferred_batch_size: 4 }}{IO}',
    "field_backend": f'backnd: "python"{IO}',
    "field_of_type": 'backend: "python"\ninput [ { name: "A" data_type: TYPE_#DTYPE\ndims: 1 } ]',
    "unfilled": f'backend: "python"\nmax_batch_size: ${{x}}{IO.replace("[ -1 ]", "1 reshape { }")}',
    "unfilled_batches": f'backend: "python"\nmax_batch_size: ${{x}}{IO}dynamic_batching {{ preferred_batch_size: 4 }}',
    "steps_inputs": 'platform: "ensemble"' + IO.replace("input", "inputs") + step("echo"),
    "steps_outputs": 'platform: "ensemble"' + IO.replace("output", "outputs") + step("echo"),
    "steps_field": 'platform: "ensemble"' + IO + step("echo").replace("scheduling", "schedulng"),
    "steps_map": 'platform: "ensemble"' + IO + step("echo").replace('value: "INPUT0"', 'valu: "INPUT0"'),
    "steps_none": f'platform: "ensemble"{IO}ensemble_scheduling {{ }}',
    "platform": f'platform: "nosuch"{IO}',
    "backend": f'backend: "nosuch"{IO}',
    "onnx_inputs": 'backend: "onnxruntime"' + ONNX_IO.replace("input", "inputs"),
    "onnx_unfilled": f'backend: "onnxruntime"\nmax_batch_size: ${{x}}{ONNX_IO}',
}
ODD_ONNX = {
    "onnx_openvino": accelerator("cpu", "openvino"),
    "onnx_accelerator": accelerator("cpu", "nosuch"),
    "onnx_library": 'model_operations { op_library_filename: "/nowhere/x.so" }',
    "onnx_number": parameter("intra_op_thread_count", "many"),
    "onnx_gpu": "instance_group { kind: KIND_GPU }",
    "onnx_for_gpus": accelerator("gpu", "tensorrt"),
    "onnx_unknown": parameter("intra_op_thread_cnt", "1"),
    "onnx_of_gpus": parameter("gpu_mem_limit", "1"),
    "onnx_shares": parameter("share_session_between_instances", "true"),
    "onnx_arena": parameter("memory.enable_memory_arena_shrinkage", "gpu:0"),
    "onnx_cuda": "optimization { cuda { graphs: true } }",
    "onnx_server": parameter("THREADS_PER_INSTANCE", "1"),
}


def write_odd(repository: Path) -> None:
    write_model(repository, "echo")
    for name, more in ODD.items():
        write_model(repository, name, config=f'backend: "python"{IO}{more}\n')
    content = identity("FP32", ["n"]).SerializeToString()
    for name, more in ODD_ONNX.items():
        write_onnx(repository, name, content, f'backend: "onnxruntime"{ONNX_IO}instance_group {{ count: 1 }}\n{more}\n')
    for name, config in MISREAD.items():
        if name.startswith("onnx"):
            write_onnx(repository, name, content, config)
        else:
            write_model(repository, name, config=config)


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
# A load has the parser's words, check those of a person.
OTHER_WORDS |= {name for name in MISREAD if name.startswith(("field", "steps_", "onnx_inputs"))} - {"steps_none"}


class Outcome(NamedTuple):
    """What check says is wrong with each model, and its warnings; why models are not served, and the log."""

    wrong: dict[str, list[str]]
    remarks: dict[str, list[str]]
    reasons: dict[str, str]
    log: str


@pytest.fixture(scope="module", params=[write_everything, write_odd])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    repository = tmp_path_factory.mktemp("models")
    request.param(repository)
    wrong: dict[str, list[str]] = {path.name: [] for path in repository.iterdir()}
    remarks: dict[str, list[str]] = {path.name: [] for path in repository.iterdir()}
    for problem in check_repositories([repository], NOWHERE).problems:
        (remarks if problem.is_warning else wrong)[problem.model].append(problem.text)
    with Serving(repository, "--exit-on-error=false", "--strict-readiness=false") as server:
        rows = server.request("POST", "/v2/repository/index").json()
    states = {row["name"]: row["state"] for row in rows}
    assert set(states.values()) == {"READY", "UNAVAILABLE"}
    reasons = {row["name"]: row["reason"] for row in rows if row["state"] == "UNAVAILABLE"}
    return Outcome(wrong, remarks, reasons, server.output)


def test_they_agree_on_what_is_served(outcome: Outcome) -> None:
    served = {name for name, texts in outcome.wrong.items() if not texts}
    assert served - (FOLLOWS & outcome.wrong.keys()) == outcome.wrong.keys() - outcome.reasons.keys()


def test_they_agree_on_what_has_no_effect(outcome: Outcome) -> None:
    served = outcome.wrong.keys() - outcome.reasons.keys()
    said = {
        name: {text for text in re.findall(rf"\"model '{name}': (.*)\"$", outcome.log, re.M) if "no effect" in text}
        for name in served
    }
    assert said == {name: {text for text in outcome.remarks[name] if "no effect" in text} for name in served}


def test_one_cause_has_one_line(outcome: Outcome) -> None:
    assert {
        name for name in {*ODD, *ODD_ONNX, *MISREAD} & outcome.wrong.keys() if len(outcome.wrong[name]) > 1
    } == set()


def test_they_agree_on_the_words(outcome: Outcome) -> None:
    wrong, reasons = outcome.wrong, outcome.reasons
    different = {
        name: (reason, wrong[name])
        for name, reason in reasons.items()
        if name not in FOLLOWS | OTHER_WORDS and not any(text.rstrip() in reason for text in wrong[name])
    }
    assert different == {}

"""`check_repositories`: everything at once, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from stubserve.checking.repository import check_repositories
from tests.real_server import io_config, write_model

NOWHERE = Path("/nowhere")


def found(*repositories: Path) -> list[str]:
    """The problems as text, with the first repository's path left out."""
    report = check_repositories(repositories, NOWHERE)
    return [str(problem).replace(f"{repositories[0]}/", "") for problem in report.problems]


def test_a_good_repository(repository: Path) -> None:
    write_model(repository, "a")
    write_model(repository, "b")
    report = check_repositories([repository], NOWHERE)
    assert (report.models, report.problems, report.errors) == (("a", "b"), (), 0)


def test_all_problems_of_a_model(repository: Path) -> None:
    config = """# A comment.
name: "b"
backend: "python"
max_batchsize: 8
input [
  { name: "X" data_type: TYPE_FLOAT32 dims: [ 0 ] },
  { name: "Y" data_type: TYPE_FP32 dims: [ 0 ] }
]
output [ { data_type: TYPE_FP32 label_filename: "labels.txt" } ]
instance_group [ { kind: KIND_GPU } ]
parameters { key: "OTHER" value { string_value: "x" } }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "si" } }
model_warmup { name: "x" }
"""
    write_model(
        repository,
        "a",
        """
        class TritonPythonModel:
            def initialise(self):
                pass
        """,
        config,
    )
    assert found(repository) == [
        "a/1/model.py:2: error: Python model a/1/model.py does not implement `execute` method.",
        "a/1/model.py:3: warning: the server never calls the method `initialise`; did you mean `initialize`?",
        "a/config.pbtxt:2: error: unexpected directory name 'a' for model 'b', directory name must equal model name",
        "a/config.pbtxt:4: error: ModelConfig has no field named 'max_batchsize'; did you mean 'max_batch_size'?",
        "a/config.pbtxt:6: error: DataType has no value named 'TYPE_FLOAT32'; did you mean 'TYPE_FP32'?",
        "a/config.pbtxt:7: error: model input 'Y' dimension must be integer >= 1, or -1 to indicate a variable-size "
        "dimension for b",
        "a/config.pbtxt:9: error: model output must specify 'name' for b",
        "a/config.pbtxt:9: error: model output must specify 'dims' for b",
        "a/config.pbtxt:9: error: failed to open text file for read a/labels.txt: No such file or directory",
        "a/config.pbtxt:10: error: instance group b_0 of model b has kind KIND_GPU but no GPUs are available; "
        "--gpu-fallback=cpu serves the model on the CPU",
        "a/config.pbtxt:12: error: Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: si'",
    ]


def test_initial_states(repository: Path) -> None:
    """Their files are looked at when the configuration itself is right; one that is too long is only mentioned."""

    def state(name: str, initial: str, kind: str = "INT32") -> str:
        return f"""
state {{ input_name: "{name}" output_name: "{name}2" data_type: TYPE_{kind} dims: [ 2 ]
  initial_state {{ name: "i" data_type: TYPE_{kind} dims: [ 2 ]
    {initial} }} }}"""

    states = [state("A", 'data_file: "short"'), state("B", 'data_file: "none"'), state("C", 'data_file: "long"')]
    states += [state("D", 'data_file: "strings"', "STRING"), state("E", 'data_file: "short"', "STRING")]
    folder = write_model(
        repository, "a", config=io_config("INT32", "1", extra=f"sequence_batching {{ {''.join(states)} }}")
    )
    (folder / "initial_state").mkdir()
    for name, content in {"short": b"1234567", "long": bytes(9), "strings": b"\1\0\0\0x\0\0\0\0"}.items():
        (folder / "initial_state" / name).write_bytes(content)
    assert found(repository) == [
        "a/config.pbtxt: warning: model 'a': the initial state of 'C' has 8 bytes, and its file 'long' 9: the rest is "
        "not used",
        "a/config.pbtxt:9: error: initial_state setting expects 8 bytes, but the data provided from shortonly has 7 "
        "bytes.",
        "a/config.pbtxt:12: error: failed to open text file for read a/initial_state/none: No such file or directory",
        "a/config.pbtxt:21: error: initial_state of state input 'E': short does not hold 2 strings, each behind its "
        "length in 4 bytes",
    ]
    write_model(repository, "a", config=io_config("INT32", "1", extra="sequence_batching { state { } }"))
    assert found(repository) == [
        "a/config.pbtxt:6: error: sequence batching state must specify 'input_name' for a",
        "a/config.pbtxt:6: error: sequence batching state must specify 'output_name' for a",
        "a/config.pbtxt:6: error: state input '' must specify 'data_type'",
    ]


def test_warm_up_samples(repository: Path) -> None:
    """Checked as a load checks them, one error for each sample; but not where the model may still add inputs."""
    config = """backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
model_warmup { name: "none" batch_size: 1 }
model_warmup {
  name: "file" batch_size: 1
  inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "x" } }
}
model_warmup {
  name: "good" batch_size: 1
  inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "x" } }
}
model_warmup { name: "skipped" }
"""
    (repository / "m" / "warmup").mkdir(parents=True)
    (repository / "m" / "warmup" / "x").write_bytes(bytes(12))
    write_model(repository, "m", config=config)
    grows = """
        class TritonPythonModel:
            auto_complete_config = staticmethod(lambda config: config)
            def execute(self, requests):
                pass
        """
    write_model(repository, "grows", grows, config)
    assert found(repository) == [
        "m/config.pbtxt:4: error: [request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'm'. Got "
        "input(s) [], but missing required input(s) ['X']. Please provide all required input(s).",
        "m/config.pbtxt:5: error: [request id: <id_unknown>] warmup setting expects 16 bytes, but the data provided "
        "from xonly has 12 bytes",
    ]


def test_models_for_gpus_as_they_would_be_served_on_the_cpu(repository: Path) -> None:
    groups = "instance_group [\n{ count: 1 },\n{ kind: KIND_GPU gpus: [ 0, 1 ] },\n{ kind: KIND_GPU } ]"
    write_model(repository, "m", config='backend: "python"\n' + groups)
    write_model(repository, "plain")
    assert len(found(repository)) == 3
    report = check_repositories([repository], NOWHERE, gpu_to_cpu=True)
    assert [(one.model, one.line, one.is_warning, one.text) for one in report.problems] == [
        ("m", 4, True, "instances for GPUs run on the CPU, as --gpu-fallback=cpu says")
    ]


TEMPLATES = """backend: "python"
max_batch_size: ${triton_max_batch_size}  # ${not_this_one}
model_transaction_policy { decoupled: ${decoupled_mode} }
dynamic_batching { preferred_batch_size: [ ${small}, ${large} ] nonsense: 1 }
input [ { name: "X" data_type: ${type} dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 0 ] } ]
parameters { key: "dir" value { string_value: "${engine_dir}" } }
"""


def test_templates_that_are_not_filled_in(repository: Path) -> None:
    write_model(repository, "m", config=TEMPLATES)
    report = check_repositories([repository], NOWHERE)
    say = "is a template that has not been filled in"
    do = (
        "Write a value in its place, or have a script do it: tensorrtllm_backend's is "
        "tools/fill_template.py -i config.pbtxt"
    )
    assert [(one.line, one.is_warning, one.text) for one in report.problems] == [
        (2, False, f"${{triton_max_batch_size}} {say}. {do} triton_max_batch_size:VALUE"),
        (3, False, f"${{decoupled_mode}} {say}. {do} decoupled_mode:VALUE"),
        (4, False, f"${{small}} {say}. {do} small:VALUE"),
        (4, False, f"${{large}} {say}. {do} large:VALUE"),
        (4, False, "ModelDynamicBatching has no field named 'nonsense'"),
        (5, False, f"${{type}} {say}. {do} type:VALUE"),
        (
            6,
            False,
            "model output 'Y' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (7, True, f"${{engine_dir}} {say}; the model gets it as it stands"),
    ]


@pytest.mark.parametrize("text", ["${everything}\n", 'backend: "python"\ninput [ { ${input} ] }\n'])
def test_templates_where_nothing_else_can_be_read(repository: Path, text: str) -> None:
    write_model(repository, "m", config=text)
    problems = found(repository)
    assert "is a template that has not been filled in" in problems[0]
    assert f"m/config.pbtxt:{text.count(chr(10))}: error: ${{" in problems[0]


def test_folders_and_versions(tmp_path: Path, repository: Path) -> None:
    write_model(repository, "twice")
    write_model(tmp_path / "other", "twice")
    (repository / "bad$name").mkdir()
    (repository / "empty").mkdir()
    (repository / "none" / "01").mkdir(parents=True)
    (repository / "none" / "config.pbtxt").write_text('backend: "python"')
    (repository / "gone" / "1").mkdir(parents=True)
    (repository / "gone" / "config.pbtxt").write_text('backend: "python"')
    problems = found(repository, tmp_path / "other")
    for expected in (
        "error: failed to poll model 'twice': not unique across all model repositories",
        "bad$name': Invalid stub name: contains invalid characters",
        "empty: error: Invalid model name: Could not determine backend for model 'empty'",
        "none: warning: ignore version directory 'none/01' which contains leading zeros in its directory name",
        "error: at least one version must be available under the version policy of model 'none'",
        "gone/1/model.py: error: Python model file not found in 'gone/1/model.py'",
    ):
        assert any(expected in problem for problem in problems), (expected, problems)


def test_a_folder_that_is_no_version_is_named_once(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = 'backend: "llamacpp"\ninput [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    (write_model(repository, "m", config=config) / "02").mkdir()
    assert [one for one in found(repository) if "version directory" in one] == [
        "m: warning: ignore version directory 'm/02' which contains leading zeros in its directory name"
    ]
    assert caplog.records == []


def test_a_version_that_is_not_there_beside_others(repository: Path) -> None:
    write_model(repository, "m", config=io_config(extra="version_policy { specific { versions: [ 1, 2 ] } }"))
    assert found(repository) == [
        "m: warning: version 2 is specified for model 'm', but the version directory is not present"
    ]


def test_agents(repository: Path, tmp_path: Path) -> None:
    for name in ("checksum", "own"):
        write_model(
            repository, name, config=io_config(extra=f'model_repository_agents {{ agents {{ name: "{name}" }} }}')
        )
    (tmp_path / "agents" / "own").mkdir(parents=True)
    (tmp_path / "agents" / "own" / "agent.py").touch()
    report = check_repositories([repository], NOWHERE, agent_directory=tmp_path / "agents")
    assert [(one.model, one.line, one.is_warning, one.text) for one in report.problems] == [
        ("own", 6, True, "the agent 'own' is not asked here, and may give the model other files")
    ]
    (problem,) = found(repository)
    assert problem.startswith("own/config.pbtxt:6: error: unable to find repository agent 'own', searched: ")


def test_tensors_may_be_left_to_auto_complete(repository: Path) -> None:
    config = 'backend: "python"\ninput [ { name: "A" }, { name: "B" dims: [ 0 ] } ]\n'
    source = """
        class TritonPythonModel:
            {}
            def execute(self, requests):
                pass
        """
    write_model(repository, "with", source.format("auto_complete_config = staticmethod(lambda config: config)"), config)
    write_model(repository, "without", source.format(""), config)
    dimension = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension for"
    assert found(repository) == [
        f"with/config.pbtxt:2: error: model input 'B' {dimension} with",
        "without/config.pbtxt:2: error: model input 'A' must specify 'data_type' for without",
        "without/config.pbtxt:2: error: model input 'A' must specify 'dims' for without",
        "without/config.pbtxt:2: error: model input 'B' must specify 'data_type' for without",
        f"without/config.pbtxt:2: error: model input 'B' {dimension} without",
    ]


def test_a_text_that_ends_early(repository: Path) -> None:
    write_model(repository, "m", config='backend: "python"\ninput [ { name: "x\n')
    assert found(repository) == ["m/config.pbtxt:2: error: String missing ending quote: '\"x'"]


def test_no_utf8(repository: Path) -> None:
    (write_model(repository, "m") / "config.pbtxt").write_bytes(b'name: "\xff"')
    assert found(repository) == ["m/config.pbtxt: error: cannot be read: no UTF-8 at byte 7"]


def test_steps_of_an_ensemble(repository: Path) -> None:
    (repository / "e" / "1").mkdir(parents=True)
    (repository / "e" / "config.pbtxt").write_text(
        """platform: "ensemble"
input { name: "A" data_type: TYPE_FP32 dims: 1 }
output { name: "B" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step [
    { model_name: "m" model_version: -1 input_map { key: "X" value: "A" } output_map { key: "Y" value: "t" } },
    { model_name: "nosuch" model_version: -1 input_map { key: "X" value: "t" } output_map { key: "Y" value: "B" } }
  ]
}
"""
    )
    write_model(repository, "m")
    assert found(repository) == [
        "e/config.pbtxt:7: error: step 1 uses model 'nosuch', which is in none of the repositories",
    ]


def write_ensemble(repository: Path, name: str, *models: str, datatype: str = "FP32") -> None:
    """A chain of models with INPUT0 and OUTPUT0."""
    (repository / name / "1").mkdir(parents=True)
    ends = ["INPUT0", *(f"t{number}" for number in range(1, len(models))), "OUTPUT0"]
    steps = "\n".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{ends[number]}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{ends[number + 1]}" }} }}'
        for number, model in enumerate(models)
    )
    (repository / name / "config.pbtxt").write_text(
        f"""platform: "ensemble"
input {{ name: "INPUT0" data_type: TYPE_{datatype} dims: -1 }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }}
ensemble_scheduling {{
{steps}
}}
"""
    )


def test_a_good_ensemble(repository: Path) -> None:
    write_model(repository, "m")
    write_ensemble(repository, "e", "m", "m")
    write_ensemble(repository, "of_e", "e", "m")
    assert found(repository) == []


def test_a_configuration_beside_models(repository: Path) -> None:
    folder = write_model(repository, "m")
    (repository / "config.pbtxt").write_text((folder / "config.pbtxt").read_text())
    report = check_repositories([repository], NOWHERE)
    assert report.models == ("m",)
    (problem,) = report.problems
    assert problem.is_warning
    assert problem.text.startswith(f"ignore '{repository}/config.pbtxt'")


def test_tensors_that_are_declared_twice(repository: Path) -> None:
    twice = "".join(
        f'{way}put {{ name: "{way.upper()}PUT0" data_type: TYPE_FP32 dims: -1 }}\n' for way in ("in", "out")
    )
    write_model(repository, "m", config='backend: "python"\n' + twice * 2)
    write_model(repository, "n")
    write_ensemble(repository, "e", "n")
    file = repository / "e" / "config.pbtxt"
    file.write_text(file.read_text() + twice)
    assert found(repository) == [
        f"{name}/config.pbtxt:{line}: {text}"
        for name, first in (("e", 7), ("m", 4))
        for line, text in (
            (
                first,
                "error: input 'INPUT0' is declared twice: all requests are refused, because none can have two of it",
            ),
            (first + 1, "warning: output 'OUTPUT0' is declared twice; it is answered once"),
        )
    ]


def test_an_ensemble_that_does_not_fit_its_members(repository: Path) -> None:
    write_model(repository, "m")
    write_ensemble(repository, "e", "m", datatype="INT8")
    assert found(repository) == [
        "e/config.pbtxt:5: error: in ensemble e, ensemble tensor INPUT0: inconsistent data type: TYPE_INT8 is inferred "
        "from model e while TYPE_FP32 is inferred from model m"
    ]


def test_what_a_member_may_still_complete_is_not_held_against_an_ensemble(repository: Path) -> None:
    write_model(
        repository,
        "m",
        """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                return config

            def execute(self, requests):
                return []
        """,
        io_config("INT8"),
    )
    write_ensemble(repository, "e", "m")
    assert found(repository) == []


def test_ensembles_that_need_each_other(repository: Path) -> None:
    write_ensemble(repository, "a", "b")
    write_ensemble(repository, "b", "a")
    assert found(repository) == [
        "a/config.pbtxt:4: error: circular dependency between ensembles: a -> ... -> b -> a",
        "b/config.pbtxt:4: error: circular dependency between ensembles: b -> ... -> a -> b",
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\n", ["error: does not define the class TritonPythonModel"]),
        ("def f(:\n", ["m/1/model.py:1: error: SyntaxError: "]),
        ("from base import TritonPythonModel\n", []),
        ("from base import *\n", []),
        ("from base import Base as TritonPythonModel\n", []),
        ("class Base: pass\nTritonPythonModel = Base\n", []),
        ("from base import Base\nclass TritonPythonModel(Base): pass\n", []),
        ("class TritonPythonModel:\n    execute = lambda self, requests: []\n", []),
        ("class TritonPythonModel:\n    async def execute(self, requests): pass\n", []),
        (
            "class TritonPythonModel:\n    def execute(self, requests): pass\n    def initialise(self, args): pass\n",
            ["m/1/model.py:3: warning: the server never calls the method `initialise`; did you mean `initialize`?"],
        ),
        (
            "class TritonPythonModel:\n    def execute(self, requests): pass\n    def _execute_one(self, r): pass\n",
            [],
        ),
        (
            "class TritonPythonModel(Base):\n    async def excute(self, requests): pass\n",
            ["m/1/model.py:2: warning: the server never calls the method `excute`; did you mean `execute`?"],
        ),
        ("try:\n    import x\nexcept ImportError:\n    class TritonPythonModel: pass\n", []),
    ],
)
def test_a_models_source(source: str, expected: list[str], repository: Path) -> None:
    write_model(repository, "m", source)
    problems = found(repository)
    assert len(problems) == len(expected)
    for problem, text in zip(problems, expected, strict=True):
        assert text in problem


def test_a_syntax_that_only_another_interpreter_may_know(repository: Path) -> None:
    environment = (
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }'
    )
    folder = write_model(repository, "m", "def f(:\n", io_config(extra=environment))
    (folder / "env.tar.gz").touch()
    (problem,) = found(repository)
    assert "m/1/model.py:1: warning: not Python that this interpreter understands" in problem


def test_a_time_limit_that_is_none(repository: Path) -> None:
    write_model(repository, "m", config=io_config(extra='parameters { key: "EXECUTE_TIMEOUT_SECS" value {} }'))
    (problem,) = found(repository)
    assert "parameter 'EXECUTE_TIMEOUT_SECS' of model 'm' must be a number of seconds" in problem


def test_what_is_not_offered(repository: Path) -> None:
    write_model(repository, "m", config=io_config(extra='parameters { key: "THREADS_PER_INSTANCE" value {} }'))
    (problem,) = found(repository)
    assert "parameter 'THREADS_PER_INSTANCE' of model 'm' must be a number of threads" in problem


def test_environments(repository: Path) -> None:
    def environment(value: str) -> str:
        return io_config(extra=f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{value}" }} }}')

    write_model(repository, "a", config=environment("$$TRITON_MODEL_DIRECTORY/nosuch.tar.gz"))
    folder = write_model(repository, "b", config=environment("$$TRITON_MODEL_DIRECTORY/env"))
    (folder / "env").mkdir()
    folder = write_model(repository, "c", config=environment("$$TRITON_MODEL_DIRECTORY/env"))
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "bin" / "activate").touch()
    problems = [problem for problem in found(repository) if ": error: " in problem]
    assert problems[0].startswith("a/config.pbtxt:6: error: Failed to get the canonical path for ")
    assert problems[1].startswith("b/config.pbtxt:6: error: Path b/env/bin/activate does not exist.")
    assert problems[2].startswith("c/config.pbtxt:6: error: environment 'c/env' cannot run a model: there is no Python")
    assert len(problems) == 3

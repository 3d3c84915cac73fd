from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError
from stubserve.gpus import Gpus
from stubserve.model_config.complete import InstanceSpec, instances_of, normalise, normalise_again
from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import ModelConfig

FAR_AWAY = Path("/nonexistent")


def complete(text: str, *, name: str = "foo", gpu_to_cpu: bool = False, gpus: Sequence[int] = ()) -> ModelConfig:
    """Completes a configuration that names its backend, so that no folder is looked at."""
    return normalise(parse_text(text, "c"), name, FAR_AWAY, gpu_to_cpu=gpu_to_cpu, gpus=Gpus(tuple(gpus)))


def model(tmp_path: Path, *files: str) -> Path:
    """Files end up in the model's folder; a name that ends in a slash is an empty folder."""
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "backend", "platform", "filename"),
    [
        (["1/model.py"], "python", "", "model.py"),
        (["1/model.onnx"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (["1/model.onnx/"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (["1/model.plan"], "tensorrt", "tensorrt_plan", "model.plan"),
        (["1/model.xml"], "openvino", "", "model.xml"),
        (["1/model.pt"], "pytorch", "pytorch_libtorch", ""),
        (["1/model.pt2"], "pytorch", "torch_aoti", "model.pt2"),
        (["1/model.savedmodel/"], "tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
        (["1/model.graphdef"], "tensorflow", "tensorflow_graphdef", "model.graphdef"),
        # A file where a folder belongs is another format's business, and so is a folder where a file belongs.
        (["1/model.savedmodel", "1/model.py"], "python", "", "model.py"),
        (["1/model.plan/", "1/model.onnx"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        # Upstream's order, not the alphabet's.
        (["1/model.py", "1/model.onnx"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        # The lexicographically first version counts.
        (["2/model.py", "10/model.onnx"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ([".ipynb_checkpoints/x", "1/model.py"], "python", "", "model.py"),
        (["+extra/x", "1/model.py"], "python", "", "model.py"),
        (["abc/model.py"], "python", "", "model.py"),
    ],
)
def test_backend_from_contents(files: list[str], backend: str, platform: str, filename: str, tmp_path: Path) -> None:
    config = normalise(ModelConfig(), "foo", model(tmp_path, *files))
    assert (config.backend, config.platform, config.default_model_filename) == (backend, platform, filename)


@pytest.mark.parametrize(
    ("text", "backend", "platform", "filename"),
    [
        ('platform: "tensorrt_plan"', "tensorrt", "tensorrt_plan", "model.plan"),
        ('platform: "onnxruntime_onnx"', "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        # TorchScript's file is named only where nothing but the backend is.
        ('platform: "pytorch_libtorch"', "pytorch", "pytorch_libtorch", ""),
        ('platform: "libtorch"', "pytorch", "libtorch", ""),
        ('backend: "pytorch" platform: "pytorch_libtorch"', "pytorch", "pytorch_libtorch", ""),
        ('default_model_filename: "model.pt"', "pytorch", "pytorch_libtorch", "model.pt"),
        ('platform: "torch_aoti"', "pytorch", "torch_aoti", "model.pt2"),
        ('platform: "tensorflow_graphdef"', "tensorflow", "tensorflow_graphdef", "model.graphdef"),
        ('platform: "foo"', "", "foo", ""),
        ('platform: "ensemble"', "", "ensemble", ""),
        ('default_model_filename: "model.xml"', "openvino", "", "model.xml"),
        ('default_model_filename: "model.plan"', "tensorrt", "tensorrt_plan", "model.plan"),
        ('default_model_filename: "other.py"', "", "", "other.py"),
        ('backend: "python"', "python", "", "model.py"),
        ('backend: "python" default_model_filename: "a.py"', "python", "", "a.py"),
        ('backend: "python" platform: "foo"', "python", "foo", "model.py"),
        ('backend: "onnxruntime"', "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ('backend: "onnxruntime" platform: "foo"', "onnxruntime", "foo", "model.onnx"),
        ('backend: "pytorch"', "pytorch", "pytorch_libtorch", "model.pt"),
        ('backend: "pytorch" platform: "torch_aoti"', "pytorch", "torch_aoti", "model.pt2"),
        # Which of its files that is the backend sees.
        ('backend: "pytorch" runtime: "model.py"', "pytorch", "pytorch_libtorch", ""),
        ('backend: "pytorch" runtime: "libtriton_pytorch.so"', "pytorch", "pytorch_libtorch", "model.pt"),
        ('backend: "onnxruntime" runtime: "model.py"', "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (
            'backend: "tensorflow" default_model_filename: "model.graphdef"',
            *("tensorflow", "tensorflow_graphdef", "model.graphdef"),
        ),
        ('backend: "tensorflow" default_model_filename: "a"', "tensorflow", "", "a"),
        ('backend: "foo"', "foo", "", ""),
    ],
)
def test_backend_from_config(text: str, backend: str, platform: str, filename: str, tmp_path: Path) -> None:
    config = normalise(parse_text(text, "c"), "foo", tmp_path)
    assert (config.backend, config.platform, config.default_model_filename) == (backend, platform, filename)


def test_tensorflow_looks_at_the_file(tmp_path: Path) -> None:
    config = normalise(ModelConfig(backend="tensorflow"), "foo", model(tmp_path, "1/model.savedmodel/"))
    assert config.platform == "tensorflow_savedmodel"


@pytest.mark.parametrize(("name", "backend"), [("net.identity", "identity"), ("a.b.c", "b.c")])
def test_backend_from_name(name: str, backend: str, tmp_path: Path) -> None:
    config = normalise(ModelConfig(), name, model(tmp_path, "1/weights"))
    assert (config.backend, config.default_model_filename) == (backend, f"model.{backend}")


def test_no_backend(tmp_path: Path) -> None:
    with pytest.raises(ServeError) as caught:
        normalise(ModelConfig(), "foo", tmp_path)
    assert caught.value.status_text == (
        "Invalid argument: Invalid model name: Could not determine backend for model 'foo' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((), "in 1/, which is empty."),
        (("notes",), "in 1/, only notes."),
        (("net.onnx",), "in 1/, only net.onnx. Rename net.onnx to model.onnx, or name it in config.pbtxt"),
        (
            ("a.pkl", "z"),
            "in 1/, only a.pkl, z. `stubserve init NAME --from 1/a.pkl` writes a folder for a model of this",
        ),
    ],
)
def test_the_log_says_what_is_missing(files: tuple[str, ...], told: str, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    for file in files:
        (tmp_path / "1" / file).touch()
    with pytest.raises(ServeError) as caught:
        normalise(ModelConfig(), "foo", tmp_path)
    # Clients get upstream's text.
    assert caught.value.message.endswith("of the form 'model.<backend_name>'.")
    there_is_no = " There is no model.py, model.plan, model.onnx, model.pt, model.pt2 or model.gguf "
    assert caught.value.log_message.startswith(f"{caught.value.message}{there_is_no}{told}")


def test_unreadable_folder_is_named() -> None:
    with pytest.raises(ServeError) as caught:
        normalise(ModelConfig(), "foo", FAR_AWAY)
    assert caught.value.code == Code.INTERNAL
    assert caught.value.message == "failed to open directory /nonexistent: No such file or directory"


def test_defaults() -> None:
    config = complete('backend: "python"')
    assert config == parse_text(
        """
        name: "foo" backend: "python" default_model_filename: "model.py"
        version_policy { latest { num_versions: 1 } }
        optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
        instance_group { name: "foo" count: 1 kind: KIND_CPU }
        """,
        "c",
    )


def test_what_is_set_is_kept() -> None:
    text = """
        name: "bar" backend: "python" default_model_filename: "m.py" max_batch_size: 8
        version_policy { all {} }
        dynamic_batching { preferred_batch_size: 3 }
        optimization { input_pinned_memory { enable: false } output_pinned_memory {} }
        instance_group { name: "g" count: 2 kind: KIND_MODEL }
        """
    assert complete(text) == parse_text(text, "c")


def test_an_empty_version_policy_is_a_policy() -> None:
    assert complete('backend: "python" version_policy {}').version_policy.WhichOneof("policy_choice") is None


@pytest.mark.parametrize(("max_batch_size", "preferred"), [(0, []), (6, [6])])
def test_preferred_batch_size(max_batch_size: int, preferred: list[int]) -> None:
    head = f'backend: "python" max_batch_size: {max_batch_size}'
    assert list(complete(head + " dynamic_batching {}").dynamic_batching.preferred_batch_size) == preferred
    sequence = complete(head + " sequence_batching { oldest {} }").sequence_batching
    assert list(sequence.oldest.preferred_batch_size) == preferred


def test_sequence_idle() -> None:
    assert complete('backend: "python" sequence_batching {}').sequence_batching.max_sequence_idle_microseconds == 10**6
    set_to_7 = complete('backend: "python" sequence_batching { max_sequence_idle_microseconds: 7 }')
    assert set_to_7.sequence_batching.max_sequence_idle_microseconds == 7
    assert not set_to_7.sequence_batching.HasField("oldest")


def test_ensembles_get_no_groups_and_no_pinned_memory() -> None:
    config = complete('platform: "ensemble" ensemble_scheduling {}')
    assert not config.instance_group
    assert not config.HasField("optimization")
    assert instances_of(config) == []


def cpu(name: str, *, passive: bool = False) -> InstanceSpec:
    return InstanceSpec(name, "CPU", 0, passive)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("", [cpu("foo_0")]),
        ("instance_group {}", [cpu("foo_0_0")]),
        ("instance_group { count: -3 }", [cpu("foo_0_0")]),
        (
            'instance_group [{ count: 2 }, { name: "g" kind: KIND_MODEL }, { passive: true }]',
            [cpu("foo_0_0"), cpu("foo_0_1"), InstanceSpec("g_0", "MODEL", 0, False), cpu("foo_2_0", passive=True)],
        ),
        ("instance_group { kind: KIND_CPU }", [cpu("foo_0_0")]),
        # A GPU that is not there sends an undecided group to the CPU, where validation refuses it.
        ("instance_group { gpus: [0, 7] }", [cpu("foo_0_0")]),
        ("instance_group { kind: KIND_GPU }", []),
    ],
)
def test_instances(groups: str, expected: list[InstanceSpec]) -> None:
    assert instances_of(complete(f'backend: "python" {groups}')) == expected


@pytest.mark.parametrize(
    "group",
    ["{ kind: KIND_GPU }", "{ kind: KIND_GPU gpus: [0, 7] }", "{ gpus: [0, 7] }"],
)
def test_groups_for_gpus_on_the_cpu(group: str) -> None:
    config = complete(f'backend: "python" instance_group {group}', gpu_to_cpu=True)
    assert instances_of(config) == [cpu("foo_0_0")]
    assert not config.instance_group[0].gpus


@pytest.mark.parametrize(
    ("backend", "group", "kind", "devices"),
    [
        ("python", "", "GPU", [0, 2]),
        ("custom", "", "GPU", [0, 2]),
        ("python", "instance_group { count: 1 }", "GPU", [0, 2]),
        ("python", "instance_group { kind: KIND_GPU }", "GPU", [0, 2]),
        ("python", "instance_group { gpus: [2] }", "GPU", [2]),
        ("python", "instance_group { kind: KIND_CPU }", "CPU", []),
        ("python", "instance_group { kind: KIND_MODEL }", "MODEL", []),
        # A GPU that is not there, which is refused afterwards
        ("python", "instance_group { gpus: [0, 1] }", "CPU", [0, 1]),
        ("python", "instance_group { kind: KIND_GPU gpus: [1] }", "GPU", [1]),
        # Backends that use a GPU only when they are asked to, or never
        ("onnxruntime", "", "CPU", []),
        ("onnxruntime", "instance_group { kind: KIND_GPU }", "GPU", [0, 2]),
        ("onnxruntime", "instance_group { gpus: [2] }", "GPU", [2]),
        ("identity", "", "CPU", []),
        ("identity", "instance_group { kind: KIND_GPU }", "GPU", []),
    ],
)
def test_groups_on_a_machine_with_gpus(backend: str, group: str, kind: str, devices: list[int]) -> None:
    (found,) = complete(f'backend: "{backend}" {group}', gpus=[0, 2]).instance_group
    assert (found.Kind.Name(found.kind), list(found.gpus)) == (f"KIND_{kind}", devices)


def test_the_fallback_leaves_gpus_that_are_there() -> None:
    groups = "instance_group [{ kind: KIND_GPU gpus: [2] }, { kind: KIND_GPU gpus: [1] }, { gpus: [0, 1] }]"
    for backend, expected in (("python", ["GPU", "CPU", "CPU"]), ("identity", ["CPU", "CPU", "CPU"])):
        config = complete(f'backend: "{backend}" {groups}', gpus=[0, 2], gpu_to_cpu=True)
        assert [spec.kind for spec in instances_of(config)] == expected


def test_other_groups_stay_where_they_are() -> None:
    text = 'backend: "python" instance_group [{ kind: KIND_MODEL }, { kind: KIND_CPU gpus: 0 }]'
    assert complete(text, gpu_to_cpu=True) == complete(text)


@pytest.mark.parametrize(
    ("backend", "group", "count"),
    [
        ("onnxruntime", "", 2),
        ("onnxruntime", "instance_group {}", 2),
        ("onnxruntime", "instance_group { count: 1 }", 1),
        ("onnxruntime", "instance_group { kind: KIND_MODEL }", 1),
        ("pytorch", "", 1),
    ],
)
def test_default_count(backend: str, group: str, count: int) -> None:
    config = complete(f'backend: "{backend}" {group}')
    assert config.instance_group[0].count == count


@settings(deadline=None)
@given(
    backend=st.sampled_from(["", "python", "onnxruntime", "pytorch", "tensorflow", "foo"]),
    platform=st.sampled_from(["", "ensemble", "onnxruntime_onnx", "libtorch", "foo"]),
    filename=st.sampled_from(["", "model.py", "model.pt2", "x"]),
    scheduling=st.sampled_from(
        ["", "dynamic_batching {}", "sequence_batching { oldest {} }", "ensemble_scheduling {}"]
    ),
    max_batch_size=st.integers(-1, 3),
    groups=st.lists(st.sampled_from(["instance_group {}", "instance_group { kind: KIND_GPU }"]), max_size=2),
)
def test_idempotent_and_pure(
    backend: str,
    platform: str,
    filename: str,
    scheduling: str,
    max_batch_size: int,
    groups: list[str],
) -> None:
    text = (
        f'backend: "{backend}" platform: "{platform}" default_model_filename: "{filename}" {scheduling} '
        f"max_batch_size: {max_batch_size} {' '.join(groups)}"
    )
    given_config = parse_text(text, "c")
    folder = Path(__file__).parent  # holds one subfolder without models
    once = normalise(given_config, "x.y", folder)
    assert given_config == parse_text(text, "c")
    assert normalise(once, "x.y", folder) == once
    assert normalise_again(once) == once

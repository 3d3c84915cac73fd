"""Which file the stubs of a model run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stubserve.errors import ServeError
from stubserve.instances.launcher import Program
from stubserve.loading.program import find_program
from stubserve.model_config.complete import normalise
from stubserve.model_config.parse import parse_text


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "m"
    (path / "1").mkdir(parents=True)
    return path


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    path = tmp_path / "backends"
    (path / "x").mkdir(parents=True)
    (path / "x" / "model.py").touch()
    return path


def find(config: str, model_dir: Path, backends: Path) -> Program:
    return find_program(normalise(parse_text(config, "c"), "m", model_dir), model_dir, 1, backends)


def refusal(config: str, model_dir: Path, backends: Path) -> str:
    with pytest.raises(ServeError) as caught:
        find(config, model_dir, backends)
    return caught.value.status_text


@pytest.mark.parametrize(
    ("config", "file", "module"),
    [
        ('backend: "python"', "model.py", "1.model"),
        ('backend: "python" default_model_filename: "other.py"', "other.py", "1.other"),
    ],
)
def test_a_models_own_file(config: str, file: str, module: str, model_dir: Path, backends: Path) -> None:
    version_dir = model_dir / "1"
    assert find(config, model_dir, backends) == Program(version_dir / file, module, (version_dir, model_dir))


@pytest.mark.parametrize("config", ['backend: "x"', 'backend: "x" runtime: "model.py"'])
def test_a_backend_in_python(config: str, model_dir: Path, backends: Path) -> None:
    folder = backends / "x"
    expected = Program(folder / "model.py", "model", (folder,), runtime="model.py")
    # What looks like a model's own program is only a file of the model's.
    (model_dir / "1" / "model.py").touch()
    assert find(config, model_dir, backends) == expected


def test_a_backend_brings_its_environment(model_dir: Path, backends: Path) -> None:
    packed = backends / "x" / "pb_exec_env_model.py.tar.gz"
    packed.touch()
    assert find('backend: "x"', model_dir, backends).default_environment == packed


def test_a_runtime_of_another_name(model_dir: Path, backends: Path) -> None:
    (backends / "x" / "fast.py").touch()
    program = find('backend: "x" runtime: "fast.py"', model_dir, backends)
    assert (program.file, program.module, program.runtime) == (backends / "x" / "fast.py", "fast", "fast.py")


# The texts are those of Triton 2.51.


@pytest.mark.parametrize("backend", ["nosuch", "../backends/x", ".", "x/"])
def test_no_such_backend(backend: str, model_dir: Path, backends: Path) -> None:
    assert refusal(f'backend: "{backend}"', model_dir, backends) == (
        f"Invalid argument: unable to find backend library for backend '{backend}', "
        "try specifying runtime on the model configuration."
    )


@pytest.mark.parametrize("backend", ["nosuch", "python", "tensorrt"])
def test_the_backend_named_by_runtime_is_missing(backend: str, model_dir: Path, backends: Path) -> None:
    assert refusal(f'backend: "{backend}" runtime: "model.py"', model_dir, backends) == (
        "Invalid argument: unable to find Python backend based backend library 'model.py' for model 'm', "
        f"searched: '{backends}/{backend}/model.py'"
    )


@pytest.mark.parametrize("runtime", ["no.py", "weird", "libtriton_x.so", "../x/model.py"])
def test_no_such_runtime(runtime: str, model_dir: Path, backends: Path) -> None:
    assert refusal(f'backend: "x" runtime: "{runtime}"', model_dir, backends) == (
        f"Invalid argument: unable to find backend library '{runtime}' for model 'm', "
        f"searched: '{model_dir}/1' '{model_dir}' '{backends}/x' "
    )


@pytest.mark.parametrize("place", ["models/m/1", "models/m", "backends/x"])
@pytest.mark.parametrize("runtime", ["", 'runtime: "libtriton_x.so"'])
def test_a_compiled_backend_is_refused_by_name(
    place: str, runtime: str, tmp_path: Path, model_dir: Path, backends: Path
) -> None:
    library = tmp_path / place / "libtriton_x.so"
    library.touch()
    text = refusal(f'backend: "x" {runtime}', model_dir, backends)
    assert text.startswith("Unsupported: backend '")
    assert f"is a compiled library ({library})" in text


def test_checks_of_the_python_backend(model_dir: Path, backends: Path) -> None:
    assert refusal('backend: "python" default_model_filename: "m.txt"', model_dir, backends) == (
        "Internal: Model name must end with '.py'. Model name is \"m.txt\"."
    )
    parameter = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "maybe" } }'
    assert refusal(f'backend: "x" {parameter}', model_dir, backends) == (
        "Unsupported: Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'"
    )


def test_a_backend_that_is_built_in(model_dir: Path, backends: Path) -> None:
    # A Triton installation has it as a library, and its models may name that.
    (backends / "identity").mkdir()
    (backends / "identity" / "libtriton_identity.so").touch()
    for config in ('backend: "identity"', 'backend: "identity" runtime: "libtriton_identity.so"'):
        assert find(config, model_dir, backends) == Program(None, backend="identity")
    assert "'other.so'" in refusal('backend: "identity" runtime: "other.so"', model_dir, backends)
    # A library goes before model.py, as upstream, and model.py alone is what somebody has put there.
    (backends / "identity" / "model.py").touch()
    assert find('backend: "identity"', model_dir, backends) == Program(None, backend="identity")
    (backends / "identity" / "libtriton_identity.so").unlink()
    assert find('backend: "identity"', model_dir, backends).file == backends / "identity" / "model.py"


def test_modules_in_python_are_built_in_too(model_dir: Path, backends: Path) -> None:
    """For the one backend that has them; what a Triton installation has in that place goes before it."""
    config = 'backend: "pytorch" runtime: "model.py"'
    assert find(config, model_dir, backends) == Program(None, runtime="model.py", backend="pytorch")
    assert "unable to find Python backend based backend library 'model.py'" in refusal(
        'backend: "onnxruntime" runtime: "model.py"', model_dir, backends
    )
    (backends / "pytorch").mkdir()
    for name in ("libtriton_pytorch.so", "model.py"):
        (backends / "pytorch" / name).touch()
    assert find('backend: "pytorch"', model_dir, backends) == Program(None, backend="pytorch")
    assert find(config, model_dir, backends).file == backends / "pytorch" / "model.py"


def test_a_library_of_the_models_own_goes_before_what_is_built_in(model_dir: Path, backends: Path) -> None:
    (model_dir / "1" / "libtriton_identity.so").touch()
    assert "is a compiled library" in refusal('backend: "identity"', model_dir, backends)

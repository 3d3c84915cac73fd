"""The message class must be the one everybody else in the process gets, in whatever order it is imported."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_does_not_bring_in_grpc() -> None:
    code = "import sys; import stubserve.model_config.proto; print({'grpc', 'tritonclient.grpc'} & set(sys.modules))"
    assert run(code) == "set()"


OURS = "from stubserve.model_config.proto import ModelConfig"
REAL = "import tritonclient.grpc; from tritonclient.grpc import service_pb2"
SAME = (
    "response = service_pb2.ModelConfigResponse(config=ModelConfig(name='m'))\n"
    "print(tritonclient.grpc.model_config_pb2.ModelConfig is ModelConfig, type(response.config) is ModelConfig)"
)


@pytest.mark.parametrize("first", [OURS, REAL])
def test_same_class_as_the_real_package(first: str) -> None:
    second = REAL if first == OURS else OURS
    assert run(f"{first}\n{second}\n{SAME}") == "True True"


def test_missing_package_is_named() -> None:
    code = (
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'tritonclient.grpc' else find(name, package)\n"
        "try:\n    import stubserve.model_config.proto\nexcept ImportError as error:\n    print(error)"
    )
    assert "tritonclient[grpc] is not installed" in run(code)

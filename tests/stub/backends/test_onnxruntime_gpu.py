"""The providers of sessions on a GPU; `tests/server/test_onnxruntime_gpu.py` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from stubserve_stub.backends.onnxruntime.session import OnnxOptions, options_of
from stubserve_stub.runtime.failure import Refusal

from stubserve.model_config.parse import parse_text
from stubserve.model_config.render import to_json_dict
from tests.onnx_models import identity, save
from tests.stub.backends.loaded import Instance
from tests.stub.runtime.stub_memory import StubMemory, stub_memory

onnxruntime = pytest.importorskip("onnxruntime")

CPU, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))


def accelerators(*each: str) -> str:
    return f"optimization {{ execution_accelerators {{ gpu_execution_accelerator [ {', '.join(each)} ] }} }}"


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


def options(text: str, available: Sequence[str] = (TENSORRT, CUDA, CPU), device: int = 1) -> OnnxOptions:
    return options_of(to_json_dict(parse_text('name: "m" ' + text, "c")), {}, available, device)


def providers(text: str) -> dict[str, dict[str, str]]:
    return {name: dict(settings) for name, settings in options(text).providers}


def test_without_settings() -> None:
    assert providers("") == {CUDA: {"device_id": "1"}, CPU: {}}


def test_the_models_parameters_go_before_the_accelerators() -> None:
    cuda = (
        '{ name: "cuda" parameters { key: "gpu_mem_limit" value: "1" } '
        'parameters { key: "cudnn_conv_use_max_workspace" value: "1" } }'
    )
    text = accelerators(cuda) + "".join(
        parameter(name, value)
        for name, value in {
            "gpu_mem_limit": "2147483648",
            "cudnn_conv_algo_search": "1",
            "arena_extend_strategy": "1",
            "do_copy_in_default_stream": "false",
        }.items()
    )
    assert providers(text) == {
        CUDA: {
            "gpu_mem_limit": "2147483648",
            "cudnn_conv_use_max_workspace": "1",
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
            "do_copy_in_default_stream": "0",
            "device_id": "1",
        },
        CPU: {},
    }
    assert options(text).remarks == ()


def test_tensorrt_goes_before_cuda() -> None:
    given = {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1073741824",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/cache",
        "trt_cuda_graph_enable": "false",
    }
    text = " ".join(f'parameters {{ key: "{name}" value: "{value}" }}' for name, value in given.items())
    found = options(accelerators(f'{{ name: "tensorrt" {text} }}')).providers
    assert [name for name, _ in found] == [TENSORRT, CUDA, CPU]
    assert dict(found[0][1]) == {
        "trt_fp16_enable": "True",
        "trt_max_workspace_size": "1073741824",
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "/cache",
        "trt_cuda_graph_enable": "False",
        "device_id": "1",
    }


def test_arenas_of_the_gpu_shrink() -> None:
    made = options(parameter("memory.enable_memory_arena_shrinkage", "cpu:0;gpu:1"))
    assert (made.shrinkage, made.remarks) == ("cpu:0;gpu:1", ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (accelerators('{ name: "fast" }'), "unknown Execution Accelerator 'fast' is requested"),
        (parameter("cudnn_conv_algo_search", "3"), "unsupported cudnn_conv_algo_search value '3' is requested"),
        (parameter("arena_extend_strategy", "2"), "unsupported arena_extend_strategy value '2' is requested"),
        (parameter("gpu_mem_limit", "much"), "'gpu_mem_limit' of model 'm' must be an integer from 0 on, got 'much'"),
        (
            accelerators('{ name: "tensorrt" parameters { key: "precision_mode" value: "FP8" } }'),
            "unsupported precision mode 'FP8' is requested",
        ),
        (
            accelerators('{ name: "tensorrt" parameters { key: "speed" value: "9" } }'),
            "unknown parameter 'speed' is provided for TensorRT Execution Accelerator",
        ),
        (
            accelerators('{ name: "tensorrt" parameters { key: "trt_dla_enable" value: "2" } }'),
            "parameter 'trt_dla_enable' of model 'm' must be 0 or 1, got '2'",
        ),
    ],
)
def test_values_that_mean_nothing(text: str, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        options(text)
    assert reason in str(caught.value)


def test_a_package_without_a_provider() -> None:
    with pytest.raises(Refusal, match="has no CUDAExecutionProvider, only CPUExecutionProvider: pip install 'onnx"):
        options("", [CPU])
    with pytest.raises(Refusal, match="has no TensorrtExecutionProvider, only CUDA"):
        options(accelerators('{ name: "tensorrt" }'), [CUDA, CPU])


@pytest.fixture
def stub() -> Iterator[StubMemory]:
    with stub_memory(8 << 20) as memory:
        yield memory


def load(tmp_path: Path, stub: StubMemory) -> Instance:
    save(identity(), tmp_path / "m" / "1")
    return Instance(tmp_path / "m", "", stub)


def test_the_package_for_cpus(stub: StubMemory, tmp_path: Path) -> None:
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(Refusal, match=r"model 'm' is to run on a GPU, and the onnxruntime of .* has no CUDAExecution"):
        load(tmp_path, stub).start("GPU")

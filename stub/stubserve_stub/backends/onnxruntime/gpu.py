"""The execution providers of a session on a GPU, made from a configuration as Triton's backend makes them.

`cuda` and `tensorrt` among the `gpu_execution_accelerator` have parameters of their own. The parameters of the model
are the older way to say the same of CUDA, and go before. The CUDA provider is always there, for what TensorRT does not
take. What a provider does with its settings, only a machine with a GPU can show.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from stubserve_stub.backends.loading import Parameters
from stubserve_stub.runtime.failure import Refusal

# A provider's name and its settings
Provider = Tuple[str, Tuple[Tuple[str, str], ...]]

CUDA_PROVIDER = "CUDAExecutionProvider"
_TENSORRT_PROVIDER = "TensorrtExecutionProvider"
PROVIDERS = (CUDA_PROVIDER, _TENSORRT_PROVIDER)
_CUDA, _TENSORRT = "cuda", "tensorrt"

# Parameters of a model that are for CUDA. Those with choices are a number of one.
_CHOICES = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
_LIMIT, _DEFAULT_STREAM = "gpu_mem_limit", "do_copy_in_default_stream"
PARAMETERS = (*_CHOICES, _LIMIT, _DEFAULT_STREAM)

# Parameters of the accelerator `tensorrt`, with the names that the provider has for them
_PRECISIONS = {"FP32": "", "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_SWITCHES = """
    int8_use_native_calibration_table trt_dla_enable trt_engine_cache_enable trt_dump_subgraphs
    trt_force_sequential_engine_build trt_context_memory_sharing_enable trt_layer_norm_fp32_fallback
    trt_timing_cache_enable trt_force_timing_cache trt_detailed_build_log trt_build_heuristics_enable
    trt_sparsity_enable trt_cuda_graph_enable trt_dump_ep_context_model
"""
_OTHERS = """
    max_workspace_size_bytes int8_calibration_table_name trt_max_partition_iterations trt_min_subgraph_size
    trt_dla_core trt_engine_cache_path trt_engine_cache_prefix trt_timing_cache_path trt_builder_optimization_level
    trt_auxiliary_streams trt_tactic_sources trt_extra_plugin_lib_paths trt_profile_min_shapes
    trt_profile_max_shapes trt_profile_opt_shapes trt_ep_context_file_path trt_ep_context_embed_mode
"""


def gpu_providers(
    config: Mapping[str, Any], reader: Parameters, available: Sequence[str], device: int
) -> Tuple[Provider, ...]:
    """The providers for an instance on the GPU with this number, the first one first. Raises Refusal."""
    model = str(config.get("name", ""))
    cuda: Dict[str, str] = {}
    providers: List[Provider] = []
    for accelerator in accelerators_in(config, "gpu_execution_accelerator"):
        name, parameters = accelerator.get("name", ""), accelerator.get("parameters", {})
        if name == _CUDA:
            cuda.update(parameters)
        elif name == _TENSORRT:
            settings = {**_tensorrt_settings(parameters, model), "device_id": str(device)}
            providers.append((_TENSORRT_PROVIDER, tuple(settings.items())))
        else:
            raise Refusal(f"unknown Execution Accelerator '{name}' is requested")
    cuda.update(_parameters_for_cuda(reader))
    providers.append((CUDA_PROVIDER, tuple({**cuda, "device_id": str(device)}.items())))
    for name, _ in providers:
        if name not in available:
            raise Refusal(_lacks(model, name, available))
    return tuple(providers)


def accelerators_in(config: Mapping[str, Any], kind: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = config.get("optimization", {}).get("execution_accelerators", {}).get(kind, ())
    return found


def require_gpu(session: Any, instance: str) -> None:
    """Raises Refusal for a session that runs on the CPU, because a library of CUDA could not be loaded."""
    if CUDA_PROVIDER not in session.get_providers():
        raise Refusal(
            f"the CUDA provider of onnxruntime does not load for model instance '{instance}', most often because it "
            "needs another version of CUDA or cuDNN: pip install 'onnxruntime-gpu[cuda,cudnn]' brings those that fit"
        )


def _parameters_for_cuda(reader: Parameters) -> Dict[str, str]:
    found = {}
    for name, choices in _CHOICES.items():
        if reader.text(name):
            number = reader.integer(name)
            if number >= len(choices):
                raise Refusal(f"unsupported {name} value '{number}' is requested")
            found[name] = choices[number]
    if reader.text(_LIMIT):
        found[_LIMIT] = str(reader.integer(_LIMIT))
    in_default = reader.boolean(_DEFAULT_STREAM)
    if in_default is not None:
        found[_DEFAULT_STREAM] = str(int(in_default))
    return found


def _tensorrt_settings(parameters: Mapping[str, str], model: str) -> Dict[str, str]:
    found = {}
    as_parameters = {name: {"string_value": value} for name, value in parameters.items()}
    given = Parameters("onnxruntime", {"name": model, "parameters": as_parameters}, {})
    for name, value in parameters.items():
        if name == "precision_mode":
            if value not in _PRECISIONS:
                raise Refusal(f"unsupported precision mode '{value}' is requested")
            if _PRECISIONS[value]:
                found[_PRECISIONS[value]] = "True"
        elif name in _SWITCHES.split():
            # The Python package knows these two words only.
            found[_RENAMED.get(name, name)] = str(bool(given.boolean(name)))
        elif name in _OTHERS.split():
            found[_RENAMED.get(name, name)] = value
        else:
            raise Refusal(f"unknown parameter '{name}' is provided for TensorRT Execution Accelerator")
    return found


def _lacks(model: str, provider: str, available: Sequence[str]) -> str:
    return (
        f"model '{model}' is to run on a GPU, and the onnxruntime of the environment {sys.prefix} has no {provider}, "
        f"only {', '.join(available)}: pip install 'onnxruntime-gpu[cuda,cudnn]' in place of onnxruntime, or "
        "`instance_group [ { kind: KIND_CPU } ]` in config.pbtxt"
    )

"""A model's configuration as options for torch: every parameter is honoured, or named in an error or the log.

The names are those of Triton's backend (its README); NUM_THREADS and NUM_INTEROP_THREADS are its names for the numbers
of threads of modules in Python. Settings for GPUs have no effect on a CPU, as in upstream, but are logged once.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from stubserve_stub.backends.loading import Parameters
from stubserve_stub.runtime.failure import Refusal

_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_INIT_LIBRARY = "MODEL_INIT_LIBRARY"
_DISABLE_CUDNN, _CLEAN_CACHE = "DISABLE_CUDNN", "ENABLE_CACHE_CLEANING"
_SHARE = "ENABLE_WEIGHT_SHARING"
_NO_FUSER = {"ENABLE_NVFUSER": "torch has no nvFuser any more"}
# Switches without effect, and why
_IDLE_ON_CPU = {**dict.fromkeys((_DISABLE_CUDNN, _CLEAN_CACHE), "it is for GPUs"), **_NO_FUSER}
_IDLE_ON_GPU = {**_NO_FUSER, _SHARE: "each instance on a GPU is a process with weights of its own"}
# Upstream's log of each switch: its parameter, its name in the log, and its default; None if a default is not logged
_SAID = (
    ("DISABLE_OPTIMIZED_EXECUTION", "Optimized execution", True),
    ("ENABLE_CACHE_CLEANING", "Cache Cleaning", False),
    ("INFERENCE_MODE", "Inference Mode", True),
    ("DISABLE_CUDNN", "cuDNN", True),
    ("ENABLE_TENSOR_FUSER", "Tensor fuser", None),
    ("ENABLE_WEIGHT_SHARING", "Weight sharing", None),
    ("ENABLE_JIT_PROFILING", "Jit profiling", None),
    ("ENABLE_JIT_EXECUTOR", "Jit executor", None),
)


class TorchOptions(NamedTuple):
    """How a model runs. None, and 0 threads, leave the choice to torch.

    `compile` are the arguments of torch.compile; None: do not compile. For the log: `remarks` about what has no effect,
    and `chosen`.
    """

    inference_mode: bool
    optimized_execution: bool
    jit_executor: Optional[bool]
    jit_profiling: Optional[bool]
    tensor_fuser: Optional[bool]
    intra_op_threads: int
    inter_op_threads: int
    cudnn: bool
    cleans_cache: bool
    shares_weights: bool
    compile: Optional[Dict[str, Any]]
    remarks: Tuple[str, ...]
    chosen: Tuple[str, ...]


def options_of(config: Mapping[str, Any], on_gpu: bool = False) -> TorchOptions:
    """The options of a configuration (the server's JSON), for an instance on a GPU or not.

    Raises Refusal for invalid values.
    """
    reader = Parameters("pytorch", config, {})
    if reader.text(_INIT_LIBRARY):
        raise Refusal(f"{reader.called(_INIT_LIBRARY)} has a compiled library, which stubserve does not load")
    idle = _IDLE_ON_GPU if on_gpu else _IDLE_ON_CPU
    remarks = [f"parameter '{name}' has no effect: {why}" for name, why in idle.items() if reader.boolean(name)]
    options = TorchOptions(
        reader.boolean("INFERENCE_MODE") is not False,
        not reader.boolean("DISABLE_OPTIMIZED_EXECUTION"),
        reader.boolean("ENABLE_JIT_EXECUTOR"),
        reader.boolean("ENABLE_JIT_PROFILING"),
        reader.boolean("ENABLE_TENSOR_FUSER"),
        reader.integer("INTRA_OP_THREAD_COUNT") or reader.integer("NUM_THREADS"),
        reader.integer("INTER_OP_THREAD_COUNT") or reader.integer("NUM_INTEROP_THREADS"),
        not (on_gpu and reader.boolean(_DISABLE_CUDNN)),
        on_gpu and bool(reader.boolean(_CLEAN_CACHE)),
        not on_gpu and bool(reader.boolean(_SHARE)),
        _compile_arguments(reader),
        (),
        tuple(f"{line} for model instance '{config.get('name', '')}'" for line in _chosen(reader)),
    )
    return options._replace(remarks=(*remarks, *reader.unknown("NUM_THREADS", "NUM_INTEROP_THREADS")))


def _chosen(reader: Parameters) -> Iterator[str]:
    for name, said, on in _SAID:
        given = reader.boolean(name)
        if given is not None:
            on = given != name.startswith("DISABLE_")
        if on is not None:
            yield f"{said} is {'enabled' if on else 'disabled'}"
    for said in ("Intra", "Inter"):
        threads = reader.integer(f"{said.upper()}_OP_THREAD_COUNT")
        if threads:
            yield f"{said} op thread count is set to {threads}"


def _compile_arguments(reader: Parameters) -> Optional[Dict[str, Any]]:
    text = reader.text(_COMPILE)
    if not text:
        return None
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise Refusal(f"{reader.called(_COMPILE)} must be a JSON object, got '{text}'")
    if "model" in arguments:
        raise Refusal("'model' is not an optional parameter for 'torch.compile'")
    return arguments


def switch(torch: Any, options: TorchOptions) -> List[str]:
    """Makes the settings that torch has once in a process, before anything runs: threads, execution of TorchScript.

    Returns lines for the log, about switches that this version of torch does not have.
    """
    if options.intra_op_threads:
        torch.set_num_threads(options.intra_op_threads)
    if options.inter_op_threads and options.inter_op_threads != torch.get_num_interop_threads():
        torch.set_num_interop_threads(options.inter_op_threads)
    remarks: List[str] = []
    if not options.cudnn:
        torch.backends.cudnn.enabled = False
    if not options.optimized_execution:
        _set(torch, "_set_graph_executor_optimize", False, "DISABLE_OPTIMIZED_EXECUTION", remarks)
    for name, function, wanted in (
        ("ENABLE_JIT_EXECUTOR", "_jit_set_profiling_executor", options.jit_executor),
        ("ENABLE_JIT_PROFILING", "_jit_set_profiling_mode", options.jit_profiling),
        ("ENABLE_TENSOR_FUSER", "_jit_set_texpr_fuser_enabled", options.tensor_fuser),
    ):
        if wanted is not None:
            _set(torch, function, wanted, name, remarks)
    return remarks


def _set(torch: Any, function: str, value: bool, parameter: str, remarks: List[str]) -> None:
    # torch has no public names for these; its own tools use the private ones.
    setter = getattr(torch._C, function, None)
    if setter is None:
        remarks.append(f"parameter '{parameter}' has no effect: torch {torch.__version__} has no such switch")
    else:
        setter(value)

"""From a model's configuration to the options of its session: every parameter is honoured, or named in an error or log.

Where upstream says what a value means, that is what it means here (the README of Triton's onnxruntime_backend). What
only a GPU could use is left aside on a CPU, as upstream does, but said once.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from stubserve_stub.backends.loading.parameters import Parameters
from stubserve_stub.runtime.failure import Refusal

_ARENA, _PATTERN = "enable_mem_arena", "enable_mem_pattern"
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"
_SHARE = "share_session_between_instances"
_FOR_GPUS = ("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream")
_GLOBAL_POOL = "enable-global-threadpool"
_INTRA, _INTER = "intra_op_thread_count", "inter_op_thread_count"
_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
_SPINNING_STOP = "session.force_spinning_stop"

# Of `optimization { graph { level } }`; any other level is all of them
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

_OPENVINO = "openvino"
_CPU_PROVIDER = "CPUExecutionProvider"
_OPENVINO_PROVIDER = "OpenVINOExecutionProvider"


class Options(NamedTuple):
    """What a session is made with. 0 threads, and None, leave it to onnxruntime.

    `entries` are of its own configuration, by name; `shrinkage` is for each run. Lines for the log are `remarks`, of
    what has no effect, and `chosen`, of what upstream says that it was told.
    """

    graph_level: str
    parallel: bool
    intra_op_threads: int
    inter_op_threads: int
    memory_arena: Optional[bool]
    memory_pattern: Optional[bool]
    entries: Tuple[Tuple[str, str], ...]
    shrinkage: str
    providers: Tuple[str, ...]
    op_libraries: Tuple[str, ...]
    remarks: Tuple[str, ...]
    chosen: Tuple[str, ...]


def options_of(config: Mapping[str, Any], settings: Mapping[str, str], available: Sequence[str]) -> Options:
    """The options of a configuration (the JSON of the server) under what the server says of the backend.

    `available` are onnxruntime's providers. Raises Refusal for values that mean nothing, and for what is not there.
    """
    reader = Parameters("onnxruntime", config, settings)
    remarks: List[str] = []
    mode = reader.integer("execution_mode")
    if mode not in (0, 1):
        raise Refusal(
            "parameter 'execution_mode' of model '{}' must be 0 (sequential) or 1 (parallel), got {}".format(
                config.get("name", ""), mode
            )
        )
    if reader.setting_is_on(_GLOBAL_POOL):
        # One pool for all sessions of a process; here a process has one session.
        intra, inter = reader.setting(_INTRA), reader.setting(_INTER)
    else:
        intra, inter = reader.integer(_INTRA), reader.integer(_INTER)
    arena = reader.boolean(_ARENA)
    shrinkage = _shrinkage(reader.text(_SHRINKAGE), arena, config, remarks)
    if reader.boolean(_SHARE):
        remarks.append(
            "parameter '{}' has no effect: each instance is a process with a session of its own".format(_SHARE)
        )
    remarks += ["parameter '{}' has no effect: it is for GPUs".format(name) for name in _FOR_GPUS if reader.text(name)]
    optimization = config.get("optimization", {})
    libraries = config.get("model_operations", {}).get("op_library_filename", [])
    return Options(
        _LEVELS.get(int(optimization.get("graph", {}).get("level", 0)), "ORT_ENABLE_ALL"),
        mode == 1,
        intra,
        inter,
        arena,
        reader.boolean(_PATTERN),
        _entries(reader),
        shrinkage,
        _providers(config, available, remarks),
        tuple(libraries),
        tuple(remarks),
        tuple(_chosen(reader, str(config.get("name", "")))),
    )


def _chosen(reader: Parameters, model: str) -> Iterator[str]:
    device_allocator = reader.text(_DEVICE_ALLOCATOR)
    if device_allocator:
        yield "Configuring '{}' to '{}' for '{}'".format(_DEVICE_ALLOCATOR, device_allocator, model)
    for name in (_ARENA, _PATTERN, _SHRINKAGE):
        if reader.text(name):
            yield "Configuring {} to {}".format(name, reader.text(name))


def _entries(reader: Parameters) -> Tuple[Tuple[str, str], ...]:
    """What is handed to the session under its own name."""
    device_allocator = reader.text(_DEVICE_ALLOCATOR)
    entries = [(_DEVICE_ALLOCATOR, device_allocator)] if device_allocator else []
    for name in _SPINNING:
        spinning = reader.boolean(name)
        if spinning is not None:
            entries.append((name, str(int(spinning))))
    # Between two runs spinning threads only keep the server and its clients from their cores; within one they stay.
    if reader.boolean(_SPINNING_STOP) is not False:
        entries.append((_SPINNING_STOP, "1"))
    return tuple(entries)


def _providers(config: Mapping[str, Any], available: Sequence[str], remarks: List[str]) -> Tuple[str, ...]:
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    providers = []
    for accelerator in accelerators.get("cpu_execution_accelerator", []):
        name = accelerator.get("name", "")
        if name != _OPENVINO:
            raise Refusal("unknown Execution Accelerator '{}' is requested".format(name))
        if _OPENVINO_PROVIDER not in available:
            raise Refusal(
                "execution accelerator 'openvino' of model '{}' needs the package onnxruntime-openvino in place of "
                "onnxruntime; what is installed has {}".format(config.get("name", ""), ", ".join(available))
            )
        providers.append(_OPENVINO_PROVIDER)
    remarks += [
        "execution accelerator '{}' has no effect: it is for instances on GPUs".format(accelerator.get("name", ""))
        for accelerator in accelerators.get("gpu_execution_accelerator", [])
    ]
    return (*providers, _CPU_PROVIDER)


def _shrinkage(value: str, arena: Optional[bool], config: Mapping[str, Any], remarks: List[str]) -> str:
    """The arenas that are to be shrunk after each run; onnxruntime would refuse each run for one that is not there."""
    entries = []
    for entry in value.split(";") if value else []:
        device, colon, number = entry.partition(":")
        if device not in ("cpu", "gpu") or not colon or not number.isdecimal():
            raise Refusal(
                "parameter '{}' of model '{}' must be a list like 'cpu:0;gpu:0', got '{}'".format(
                    _SHRINKAGE, config.get("name", ""), value
                )
            )
        if device == "gpu":
            remarks.append("'{}' in parameter '{}' has no effect: it is for GPUs".format(entry, _SHRINKAGE))
        elif arena is False:
            raise Refusal(
                "parameter '{}' of model '{}' names the arena '{}', but 'enable_mem_arena' is 0".format(
                    _SHRINKAGE, config.get("name", ""), entry
                )
            )
        else:
            entries.append(entry)
    return ";".join(entries)

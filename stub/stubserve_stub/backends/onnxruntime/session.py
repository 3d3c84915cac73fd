"""From a model's configuration and file to a session of onnxruntime, or to a sentence that says why not.

Every parameter of the configuration is honoured, or named in an error or the log. Values mean what upstream says (the
README of Triton's onnxruntime_backend). Settings for GPUs (`gpu`) have no effect on a CPU, as in upstream, but are
logged once.
"""

from __future__ import annotations

import os
import re
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from stubserve_stub.backends.loading import Parameters
from stubserve_stub.backends.onnxruntime import file as onnx_file
from stubserve_stub.backends.onnxruntime.gpu import PARAMETERS, Provider, accelerators_in, gpu_providers, require_gpu
from stubserve_stub.runtime.failure import Refusal

_ARENA, _PATTERN = "enable_mem_arena", "enable_mem_pattern"
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"
_SHARE = "share_session_between_instances"
_GLOBAL_POOL = "enable-global-threadpool"
_INTRA, _INTER = "intra_op_thread_count", "inter_op_thread_count"
_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
_SPINNING_STOP = "session.force_spinning_stop"

# Of `optimization { graph { level } }`; any other level is all of them
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

_OPENVINO = "openvino"
_CPU_PROVIDER = "CPUExecutionProvider"
_OPENVINO_PROVIDER = "OpenVINOExecutionProvider"


class OnnxOptions(NamedTuple):
    """The options of a session. 0 threads, and None, leave the choice to onnxruntime.

    `entries` are onnxruntime's own settings by name; `shrinkage` is for each run. Lines for the log are `remarks`,
    about what has no effect, and `chosen`, about what upstream logs. `device` is the number of a GPU, None for a CPU.
    """

    graph_level: str
    parallel: bool
    intra_op_threads: int
    inter_op_threads: int
    memory_arena: Optional[bool]
    memory_pattern: Optional[bool]
    entries: Tuple[Tuple[str, str], ...]
    shrinkage: str
    providers: Tuple[Provider, ...]
    device: Optional[int]
    op_libraries: Tuple[str, ...]
    remarks: Tuple[str, ...]
    chosen: Tuple[str, ...]


def options_of(
    config: Mapping[str, Any], settings: Mapping[str, str], available: Sequence[str], device: Optional[int] = None
) -> OnnxOptions:
    """The options of a configuration (the server's JSON) under the server's settings for the backend.

    `available` are onnxruntime's providers; `device` is a GPU's number, None for a CPU. Raises Refusal for invalid
    values and missing providers.
    """
    reader = Parameters("onnxruntime", config, settings)
    remarks: List[str] = []
    mode = reader.integer("execution_mode")
    if mode not in (0, 1):
        raise Refusal(f"{reader.called('execution_mode')} must be 0 (sequential) or 1 (parallel), got {mode}")
    if reader.setting_is_on(_GLOBAL_POOL):
        # One pool for all sessions of a process; here a process has one session.
        intra, inter = reader.setting(_INTRA), reader.setting(_INTER)
    else:
        intra, inter = reader.integer(_INTRA), reader.integer(_INTER)
    arena = reader.boolean(_ARENA)
    shrinkage = _shrinkage(reader, arena, remarks, device is not None)
    if reader.boolean(_SHARE):
        remarks.append(f"parameter '{_SHARE}' has no effect: each instance is a process with a session of its own")
    on_gpu: Tuple[Provider, ...] = ()
    if device is None:
        remarks += _without_gpu(config, reader)
    else:
        on_gpu = gpu_providers(config, reader, available, device)
    optimization = config.get("optimization", {})
    libraries = config.get("model_operations", {}).get("op_library_filename", [])
    options = OnnxOptions(
        _LEVELS.get(int(optimization.get("graph", {}).get("level", 0)), "ORT_ENABLE_ALL"),
        mode == 1,
        intra,
        inter,
        arena,
        reader.boolean(_PATTERN),
        _entries(reader),
        shrinkage,
        (*on_gpu, *_cpu_providers(config, available)),
        device,
        tuple(libraries),
        (),
        tuple(_chosen(reader, str(config.get("name", "")))),
    )
    return options._replace(remarks=(*remarks, *reader.unknown(_INTRA, _INTER)))


def _chosen(reader: Parameters, model: str) -> Iterator[str]:
    device_allocator = reader.text(_DEVICE_ALLOCATOR)
    if device_allocator:
        yield f"Configuring '{_DEVICE_ALLOCATOR}' to '{device_allocator}' for '{model}'"
    for name in (_ARENA, _PATTERN, _SHRINKAGE):
        if reader.text(name):
            yield f"Configuring {name} to {reader.text(name)}"


def _entries(reader: Parameters) -> Tuple[Tuple[str, str], ...]:
    """Settings that the session gets under their own names."""
    device_allocator = reader.text(_DEVICE_ALLOCATOR)
    entries = [(_DEVICE_ALLOCATOR, device_allocator)] if device_allocator else []
    for name in _SPINNING:
        spinning = reader.boolean(name)
        if spinning is not None:
            entries.append((name, str(int(spinning))))
    # Threads that spin between two runs take cores from the server and its clients. Within a run they may spin.
    if reader.boolean(_SPINNING_STOP) is not False:
        entries.append((_SPINNING_STOP, "1"))
    return tuple(entries)


def _without_gpu(config: Mapping[str, Any], reader: Parameters) -> Iterator[str]:
    """What to say of settings for GPUs on a CPU."""
    for name in PARAMETERS:
        if reader.text(name):
            yield f"parameter '{name}' has no effect: it is for GPUs"
    for accelerator in accelerators_in(config, "gpu_execution_accelerator"):
        name = accelerator.get("name", "")
        yield f"execution accelerator '{name}' has no effect: it is for instances on GPUs"


def _cpu_providers(config: Mapping[str, Any], available: Sequence[str]) -> Tuple[Provider, ...]:
    providers = []
    for accelerator in accelerators_in(config, "cpu_execution_accelerator"):
        name = accelerator.get("name", "")
        if name != _OPENVINO:
            raise Refusal(f"unknown Execution Accelerator '{name}' is requested")
        if _OPENVINO_PROVIDER not in available:
            raise Refusal(
                f"execution accelerator 'openvino' of model '{config.get('name', '')}' needs the package "
                f"onnxruntime-openvino in place of onnxruntime; what is installed has {', '.join(available)}"
            )
        providers.append(_OPENVINO_PROVIDER)
    return tuple((name, ()) for name in (*providers, _CPU_PROVIDER))


def _shrinkage(reader: Parameters, arena: Optional[bool], remarks: List[str], on_gpu: bool) -> str:
    """The arenas to shrink after each run. onnxruntime would refuse every run for an arena that does not exist."""
    value = reader.text(_SHRINKAGE)
    entries = []
    for entry in value.split(";") if value else []:
        device, colon, number = entry.partition(":")
        if device not in ("cpu", "gpu") or not colon or not number.isdecimal():
            raise Refusal(f"{reader.called(_SHRINKAGE)} must be a list like 'cpu:0;gpu:0', got '{value}'")
        if device == "gpu" and not on_gpu:
            remarks.append(f"'{entry}' in parameter '{_SHRINKAGE}' has no effect: it is for GPUs")
        elif device == "cpu" and arena is False:
            raise Refusal(f"{reader.called(_SHRINKAGE)} names the arena '{entry}', but 'enable_mem_arena' is 0")
        else:
            entries.append(entry)
    return ";".join(entries)


DEFAULT_FILE = "model.onnx"

# The form of the package's errors: a code and its name, and often a place in its source
_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : ")
_SOURCE = re.compile(r"/\S+\.(?:cc|h):\d+ (?:[^\"()]*::[^\"()]*\(.*?\) )?")

_MISSING_OPERATOR = ("is not a registered function/op", "No Op registered for", "Could not find an implementation for")
_TOO_NEW = ("is under development and support for this is limited", "Unsupported model IR version")

_FATAL = 4


def find_file(version_dir: str, filename: str) -> str:
    """The model's file; in a folder of that name it is `model.onnx`. Raises Refusal if there is none."""
    path = os.path.join(version_dir, filename or DEFAULT_FILE)
    if os.path.isdir(path):
        path = os.path.join(path, DEFAULT_FILE)
    return path


def open_session(onnxruntime: Any, path: str, instance: str, options: OnnxOptions) -> Any:
    """Raises Refusal."""
    if not os.path.isfile(path):
        raise Refusal(f"unable to find '{path}' for model instance '{instance}'")
    facts = onnx_file.read(path)
    if options.device is not None and hasattr(onnxruntime, "preload_dlls"):
        # CUDA and cuDNN that pip has installed
        onnxruntime.preload_dlls()
    try:
        session_options = _session_options(onnxruntime, options)
        providers = [(name, dict(settings)) for name, settings in options.providers]
        session = onnxruntime.InferenceSession(path, session_options, providers=providers)
    except Exception as error:
        code, text = explain(error)
        raise Refusal(
            f"unable to load '{path}' for model instance '{instance}': onnx runtime error {code}: "
            f"{text}{_advice(text, facts, onnxruntime.__version__)}"
        ) from None
    if options.device is not None:
        require_gpu(session, instance)
        # A run that fails is not made again on the CPU without a word.
        session.disable_fallback()
    return session


def explain(error: BaseException) -> Tuple[str, str]:
    """Code and text of an error of the package."""
    text = _SOURCE.sub("", str(error)).strip()
    codes = _ERROR.findall(text)
    # The innermost code is the reason; the text around it names the node of the graph.
    return codes[-1] if codes else "1", _ERROR.sub("", text) or type(error).__name__


def run_options(onnxruntime: Any, options: OnnxOptions) -> Any:
    """Options for each run, None for none: newer versions of the package take 35 µs to look at some."""
    if not options.shrinkage:
        return None
    made = onnxruntime.RunOptions()
    made.log_severity_level = _FATAL
    made.add_run_config_entry("memory.enable_memory_arena_shrinkage", options.shrinkage)
    return made


def _session_options(onnxruntime: Any, options: OnnxOptions) -> Any:
    made = onnxruntime.SessionOptions()
    # Failures are raised. Printed as well, they would only fill the log.
    made.log_severity_level = _FATAL
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, options.graph_level)
    if options.parallel:
        made.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if options.intra_op_threads:
        made.intra_op_num_threads = options.intra_op_threads
    if options.inter_op_threads:
        made.inter_op_num_threads = options.inter_op_threads
    if options.memory_arena is not None:
        made.enable_cpu_mem_arena = options.memory_arena
    if options.memory_pattern is not None:
        made.enable_mem_pattern = options.memory_pattern
    for name, value in options.entries:
        made.add_session_config_entry(name, value)
    for library in options.op_libraries:
        made.register_custom_ops_library(library)
    return made


def _advice(text: str, facts: onnx_file.OnnxFile, version: str) -> str:
    if any(sign in text for sign in _MISSING_OPERATOR):
        return (
            f". onnxruntime {version} has no such operator: if it is a custom one, `model_operations {{ "
            'op_library_filename: "..." }` in config.pbtxt names its library'
        )
    if any(sign in text for sign in _TOO_NEW):
        opsets = ", ".join(f"{domain or 'ai.onnx'} {number}" for domain, number in facts.opsets.items())
        return (
            f". The file has IR version {facts.ir_version} and the operator set {opsets}: it needs a newer "
            f"onnxruntime than {version}, or an export to an older operator set"
        )
    return ""

"""From a model's file to a session of onnxruntime, or to a sentence that says why not."""

from __future__ import annotations

import os
import re
from typing import Any, Tuple

from stubserve_stub.backends.onnxruntime import file as onnx_file
from stubserve_stub.backends.onnxruntime.options import Options
from stubserve_stub.runtime.failure import Refusal

DEFAULT_FILE = "model.onnx"

# How the package writes its errors: its code and the code's name, and often where in its source that was
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


def open_session(onnxruntime: Any, path: str, instance: str, options: Options) -> Any:
    """Raises Refusal."""
    if not os.path.isfile(path):
        raise Refusal("unable to find '{}' for model instance '{}'".format(path, instance))
    facts = onnx_file.read(path)
    try:
        session_options = _session_options(onnxruntime, options)
        return onnxruntime.InferenceSession(path, session_options, providers=list(options.providers))
    except Exception as error:
        code, text = explain(error)
        raise Refusal(
            "unable to load '{}' for model instance '{}': onnx runtime error {}: {}{}".format(
                path, instance, code, text, _advice(text, facts, onnxruntime.__version__)
            )
        ) from None


def explain(error: BaseException) -> Tuple[str, str]:
    """Code and text of an error of the package."""
    text = _SOURCE.sub("", str(error)).strip()
    codes = _ERROR.findall(text)
    # The innermost is the reason; what is around it says which node of the graph it was.
    return codes[-1] if codes else "1", _ERROR.sub("", text) or type(error).__name__


def run_options(onnxruntime: Any, options: Options) -> Any:
    """Options for each run, None for none: newer versions of the package take 35 µs to look at some."""
    if not options.shrinkage:
        return None
    made = onnxruntime.RunOptions()
    made.log_severity_level = _FATAL
    made.add_run_config_entry("memory.enable_memory_arena_shrinkage", options.shrinkage)
    return made


def _session_options(onnxruntime: Any, options: Options) -> Any:
    made = onnxruntime.SessionOptions()
    # What fails is raised; printed as well it would only fill the log.
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
            ". onnxruntime {} has no such operator: if it is a custom one, `model_operations {{ op_library_filename: "
            '"..." }}` in config.pbtxt names its library'.format(version)
        )
    if any(sign in text for sign in _TOO_NEW):
        opsets = ", ".join("{} {}".format(domain or "ai.onnx", number) for domain, number in facts.opsets.items())
        return (
            ". The file has IR version {} and the operator set {}: it needs a newer onnxruntime than {}, or an export "
            "to an older operator set".format(facts.ir_version, opsets, version)
        )
    return ""

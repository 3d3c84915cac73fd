"""The models that load: what the cases talk to."""

from __future__ import annotations

from .repository import SOURCES, Model, io

DATATYPES = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "STRING",
    "BF16",
)


def _every_type(dims: str) -> str:
    """One optional input IN_<type> and its output OUT_<type> per datatype, so that one model serves them all."""
    return "".join(
        io("input", f"IN_{kind}", kind, dims, "optional: true") + io("output", f"OUT_{kind}", kind, dims)
        for kind in DATATYPES
    )


def _echo(kind: str, dims: str, more: str = "") -> str:
    return io("input", "IN", kind, dims, more) + io("output", "OUT", kind, dims, more)


_PAIR = "".join(io(way, f"{way.upper()}{i}", "FP32", "16") for way in ("input", "output") for i in (0, 1))

_COMMAND = io("input", "COMMAND", "STRING", "1") + io("output", "RESULT", "STRING", "-1")

_RICH = (
    _echo("FP32", "4")
    + """
max_batch_size: 16
version_policy { specific { versions: [1, 3] } }
instance_group [
  { count: 2 kind: KIND_CPU },
  { name: "second" count: 1 kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 2 } ] priority: 3 } }
]
dynamic_batching {
  preferred_batch_size: [4, 8]
  max_queue_delay_microseconds: 500
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1000000 allow_timeout_override: true }
  priority_queue_policy { key: 1 value { max_queue_size: 7 } }
}
parameters { key: "threshold" value { string_value: "0.5" } }
parameters { key: "a" value { string_value: "" } }
metric_tags { key: "team" value: "x" }
optimization { priority: PRIORITY_MAX input_pinned_memory { enable: false } gather_kernel_buffer_threshold: 3 }
model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [4] zero_data: true } } }
response_cache { enable: false }
"""
)

_SEQUENCE = (
    io("input", "IN", "INT32", "1")
    + io("output", "OUT", "INT32", "1")
    + """
max_batch_size: 4
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
)

_LABELS = {"labels.txt": "zero\none\n\nthree\n"}

# What behave.py may be told to do after which its instance may never answer again: a copy of the model for each.
SILENT = (
    "none",
    "none_element",
    "sender",
    "sender_bad_flag",
    "sender_error",
    "sender_flag_only",
    "sender_none_element",
    "sender_nothing",
    "sender_raise",
    "sender_sent_then_raise",
    "sender_sent_then_return",
    "sender_then_return",
    "sender_twice",
    "sender_two_steps",
)
SENDERS = tuple(Model(f"behave_{name}", _COMMAND, "behave") for name in SILENT)

SELF_DESCRIBED = Model("self_described", None, "self_described")

MODELS = (
    Model("add_sub", _PAIR + "max_batch_size: 8\n", "add_sub"),
    Model("identity_all", _every_type("-1"), "identity"),
    Model("identity_fixed", _every_type("2, 2"), "identity"),
    Model("identity_batch", _every_type("-1") + "max_batch_size: 4\n", "identity"),
    Model("echo_fp32", _echo("FP32", "-1"), "identity"),
    Model("echo_fp32_batch", _echo("FP32", "4") + "max_batch_size: 8\n", "identity"),
    Model("echo_int64_plane", _echo("INT64", "-1, 3"), "identity"),
    Model("echo_two_unknown", _echo("FP32", "-1, -1"), "identity"),
    Model("echo_fp16", _echo("FP16", "-1"), "identity"),
    Model("echo_string", _echo("STRING", "1"), "identity"),
    Model("echo_strings", _echo("STRING", "-1"), "identity"),
    Model(
        "optional_one",
        io("input", "IN0", "FP32", "2")
        + io("input", "IN1", "FP32", "2", "optional: true")
        + io("output", "OUT0", "FP32", "2")
        + io("output", "OUT1", "FP32", "2")
        + "max_batch_size: 4\n",
        "identity",
    ),
    Model(
        "reshaped",
        _echo("FP32", "4", "reshape { shape: [2, 2] }") + io("output", "SEEN", "STRING", "1"),
        "shapes",
    ),
    Model(
        "reshaped_scalar",
        _echo("FP32", "1", "reshape { shape: [] }") + io("output", "SEEN", "STRING", "1") + "max_batch_size: 4\n",
        "shapes",
    ),
    Model(
        "reshaped_unknown",
        _echo("FP32", "-1, 4", "reshape { shape: [-1, 2, 2] }") + io("output", "SEEN", "STRING", "1"),
        "shapes",
    ),
    Model("constant", io("output", "VALUE", "INT32", "1"), "constant"),
    Model(
        "scores",
        io("input", "SCORES", "INT32", "5")
        + io("output", "F32", "FP32", "5", 'label_filename: "labels.txt"')
        + io("output", "F64", "FP64", "5")
        + io("output", "I8", "INT8", "5", 'label_filename: "labels.txt"')
        + io("output", "I64", "INT64", "5")
        + io("output", "U8", "UINT8", "5")
        + io("output", "F16", "FP16", "5")
        + io("output", "TRUTH", "BOOL", "5")
        + io("output", "WORDS", "STRING", "5"),
        "scores",
        files=_LABELS,
    ),
    Model(
        "scores_batch",
        io("input", "SCORES", "INT32", "2, 3")
        + io("output", "F32", "FP32", "2, 3", 'label_filename: "labels.txt"')
        + io("output", "I64", "INT64", "2, 3")
        + "max_batch_size: 4\n",
        "scores",
        files=_LABELS,
    ),
    Model("versions_latest", io("output", "VALUE", "INT32", "1"), "constant", versions=("1", "2", "3")),
    Model(
        "versions_all",
        io("output", "VALUE", "INT32", "1") + "version_policy { all {} }\n",
        "constant",
        versions=("1", "2", "10"),
    ),
    Model(
        "versions_two",
        io("output", "VALUE", "INT32", "1") + "version_policy { latest { num_versions: 2 } }\n",
        "constant",
        versions=("1", "2", "3"),
    ),
    Model(
        "versions_specific",
        io("output", "VALUE", "INT32", "1") + "version_policy { specific { versions: [1, 3] } }\n",
        "constant",
        versions=("1", "2", "3"),
    ),
    SELF_DESCRIBED,
    Model("behave", _COMMAND + io("output", "EXTRA", "STRING", "-1"), "behave"),
    Model("behave_async", _COMMAND, "behave_async"),
    Model("no_execute", _COMMAND, "no_execute"),
    Model(
        "inspect",
        io("input", "IN", "FP32", "-1", "optional: true")
        + io("input", "WORD", "STRING", "-1", "optional: true")
        + io("output", "SEEN", "STRING", "1")
        + io("output", "OTHER", "STRING", "1"),
        "inspect_request",
    ),
    Model("arguments", io("output", "ARGS", "STRING", "1"), "arguments"),
    Model(
        "arguments_rich",
        io("output", "ARGS", "STRING", "1")
        + io("input", "IN", "FP32", "4", "optional: true")
        + "max_batch_size: 0\ninstance_group [ { kind: KIND_CPU } ]\n"
        + 'parameters { key: "KEY" value { string_value: "value" } }\ndynamic_batching { }\n',
        "arguments",
    ),
    Model(
        "evaluate",
        io("input", "EXPRESSION", "STRING", "1") + io("output", "RESULT", "STRING", "1"),
        "evaluate",
    ),
    Model(
        "evaluate_async",
        io("input", "EXPRESSION", "STRING", "1") + io("output", "RESULT", "STRING", "1"),
        "evaluate_async",
        files={"1/evaluate.py": (SOURCES / "evaluate.py").read_text()},
    ),
    Model(
        "batcher",
        io("input", "IN", "INT32", "-1", "allow_ragged_batch: true")
        + io("output", "TOGETHER", "INT32", "1")
        + "max_batch_size: 4\n"
        + "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 3000000 }\n",
        "batch_size",
    ),
    Model(
        "batcher_shapes",
        io("input", "IN", "INT32", "-1")
        + io("output", "TOGETHER", "INT32", "1")
        + "max_batch_size: 4\n"
        + "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 400000 }\n",
        "batch_size",
    ),
    Model(
        "queue_limited",
        io("input", "DELAY", "INT32", "1")
        + io("output", "DONE", "INT32", "1")
        + "max_batch_size: 1\n"
        + "dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 300000 "
        + "allow_timeout_override: true } }\n",
        "slow",
    ),
    Model("slow", io("input", "DELAY", "INT32", "1") + io("output", "DONE", "INT32", "1"), "slow"),
    Model(
        "decoupled",
        _echo("FP32", "1") + "model_transaction_policy { decoupled: true }\n",
        "empty",
    ),
    Model("stream", _echo("INT32", "1") + "model_transaction_policy { decoupled: true }\n", "stream"),
    Model("sequence", _SEQUENCE, "identity"),
    Model("rich_config", _RICH, "identity", versions=("1", "2", "3")),
    Model("bare_config", "", "empty"),
)

# The model that calls others, and those that it calls.
CALLS = (
    "evaluate",
    "evaluate_async",
    "add_sub",
    "bare_config",
    "behave",
    "constant",
    "decoupled",
    "echo_fp32",
    "echo_strings",
    "identity_all",
    "inspect",
    "stream",
    "versions_all",
)

# The models that requests are sent to which real Triton does not survive.
FRAGILE = ("echo_fp32", "echo_two_unknown", "scores", "evaluate")

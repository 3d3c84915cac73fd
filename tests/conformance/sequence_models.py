"""Models with sequence batching: every strategy, control and type, of one model that tells what it sees."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

from .repository import Model, io

_IO = io("input", "IN", "INT32", "-1") + io("output", "SEEN", "STRING", "1")
_FOUR = "max_batch_size: 4\n"


def _control(name: str, kind: str, values: str) -> str:
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}\n'


_ALL = (
    _control("START", "START", "int32_false_true: [0, 1]")
    + _control("END", "END", "fp32_false_true: [0, 1]")
    + _control("READY", "READY", "bool_false_true: [false, true]")
    + _control("ID", "CORRID", "data_type: TYPE_UINT64")
)


def _model(
    name: str,
    strategy: str,
    controls: str = _ALL,
    more: str = _FOUR,
    idle_us: int = 10_000_000,
    program: str = "sequences",
) -> Model:
    batching = f"sequence_batching {{ {strategy}\nmax_sequence_idle_microseconds: {idle_us}\n{controls} }}\n"
    return Model(f"seq_{name}", _IO + more + batching, program)


_SORTED = _FOUR + 'parameters { key: "sorted" value { string_value: "yes" } }\n'


CONTROL_VALUES = {
    "int32": ("int32_false_true: [-7, 9]", "int32_false_true: [5, 6]", "int32_false_true: [0, -1]"),
    "fp32": ("fp32_false_true: [-0.5, 2.25]", "fp32_false_true: [1, 0]", "fp32_false_true: [3, 3]"),
    "bool": ("bool_false_true: [false, true]", "bool_false_true: [true, false]", "bool_false_true: [true, true]"),
}
ID_TYPES = ("UINT64", "INT64", "UINT32", "INT32", "STRING")

MODELS = (
    _model("direct", "direct { }"),
    _model("unset", ""),
    _model("full", "direct { max_queue_delay_microseconds: 2000000 minimum_slot_utilization: 1.0 }", more=_SORTED),
    _model("half", "direct { max_queue_delay_microseconds: 2000000 minimum_slot_utilization: 0.5 }", more=_SORTED),
    _model("delayed", "direct { max_queue_delay_microseconds: 200000 minimum_slot_utilization: 1.0 }"),
    _model("single", "direct { }", more=""),
    _model("one", "direct { }", more="max_batch_size: 1\n"),
    _model("uncontrolled", "direct { }", ""),
    _model("idle", "direct { }", more="max_batch_size: 1\n", idle_us=400_000),
    _model("oldest", "oldest { max_candidate_sequences: 4 }"),
    _model("oldest_single", "oldest { max_candidate_sequences: 4 }", more=""),
    _model("oldest_pairs", "oldest { max_candidate_sequences: 4 preferred_batch_size: [2] max_queue_delay_microseconds: 2000000 }", more=_SORTED),
    _model("oldest_full", "oldest { max_candidate_sequences: 8 max_queue_delay_microseconds: 2000000 preserve_ordering: true }", more=_SORTED),
    _model("oldest_delayed", "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 200000 }"),
    _model("oldest_one", "oldest { max_candidate_sequences: 1 }"),
    _model("oldest_unset", "oldest { }"),
    _model("oldest_idle", "oldest { max_candidate_sequences: 1 }", idle_us=400_000),
    *(
        _model(f"values_{kind}", "direct { }", _control("S", "START", start) + _control("E", "END", end) + _control("R", "READY", ready))
        for kind, (start, end, ready) in CONTROL_VALUES.items()
    ),
    *(_model(f"id_{kind.lower()}", "direct { }", _control("ID", "CORRID", f"data_type: TYPE_{kind}")) for kind in ID_TYPES),
    *(
        _model(f"only_{kind.lower()}", "direct { }", _control("C", kind, "int32_false_true: [0, 1]"))
        for kind in ("START", "END", "READY")
    ),
    _model("iterating", "direct { } iterative_sequence: true", program="iterating"),
    _model("iterating_oldest", "oldest { max_candidate_sequences: 4 } iterative_sequence: true", program="iterating"),
    _model("oldest_id_string", "oldest { max_candidate_sequences: 2 }", _control("ID", "CORRID", "data_type: TYPE_STRING")),
)  # fmt: skip

# Each case that holds requests back has a model of its own: that is so once after a load.
HELD = (
    *(_model(f"direct_{number}", "direct { }") for number in range(4)),
    *(_model(f"oldest_{number}", "oldest { max_candidate_sequences: 4 }") for number in range(3)),
    *(_model(f"pair_{number}", "direct { }", more="max_batch_size: 2\n") for number in range(3)),
    _model("two_candidates", "oldest { max_candidate_sequences: 2 }"),
    Model("seq_dynamic", _IO + _FOUR + "dynamic_batching { }\n", "sequences"),
)

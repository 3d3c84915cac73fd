"""Ensembles, the models that they are made of, and ensembles that cannot be loaded."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

from collections.abc import Mapping

from .repository import Model, io

_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
_VECTOR = io("input", "IN", "FP32", "4") + io("output", "OUT", "FP32", "4")
_NUMBER = io("input", "IN", "INT32", "1") + io("output", "OUT", "INT32", "1")
_TEXT = io("input", "COMMAND", "STRING", "1") + io("output", "OUT", "STRING", "-1")

Maps = Mapping[str, str]


def step(model: str, inputs: Maps, outputs: Maps, version: int = -1) -> str:
    """One step."""
    maps = [
        f'{kind} {{ key: "{name}" value: "{tensor}" }}'
        for kind, names in (("input_map", inputs), ("output_map", outputs))
        for name, tensor in names.items()
    ]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}\n'


def ensemble(name: str, tensors: str, *steps: str, more: str = "", **fields: object) -> Model:
    """An ensemble with these inputs and outputs."""
    text = f"{tensors}{more}ensemble_scheduling {{\n{''.join(steps)}}}\n"
    return Model(name, text, None, header='platform: "ensemble"\n', **fields)  # type: ignore[arg-type]


def one(model: str, source: str = "IN", target: str = "OUT", version: int = -1) -> str:
    """A step of a model with one input and one output."""
    return step(model, {"IN": source}, {"OUT": target}, version)


MEMBERS = (
    Model("plus_one", _VECTOR, "step"),
    Model("plus_batch", _VECTOR + "max_batch_size: 8\n", "step"),
    Model("plus_small", _VECTOR + "max_batch_size: 2\n", "step"),
    Model("plus_any", io("input", "IN", "FP32", "-1") + io("output", "OUT", "FP32", "-1"), "step"),
    Model("plus_plane", io("input", "IN", "FP32", "-1, 4") + io("output", "OUT", "FP32", "-1, 4"), "step"),
    Model("both", _VECTOR + io("output", "TWICE", "FP32", "4"), "step"),
    Model("join", io("input", "A", "FP32", "4") + io("input", "B", "FP32", "4") + io("output", "OUT", "FP32", "4"), "step"),
    Model("join_four", "".join(io("input", name, "FP32", "4") for name in "ABCD") + io("output", "OUT", "FP32", "4"), "step"),
    Model("maybe", _VECTOR + io("input", "MAYBE", "FP32", "4", "optional: true"), "step"),
    Model("shaped", io("input", "IN", "FP32", "4", "reshape { shape: [2, 2] }") + io("output", "OUT", "FP32", "4", "reshape { shape: [2, 2] }"), "step"),
    Model("versions", _VECTOR + "version_policy { all {} }\n", "step", versions=("1", "3")),
    Model("seen", io("input", "IN", "FP32", "4") + io("output", "SEEN", "STRING", "1") + io("output", "OTHER", "STRING", "1"), "inspect_request"),
    Model("behave", io("input", "COMMAND", "STRING", "1") + io("output", "RESULT", "STRING", "-1") + io("output", "EXTRA", "STRING", "-1"), "behave"),
    Model("echo_text", io("input", "IN", "STRING", "-1") + io("output", "OUT", "STRING", "-1"), "identity"),
    Model("maybe_text", io("input", "IN0", "STRING", "-1", "optional: true") + io("input", "IN1", "STRING", "-1", "optional: true") + io("output", "OUT0", "STRING", "-1") + io("output", "OUT1", "STRING", "-1"), "identity"),
    Model("stream", _NUMBER + _DECOUPLED, "stream"),
    Model("echo_number", _NUMBER, "identity"),
    Model("two_numbers", io("input", "IN0", "INT32", "1") + io("input", "IN1", "INT32", "1") + io("output", "OUT0", "INT32", "1") + io("output", "OUT1", "INT32", "1"), "identity"),
    Model("scores", io("input", "IN", "FP32", "4") + io("output", "OUT", "FP32", "4", 'label_filename: "labels.txt"'), "identity",
          files={"labels.txt": "zero\none\ntwo\nthree\n"}),
    Model("slow", io("input", "DELAY", "INT32", "1") + io("output", "DONE", "INT32", "1"), "slow"),
    Model("outputs_twice", _VECTOR + io("output", "OUT", "FP32", "4"), "step"),
    Model("inputs_twice", _VECTOR + io("input", "IN", "FP32", "4"), "step"),
    Model("evaluate", io("input", "EXPRESSION", "STRING", "1") + io("output", "RESULT", "STRING", "1"), "evaluate"),
)  # fmt: skip

_CHAIN = (one("plus_one", "IN", "middle"), one("plus_one", "middle", "OUT"))
_OUT_AND_EXTRA = (
    io("input", "COMMAND", "STRING", "1") + io("output", "OUT", "STRING", "-1") + io("output", "EXTRA", "STRING", "-1")
)
_BEHAVE = step("behave", {"COMMAND": "COMMAND"}, {"RESULT": "text", "EXTRA": "EXTRA"})
_BATCH_VECTOR = "max_batch_size: 8\n" + _VECTOR

ENSEMBLES = (
    ensemble("single", _VECTOR, one("plus_one")),
    ensemble("chain", _VECTOR, *_CHAIN),
    ensemble("chain_backwards", _VECTOR, *reversed(_CHAIN)),
    ensemble("middle_too", _VECTOR + io("output", "middle", "FP32", "4"), *_CHAIN),
    ensemble("fan", _VECTOR, *(one("plus_one", "IN", f"part{n}") for n in range(4)),
             step("join_four", {name: f"part{n}" for n, name in enumerate("ABCD")}, {"OUT": "OUT"})),
    ensemble("diamond", _VECTOR, step("both", {"IN": "IN"}, {"OUT": "a", "TWICE": "b"}), one("plus_one", "a", "c"),
             step("join", {"A": "c", "B": "b"}, {"OUT": "OUT"})),
    ensemble("same_twice", _VECTOR, step("join", {"A": "IN", "B": "IN"}, {"OUT": "OUT"})),
    ensemble("two_ends", _VECTOR + io("output", "OTHER", "FP32", "4"), one("plus_one"), step("both", {"IN": "IN"}, {"TWICE": "OTHER"})),
    ensemble("input_is_output", io("input", "IN", "FP32", "4") + io("output", "IN", "FP32", "4") + io("output", "OUT", "FP32", "4"), one("plus_one")),
    ensemble("output_twice", _VECTOR + io("output", "OUT", "FP32", "4"), *_CHAIN),
    ensemble("input_twice", _VECTOR + io("input", "IN", "FP32", "4"), one("plus_one")),
    ensemble("input_twice_in_member", _VECTOR, one("inputs_twice")),
    ensemble("batching", _BATCH_VECTOR, one("plus_batch", "IN", "m"), one("plus_batch", "m", "OUT")),
    ensemble("batch_in_plain", io("input", "IN", "FP32", "-1, 4") + io("output", "OUT", "FP32", "-1, 4"), one("plus_batch")),
    ensemble("batch_in_plain_row", _VECTOR, one("plus_batch")),
    ensemble("plain_in_batch", _BATCH_VECTOR, one("plus_plane")),
    ensemble("plain_row_in_batch", _BATCH_VECTOR, one("plus_one")),
    ensemble("mixed", _BATCH_VECTOR, one("plus_batch", "IN", "a"), one("plus_one", "a", "b"), one("plus_batch", "b", "OUT")),
    ensemble("mixed_plain", _VECTOR, one("plus_one", "IN", "a"), one("plus_batch", "a", "b"), one("plus_one", "b", "OUT")),
    ensemble("reshaped", io("input", "IN", "FP32", "2, 2", "reshape { shape: [4] }") + io("output", "OUT", "FP32", "2, 2", "reshape { shape: [4] }"), one("plus_one")),
    ensemble("reshaped_member", _VECTOR, one("shaped", "IN", "m"), one("plus_one", "m", "OUT")),
    ensemble("optional", _VECTOR + io("input", "MAYBE", "FP32", "4", "optional: true"), step("maybe", {"IN": "IN", "MAYBE": "MAYBE"}, {"OUT": "OUT"})),
    ensemble("optional_left", _VECTOR, one("maybe")),
    ensemble("optional_required", _VECTOR + io("input", "MAYBE", "FP32", "4", "optional: true"), step("join", {"A": "IN", "B": "MAYBE"}, {"OUT": "OUT"})),
    ensemble("nested", _VECTOR, one("chain", "IN", "m"), one("plus_one", "m", "OUT")),
    ensemble("versioned", _VECTOR, one("versions", version=1)),
    ensemble("newest", _VECTOR, one("versions")),
    ensemble("looks", io("input", "IN", "FP32", "4") + io("output", "OUT", "STRING", "1"), step("seen", {"IN": "IN"}, {"SEEN": "OUT"})),
    ensemble("looks_at_both", io("input", "IN", "FP32", "4") + io("output", "OUT", "STRING", "1") + io("output", "OTHER", "STRING", "1"),
             step("seen", {"IN": "IN"}, {"SEEN": "OUT", "OTHER": "OTHER"})),
    ensemble("behaves", _OUT_AND_EXTRA, _BEHAVE, one("echo_text", "text", "OUT")),
    ensemble("behaves_optional", _OUT_AND_EXTRA, _BEHAVE, step("maybe_text", {"IN0": "text"}, {"OUT0": "OUT"})),
    ensemble("behaves_last", _OUT_AND_EXTRA, step("behave", {"COMMAND": "COMMAND"}, {"RESULT": "OUT", "EXTRA": "EXTRA"})),
    ensemble("behaves_second", _TEXT, step("echo_text", {"IN": "COMMAND"}, {"OUT": "c"}), step("behave", {"COMMAND": "c"}, {"RESULT": "OUT"})),
    ensemble("behaves_nested", _OUT_AND_EXTRA, step("behaves", {"COMMAND": "COMMAND"}, {"OUT": "OUT", "EXTRA": "EXTRA"})),
    ensemble("streams", _NUMBER, one("stream")),
    ensemble("streams_first", _NUMBER, one("stream", "IN", "m"), one("echo_number", "m", "OUT")),
    ensemble("streams_last", _NUMBER, one("echo_number", "IN", "m"), one("stream", "m", "OUT")),
    ensemble("streams_twice", _NUMBER, one("stream", "IN", "m"), one("stream", "m", "OUT")),
    ensemble("streams_fork", io("input", "IN", "INT32", "1") + io("output", "OUT0", "INT32", "1") + io("output", "OUT1", "INT32", "1"),
             one("stream", "IN", "m"), one("echo_number", "m", "n"), step("two_numbers", {"IN0": "m", "IN1": "n"}, {"OUT0": "OUT0", "OUT1": "OUT1"})),
    ensemble("classes", _VECTOR, one("scores", "IN", "m"), one("plus_one", "m", "OUT")),
    ensemble("classes_last", _VECTOR, one("plus_one", "IN", "m"), one("scores", "m", "OUT")),
    ensemble("classes_nested", _VECTOR, one("classes_last")),
    ensemble("classes_own", io("input", "IN", "FP32", "4") + io("output", "OUT", "FP32", "4", 'label_filename: "own.txt"'), one("scores"),
             files={"own.txt": "a\nb\nc\nd\n"}),
    ensemble("slowly", io("input", "DELAY", "INT32", "1") + io("output", "OUT", "INT32", "1"), step("slow", {"DELAY": "DELAY"}, {"DONE": "OUT"})),
    ensemble("ensemble_versions", _VECTOR + "version_policy { all {} }\n", one("plus_one"), versions=("1", "2")),
    ensemble("with_tags", _VECTOR, one("plus_one"), more='parameters { key: "k" value { string_value: "v" } }\nmetric_tags { key: "a" value: "b" }\n'),
)  # fmt: skip

_FAILS = "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('initialize says no')\n"

BROKEN = (
    Model("member_fails", _VECTOR, code=_FAILS),
    ensemble("bad_unknown", _VECTOR, one("nosuch")),
    ensemble("bad_two_unknown", _VECTOR, one("nosuch", "IN", "m"), one("another", "m", "OUT")),
    ensemble("bad_member", _VECTOR, one("member_fails")),
    ensemble("bad_version", _VECTOR, one("versions", version=2)),
    ensemble("bad_self", _VECTOR, one("bad_self")),
    ensemble("bad_circle_a", _VECTOR, one("bad_circle_b")),
    ensemble("bad_circle_b", _VECTOR, one("bad_circle_a")),
    ensemble("bad_circle_of_three_a", _VECTOR, one("bad_circle_of_three_b")),
    ensemble("bad_circle_of_three_b", _VECTOR, one("bad_circle_of_three_c")),
    ensemble("bad_circle_of_three_c", _VECTOR, one("bad_circle_of_three_a")),
    ensemble("bad_on_bad", _VECTOR, one("bad_unknown")),
    ensemble("bad_batch", _BATCH_VECTOR, one("plus_small")),
    ensemble("bad_type", io("input", "IN", "INT32", "4") + io("output", "OUT", "FP32", "4"), one("plus_one")),
    ensemble("bad_type_between", _VECTOR, one("plus_one", "IN", "m"), step("echo_number", {"IN": "m"}, {"OUT": "OUT"})),
    ensemble("bad_shape", io("input", "IN", "FP32", "5") + io("output", "OUT", "FP32", "4"), one("plus_one")),
    ensemble("bad_shape_between", io("input", "IN", "FP32", "4") + io("output", "OUT", "FP32", "2"), one("plus_one", "IN", "m"), one("plus_any", "m", "OUT")),
    ensemble("bad_rank", io("input", "IN", "FP32", "4, 4") + io("output", "OUT", "FP32", "4"), one("plus_one")),
    ensemble("bad_no_such_input", _VECTOR, step("plus_one", {"IN": "IN", "NOSUCH": "IN"}, {"OUT": "OUT"})),
    ensemble("bad_no_such_output", _VECTOR, step("plus_one", {"IN": "IN"}, {"NOSUCH": "OUT"})),
    ensemble("bad_input_left", _VECTOR, step("join", {"A": "IN"}, {"OUT": "OUT"})),
    ensemble("bad_two_streams", io("input", "IN", "INT32", "1") + io("output", "OUT0", "INT32", "1"), one("stream", "IN", "a"), one("stream", "IN", "b"),
             step("two_numbers", {"IN0": "a", "IN1": "b"}, {"OUT0": "OUT0"})),
    ensemble("bad_stream_and_input", io("input", "IN", "INT32", "1") + io("output", "OUT0", "INT32", "1"), one("stream", "IN", "a"),
             step("two_numbers", {"IN0": "IN", "IN1": "a"}, {"OUT0": "OUT0"})),
    ensemble("bad_two_ends", io("input", "IN", "INT32", "1") + io("output", "OUT0", "INT32", "1") + io("output", "OUT1", "INT32", "1"),
             one("stream", "IN", "OUT0"), one("echo_number", "IN", "OUT1")),
    ensemble("bad_output_twice_in_member", _VECTOR, one("outputs_twice")),
    ensemble("bad_written_twice", _VECTOR, one("plus_one"), one("plus_any")),
    ensemble("bad_unused", _VECTOR, step("both", {"IN": "IN"}, {"OUT": "OUT", "TWICE": "lost"})),
    ensemble("bad_unused_input", _VECTOR + io("input", "LOST", "FP32", "4"), one("plus_one")),
    ensemble("bad_loop", _VECTOR, step("join", {"A": "IN", "B": "back"}, {"OUT": "m"}), step("both", {"IN": "m"}, {"OUT": "OUT", "TWICE": "back"})),
    ensemble("bad_no_model_name", _VECTOR, one("")),
    ensemble("bad_no_output_map", _VECTOR, step("plus_one", {"IN": "IN"}, {})),
    ensemble("bad_dynamic_batching", _BATCH_VECTOR + "optimization { priority: PRIORITY_MAX }\n", one("plus_batch")),
    ensemble("bad_warmup", _VECTOR, one("plus_one"), more='model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [4] zero_data: true } } }\n'),
    ensemble("bad_no_version", _VECTOR, one("plus_one"), versions=()),
)  # fmt: skip

MODELS = (*MEMBERS, *ENSEMBLES)

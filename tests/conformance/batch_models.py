"""Models with warm-up, and models with ragged batches."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

import struct

from .repository import Model, io
from .serving_models import DATATYPES

_SEEN = io("output", "SEEN", "STRING", "1")
_BATCHES = "max_batch_size: 4\n"
_IN = io("input", "IN", "INT32", "-1")
_DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def given(name: str = "IN", datatype: str = "INT32", dims: str = "2", data: str = "zero_data: true") -> str:
    """One input of a sample."""
    return f'inputs {{ key: "{name}" value {{ data_type: TYPE_{datatype} dims: [{dims}] {data} }} }} '


def sample(*inputs: str, name: str = "w", more: str = "batch_size: 1") -> str:
    return f'model_warmup {{ name: "{name}" {more} {"".join(inputs)} }}\n'


def _warm(name: str, config: str, **more: object) -> Model:
    return Model(f"warm_{name}", config + _SEEN, "warm_recorder", **more)  # type: ignore[arg-type]


_TYPES = tuple(
    _warm(f"{data.partition('_')[0]}_{kind.lower()}", io("input", "IN", kind, "-1") + sample(given("IN", kind, "3", data)) + parameter("values", "no"))
    for data in ("zero_data: true", "random_data: true")
    for kind in (DATATYPES if data.startswith("random") else ("BOOL", "FP16", "INT64", "STRING"))
)  # fmt: skip

_FILE = 'input_data_file: "data"'
_INTS = struct.pack("<3i", 7, -8, 9)

# Not here is what real Triton dies of (a sample that a decoupled model answers with an error) or waits for without end (a
# sample without a data type; one that is answered through a sender by a model that is not decoupled, or not at all).
WARM = (
    *_TYPES,
    _warm("zero_values", _IN + sample(given())),
    _warm("zero_false", _IN + sample(given(data="zero_data: false"))),
    _warm("file_ints", _IN + sample(given(dims="3", data=_FILE)), files={"warmup/data": _INTS}),
    _warm("file_longer", _IN + sample(given(dims="2", data=_FILE)), files={"warmup/data": _INTS}),
    _warm("file_in_folder", _IN + sample(given(dims="3", data='input_data_file: "a/b"')), files={"warmup/a/b": _INTS}),
    _warm("file_strings", io("input", "IN", "STRING", "2") + sample(given("IN", "STRING", "2", _FILE)), files={"warmup/data": b"\2\0\0\0ab\0\0\0\0"}),
    _warm("batch", _BATCHES + _IN + sample(given(), more="batch_size: 3")),
    _warm("no_batch_size", _IN + sample(given(), more="")),
    _warm("count", _IN + sample(given(), more="batch_size: 1 count: 3")),
    _warm("count_and_batch", _BATCHES + _IN + sample(given(), more="batch_size: 2 count: 2")),
    _warm("two_samples", _IN + sample(given(dims="1"), name="a") + sample(given(dims="2"), name="b")),
    _warm("same_names", _IN + sample(given(dims="1")) + sample(given(dims="2"))),
    _warm("no_name", _IN + sample(given(), name="")),
    _warm("no_elements", _IN + sample(given(dims="0"))),
    _warm("reshape", io("input", "IN", "INT32", "4", "reshape { shape: [2, 2] }") + sample(given(dims="4"))),
    _warm("reshape_batch", _BATCHES + io("input", "IN", "INT32", "1", "reshape { shape: [] }") + sample(given(dims="1"))),
    _warm("optional_missing", _IN + io("input", "MORE", "FP32", "1", "optional: true") + sample(given())),
    _warm("optional_given", _IN + io("input", "MORE", "FP32", "1", "optional: true") + sample(given(), given("MORE", "FP32", "1"))),
    _warm("added", _IN + sample(given(), given("CONTROL", "FP32", "1"))),
    _warm("added_batch", _BATCHES + _IN + sample(given(), given("CONTROL", "FP32", "1"), more="batch_size: 2")),
    _warm("no_inputs", sample()),
    _warm("batcher", _BATCHES + _IN + "dynamic_batching { max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 1 }\n" + sample(given(), more="batch_size: 2")),
    _warm("decoupled", _BATCHES + _IN + _DECOUPLED + parameter("late", "3") + sample(given(), more="batch_size: 2")),
    _warm("decoupled_silent", _IN + _DECOUPLED + parameter("late", "0") + sample(given())),
    _warm("call", _IN + parameter("fails", "call") + sample(given())),
    _warm("error", _BATCHES + _IN + parameter("fails", "error") + sample(given(), more="batch_size: 2")),
    _warm("second_error", _BATCHES + _IN + parameter("fails", "second") + sample(given(), more="batch_size: 3")),
    _warm("raise", _BATCHES + _IN + parameter("fails", "raise") + sample(given(), more="batch_size: 2")),
    _warm("batch_too_large", _BATCHES + _IN + sample(given(), more="batch_size: 6")),
    _warm("batch_of_unbatched", _IN + sample(given(), more="batch_size: 2")),
    _warm("variable", _IN + sample(given(dims="-1"))),
    _warm("wrong_type", _IN + sample(given("IN", "FP32"))),
    _warm("wrong_rank", _IN + sample(given(dims="1, 2"))),
    _warm("no_dims", _IN + sample(given(dims=""))),
    _warm("wrong_size", io("input", "IN", "INT32", "3") + sample(given())),
    _warm("missing", _IN + io("input", "MORE", "FP32", "1") + sample(given())),
    _warm("missing_batch", _BATCHES + _IN + io("input", "MORE", "FP32", "1") + sample(given())),
    _warm("no_source", _IN + sample(given(data=""))),
    _warm("second_sample", _IN + sample(given()) + sample(given(data=""), name="v")),
    _warm("file_missing", _IN + sample(given(data=_FILE))),
    _warm("file_short", _IN + sample(given(dims="4", data=_FILE)), files={"warmup/data": _INTS}),
    _warm("file_strings_cut", io("input", "IN", "STRING", "2") + sample(given("IN", "STRING", "2", _FILE)), files={"warmup/data": b"\2\0\0\0ab"}),
    _warm("file_no_name", _IN + sample(given(data='input_data_file: ""'))),
)  # fmt: skip

_DELAY = "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: %d }\n"
_RAGGED = "allow_ragged_batch: true"
_SHAPES = io("output", "SHAPES", "STRING", "1")
KINDS = (
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
)


def _ragged(name: str, inputs: str, more: str = _BATCHES + _DELAY % 3_000_000) -> Model:
    return Model(f"ragged_{name}", inputs + _SHAPES + more, "ragged_shapes")


_ONE = io("input", "A", "INT32", "-1", _RAGGED)
_OTHER = io("input", "B", "FP32", "-1")

RAGGED = (
    _ragged("one", _ONE),
    _ragged("both", _ONE + io("input", "B", "FP32", "-1, 2", _RAGGED)),
    _ragged("beside_variable", _ONE + _OTHER, _BATCHES + _DELAY % 400_000),
    _ragged("beside_fixed", _ONE + io("input", "B", "FP32", "2")),
    _ragged("beside_optional", _ONE + io("input", "B", "FP32", "-1", "optional: true " + _RAGGED), _BATCHES + _DELAY % 400_000),
    _ragged("strings", io("input", "A", "STRING", "-1", _RAGGED)),
    _ragged("reshaped", io("input", "A", "INT32", "-1, 2", "reshape { shape: [2, -1] } " + _RAGGED)),
    _ragged("fixed_dims", io("input", "A", "INT32", "2", _RAGGED)),
    _ragged("ordered", _ONE, _BATCHES + _DELAY.replace(" }", " preserve_ordering: true }") % 3_000_000),
    _ragged("unscheduled", _ONE, _BATCHES),
    _ragged("unbatched", _ONE, ""),
    *(
        _ragged(kind.lower(), _ONE + f'batch_input {{ kind: {kind} target_name: "MADE" data_type: TYPE_{kind_of_data} source_input: "A" }}\n')
        for kind, kind_of_data in zip(KINDS, ("INT32", "FP32") * 3, strict=True)
    ),
    _ragged("scatter", _ONE + 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "SHAPES" source_input: "A" }\n'),
)  # fmt: skip

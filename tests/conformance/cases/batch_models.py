"""Warm-up and ragged batches of Python models: what `execute` was given, with whom, and what is counted of it."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

from ..batch_models import KINDS, WARM
from ..request import Case, Concurrent, Exchange, case, get, infer, post, send, tensor

# What each model with warm-up is asked with afterwards, where that is not two numbers
_ASK = {
    "warm_file_strings": [tensor("IN", "BYTES", [2], ["x", "y"])],
    "warm_reshape": [tensor("IN", "INT32", [4], [1, 2, 3, 4])],
    "warm_reshape_batch": [tensor("IN", "INT32", [1, 1], [1])],
    "warm_no_inputs": [],
    **{
        name: [tensor("IN", "INT32", [1, 2], [1, 2])]
        for name in ("warm_batch", "warm_count_and_batch", "warm_added_batch", "warm_batcher")
    },
}
_STREAMING = ("warm_decoupled", "warm_decoupled_silent")
_FAILING = tuple(model.name for model in WARM[next(i for i, m in enumerate(WARM) if m.name == "warm_error") :])
_INDEX = post("/v2/repository/index")


def _seen(name: str) -> Case:
    of_a_type = name.startswith(("warm_zero_", "warm_random_")) and name not in ("warm_zero_values", "warm_zero_false")
    kind = name.rpartition("_")[2].upper().replace("STRING", "BYTES")
    steps: list[Exchange] = [_load(name), get(f"/v2/models/{name}/stats")]
    if of_a_type and kind in ("BF16", "FP16"):
        steps.append(infer(name, {"inputs": [tensor("IN", kind, [1], None, binary_data_size=2)]}, b"\0\0"))
    elif of_a_type:
        value = {"BOOL": True, "BYTES": "x"}.get(kind, 1)
        steps.append(infer(name, {"inputs": [tensor("IN", kind, [1], [value])]}))
    elif name not in _STREAMING:
        steps.append(infer(name, {"inputs": _ASK.get(name, [tensor("IN", "INT32", [2], [1, 2])])}))
    return case(f"warm_up/{name.removeprefix('warm_')}", *steps, server="warm_up")


def _failing(name: str) -> Case:
    return case(f"warm_up/{name.removeprefix('warm_')}", _load(name), _INDEX, pick=name, server="warm_up")


def _load(name: str) -> Exchange:
    return send("POST", f"/v2/repository/models/{name}/load", "", timeout=20.0)


def _with(name: str, *inputs: dict[str, object]) -> Exchange:
    return infer(f"ragged_{name}", {"inputs": list(inputs)})


def _ints(rows: int, width: int, name: str = "A") -> dict[str, object]:
    return tensor(name, "INT32", [rows, width], [1] * rows * width)


def _floats(*shape: int) -> dict[str, object]:
    count = 1
    for size in shape:
        count *= size
    return tensor("B", "FP32", list(shape), [0.5] * count)


def _together(case_: str, model: str, *requests: tuple[dict[str, object], ...], note: str = "") -> Case:
    asked = Concurrent(tuple(_with(model, *inputs) for inputs in requests))
    return case(f"ragged/{case_}", asked, stats=f"ragged_{model}", server="ragged", note=note)


_RAGGED = (
    _together("four_widths", "one", *((_ints(1, width),) for width in (1, 2, 3, 4))),
    _together("same_widths", "one", *((_ints(1, 2),) for _ in range(4))),
    _together("without_elements", "one", *((_ints(1, width),) for width in (0, 1, 0, 2))),
    _together("rows_and_widths", "one", (_ints(2, 3),), (_ints(2, 1),)),
    _together("three_and_one", "one", (_ints(3, 5),), (_ints(1, 50),)),
    _together("full_alone", "one", (_ints(4, 7),)),
    _together("too_large", "one", (_ints(5, 7),)),
    case("ragged/wrong_rank", _with("one", tensor("A", "INT32", [1, 1, 1], [1])), server="ragged"),
    case("ragged/rows_differ", _with("both", _ints(1, 2), _floats(2, 1, 2)), server="ragged"),
    case("ragged/metadata", get("/v2/models/ragged_one"), get("/v2/models/ragged_one/config"), server="ragged"),
    _together("two_ragged_inputs", "both", *((_ints(1, width), _floats(1, 5 - width, 2)) for width in (1, 2, 3, 4))),
    _together("other_shapes_equal", "beside_variable", *((_ints(1, width), _floats(1, 3)) for width in (1, 2, 3, 4))),
    _together("other_shapes_differ", "beside_variable", *((_ints(1, 2), _floats(1, width)) for width in (1, 2)),
              note="the one that is not ragged keeps them apart"),
    _together("beside_fixed", "beside_fixed", *((_ints(1, width), _floats(1, 2)) for width in (4, 3, 2, 1))),
    _together("optional_in_all", "beside_optional", *((_ints(1, width), _floats(1, width)) for width in (1, 2, 3, 4))),
    _together("optional_in_none", "beside_optional", *((_ints(1, width),) for width in (1, 2, 3, 4))),
    _together("optional_in_one", "beside_optional", (_ints(1, 1),), (_ints(1, 2), _floats(1, 1)),
              note="requests with other inputs do not share a batch"),
    _together("strings", "strings", *((tensor("A", "BYTES", [1, width], ["x" * width] * width),) for width in (1, 2, 3, 4))),
    _together("reshaped", "reshaped", *((tensor("A", "INT32", [1, width, 2], [1] * 2 * width),) for width in (1, 2, 3, 4))),
    _together("fixed_dims", "fixed_dims", *((_ints(1, 2),) for _ in range(4))),
    case("ragged/fixed_dims_differ", _with("fixed_dims", _ints(1, 3)), server="ragged"),
    _together("ordered", "ordered", *((_ints(1, width),) for width in (1, 2, 3, 4))),
    _together("unscheduled", "unscheduled", (_ints(1, 1),)),
    case("ragged/unbatched", _with("unbatched", tensor("A", "INT32", [3], [1, 2, 3])), server="ragged"),
    *(
        case(f"ragged/{kind.lower()}", Concurrent(tuple(_with(kind.lower(), _ints(1, width)) for width in (1, 2, 3, 4))),
             get(f"/v2/models/ragged_{kind.lower()}/config"), stats=f"ragged_{kind.lower()}", server="ragged")
        for kind in KINDS
    ),
    case("ragged/made_input_given", _with("batch_element_count", _ints(1, 1), _ints(1, 1, "MADE")), server="ragged"),
    _together("scatter", "scatter", *((_ints(1, width),) for width in (1, 2, 3, 4))),
    case("ragged/scatter_config", get("/v2/models/ragged_scatter/config"), get("/v2/models/ragged_scatter"), server="ragged"),
)  # fmt: skip

CASES: tuple[Case, ...] = (
    *(_failing(model.name) if model.name in _FAILING else _seen(model.name) for model in WARM),
    *_RAGGED,
)

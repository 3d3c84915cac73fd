"""The response cache: what is a hit by which way in, what is kept, and what statistics and metrics-like counts say.

COUNT tells which execution an answer came from. No two cases send the same values, but where one is to hit the other.
"""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

import struct
from itertools import count
from typing import Any

from ..messages import infer_request, stream
from ..messages import tensor as grpc_tensor
from ..request import Case, Exchange, Rpc, case, get, infer, post, tensor

_VALUES = count(1000)
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_BATCHED = ("cached_batches", "cached_ordered")


def ask(model: str, *values: float, shape: list[int] | None = None, **more: Any) -> Exchange:
    default = [1, len(values)] if model in _BATCHED else [len(values)]
    return infer(model, {"inputs": [tensor("IN", "FP32", shape or default, list(values))], **more})


def binary(model: str, *values: float, **more: Any) -> Exchange:
    data = struct.pack(f"<{len(values)}f", *values)
    shape = [1, len(values)] if model in _BATCHED else [len(values)]
    return infer(model, {"inputs": [tensor("IN", "FP32", shape, binary_data_size=len(data))], **more}, data)


def message(model: str, *values: float, **fields: Any) -> bytes:
    shape = [1, len(values)] if model in _BATCHED else [len(values)]
    return infer_request(
        model, [grpc_tensor("IN", "FP32", shape)], [struct.pack(f"<{len(values)}f", *values)], **fields
    )


def call(model: str, *values: float, **fields: Any) -> Rpc:
    return Rpc(_INFER, (message(model, *values, **fields),))


def fresh() -> float:
    """A value that no other case sends."""
    return float(next(_VALUES))


def _pairs(model: str) -> tuple[Case, ...]:
    """One request by one way, and the same by another."""
    ways = {"json": ask, "binary": binary, "grpc": call}
    found = []
    for first, one in ways.items():
        for second, other in ways.items():
            value = fresh()
            name = f"cache/{model}_{first}_then_{second}"
            found.append(case(name, one(model, value), other(model, value), server="cached", stats=model))
    return tuple(found)


def _same(name: str, model: str, *values: float, times: int = 2, **more: Any) -> Case:
    values = values or (fresh(),)
    return case(f"cache/{name}", *(ask(model, *values, **more) for _ in range(times)), server="cached", stats=model)


def _differ(name: str, first: Exchange, second: Exchange, model: str = "cached") -> Case:
    """Two requests that Triton takes for the same."""
    return case(f"cache/other_{name}", first, second, server="cached", stats=model)


_A, _B, _C, _D, _E, _F, _G, _H, _I, _J, _K, _L, _M = (fresh() for _ in range(13))
_LARGE = [fresh()] * 100_000
_TOO_LARGE = [fresh(), *[0.0] * 400_000]


CASES: tuple[Case, ...] = (
    *(pair for model in ("cached", "cached_batches", "cached_flow") for pair in _pairs(model)),
    *(_same(f"twice_{model}", model) for model in (
        "cached", "cached_batches", "cached_ordered", "uncached", "switched_off", "cached_flow", "flow_of_cached",
        "both_cached", "cached_caller", "calls_cached",
    )),
    *(_same(f"five_times_{model}", model, times=5) for model in ("cached", "cached_batches", "both_cached")),
    _same("several_values", "cached", fresh(), fresh(), fresh()),
    _same("batch_of_three", "cached_batches", fresh(), fresh(), fresh(), shape=[3, 1]),
    _same("classified", "cached", fresh(), fresh(), outputs=[{"name": "OUT", "parameters": {"classification": 2}}, {"name": "COUNT"}]),
    _same("one_output", "cached", outputs=[{"name": "COUNT"}]),
    _same("with_parameters", "cached", parameters={"mine": 1}),
    _same("large", "cached", *_LARGE, outputs=[{"name": "COUNT"}]),
    _same("too_large", "cached", *_TOO_LARGE, outputs=[{"name": "COUNT"}, {"name": "OUT", "parameters": {"classification": 1}}]),
    _same("with_priority_and_timeout", "cached", parameters={"priority": 1, "timeout": 5_000_000}),
    case("cache/other_ids", ask("cached", _A, id="one"), ask("cached", _A, id="two"), server="cached", stats="cached"),
    case("cache/other_values", ask("cached", fresh()), ask("cached", fresh()), server="cached", stats="cached"),
    case("cache/other_models", ask("cached", _B), ask("cached_caller", _B), server="cached", stats="cached_caller"),
    case("cache/versions", ask("cached", _C), infer("cached/versions/1", {"inputs": [tensor("IN", "FP32", [1], [_C])]}),
         server="cached", stats="cached"),
    case("cache/streamed", stream(message("cached", _D), message("cached", _D), one_by_one=True), server="cached",
         stats="cached"),
    case("cache/streamed_final", stream(*(message("cached", _E, id=str(index)) for index in range(3)), one_by_one=True),
         server="cached", stats="cached"),
    case("cache/member_first", ask("cached", _F), ask("flow_of_cached", _F), server="cached", stats="cached"),
    case("cache/ensemble_first", ask("flow_of_cached", _G), ask("cached", _G), server="cached", stats="cached"),
    case("cache/called_first", ask("calls_cached", _H), ask("cached", _H), server="cached", stats="cached"),
    case("cache/ensemble_of_both", *(ask("both_cached", _I) for _ in range(2)), ask("cached", _I + 1), server="cached",
         stats="cached"),
    case("cache/refused", ask("cached", 1, outputs=[{"name": "NONE"}]), infer("cached", {"inputs": []}), server="cached",
         stats="cached"),
    case("cache/config", get("/v2/models/cached/config"), server="cached"),
    case("cache/config_of_a_flow", get("/v2/models/switched_off/config"), server="cached"),
    case("cache/generate", *(post("/v2/models/cached/generate", f'{{"IN":{_J}}}') for _ in range(2)), server="cached",
         stats="cached"),
    # What Triton's key leaves out, and what it should not keep
    _differ("shapes", ask("cached_batches", _K, _K, shape=[1, 2]), ask("cached_batches", _K, _K, shape=[2, 1]), "cached_batches"),
    _differ("outputs", ask("cached", _L), ask("cached", _L, outputs=[{"name": "OUT"}])),
    _differ("parameters", ask("cached", _M), ask("cached", _M, parameters={"mine": 1})),
    case("cache/error_twice", ask("cached", -1), ask("cached", -1), server="cached", stats="cached"),
    case("cache/error_in_a_flow_twice", ask("cached_flow", -1), ask("cached_flow", -1), server="cached", stats="cached_flow"),
    case("cache/exception_twice", ask("cached", -2), ask("cached", -2), server="cached", stats="cached"),
)  # fmt: skip

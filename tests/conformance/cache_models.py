"""Models that answer from the response cache, and models that share resources."""

# ruff: noqa: E501 - a model reads best on one line

from __future__ import annotations

from .repository import Model, io

_IO = io("input", "IN", "FP32", "-1") + io("output", "OUT", "FP32", "-1") + io("output", "COUNT", "INT32", "1")
_CACHE = "response_cache { enable: true }\n"


def _ensemble(name: str, more: str, *members: str) -> Model:
    steps = []
    tensors = ["IN", *(f"T{index}" for index in range(len(members) - 1)), "OUT"]
    for index, member in enumerate(members):
        count = 'output_map { key: "COUNT" value: "COUNT" }' if index == len(members) - 1 else ""
        steps.append(
            f'step {{ model_name: "{member}" model_version: -1 input_map {{ key: "IN" value: "{tensors[index]}" }} '
            f'output_map {{ key: "OUT" value: "{tensors[index + 1]}" }} {count} }}\n'
        )
    flow = f"ensemble_scheduling {{ {''.join(steps)} }}\n"
    return Model(name, _IO + more + flow, source=None, header='platform: "ensemble"\n')


CACHED = (
    Model("cached", _IO + _CACHE, "counted"),
    Model("cached_batches", _IO + _CACHE + "max_batch_size: 8\ndynamic_batching { }\n", "counted"),
    Model(
        "cached_ordered", _IO + _CACHE + "max_batch_size: 8\ndynamic_batching { preserve_ordering: true }\n", "counted"
    ),
    Model("uncached", _IO, "counted"),
    Model("switched_off", _IO + "response_cache { enable: false }\n", "counted"),
    Model(
        "cached_caller", _IO + _CACHE + 'parameters { key: "calls" value { string_value: "uncached" } }\n', "counted"
    ),
    Model("calls_cached", _IO + 'parameters { key: "calls" value { string_value: "cached" } }\n', "counted"),
    _ensemble("cached_flow", _CACHE, "uncached"),
    _ensemble("flow_of_cached", "", "cached"),
    _ensemble("both_cached", _CACHE, "uncached", "cached"),
)


def _limits(*resources: str, priority: int = 1, more: str = "") -> str:
    said = " ".join(f"resources {{ {resource} }}" for resource in resources)
    return f"instance_group [ {{ kind: KIND_CPU count: 1 rate_limiter {{ {said} priority: {priority} }} {more} }} ]\n"


LIMITED = (
    Model("takes_four", _IO + _limits('name: "R" count: 4'), "counted"),
    Model("takes_four_too", _IO + _limits('name: "R" count: 4', priority=3), "counted"),
    Model("takes_forty", _IO + _limits('name: "R" count: 40'), "counted"),
    Model("takes_nothing", _IO, "counted"),
    Model("takes_zero", _IO + _limits('name: "Z" count: 0'), "counted"),
    Model("takes_another", _IO + _limits('name: "S" count: 1'), "counted"),
    Model("takes_two", _IO + _limits('name: "R" count: 2', 'name: "S" count: 1'), "counted"),
    Model("shares", _IO + _limits('name: "R" global: true count: 1'), "counted"),
    Model("shares_another", _IO + _limits('name: "G" global: true count: 2'), "counted"),
    Model("shares_and_has", _IO + _limits('name: "B" global: true count: 1', 'name: "B" count: 1'), "counted"),
    Model("takes_unnamed", _IO + _limits('name: "" count: 1'), "counted"),
    Model("only_priority", _IO + _limits(priority=2), "counted"),
    Model("batches_limited", _IO + "max_batch_size: 4\ndynamic_batching { }\n" + _limits('name: "R" count: 1'), "counted"),
)  # fmt: skip
NAMES = tuple(model.name for model in LIMITED)

"""Whether a configuration has the tensors that a backend for tests demands, by name; the texts are upstream's."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from stubserve_stub.runtime.failure import Refusal

_ORDINALS = ("first", "second", "third")

# Names and data types, in order
Expected = Mapping[str, str]


def check_tensors(config: Mapping[str, Any], inputs: Expected, outputs: Expected) -> Dict[str, List[int]]:
    """The dimensions of all inputs and outputs. Raises Refusal for a wrong number or order of them.

    Data types are for `check_types`, which upstream does last.
    """
    given = (("input", inputs, config["input"]), ("output", outputs, config["output"]))
    for what, expected, tensors in given:
        if len(tensors) != len(expected):
            plural = "" if len(expected) == 1 else "s"
            raise Refusal("expected {} {}{}, got {}".format(len(expected), what, plural, len(tensors)))
    dims: Dict[str, List[int]] = {}
    for what, expected, tensors in given:
        for ordinal, name, tensor in zip(_ORDINALS, expected, tensors):
            if tensor["name"] != name:
                raise Refusal("expected {} {} tensor name to be {}, got {}".format(ordinal, what, name, tensor["name"]))
            dims[name] = [int(dim) for dim in tensor["dims"]]
    return dims


def check_single(name: str, dims: Sequence[int]) -> None:
    """Raises Refusal for a tensor that may be anything but one element."""
    if list(dims) != [1]:
        raise Refusal("expected {} shape to be [1], got {}".format(name, shape_text(dims)))


def check_types(config: Mapping[str, Any], expected: Expected) -> None:
    """Raises Refusal for an input or output of another data type."""
    for tensor in (*config["input"], *config["output"]):
        name, kind = tensor["name"], expected[tensor["name"]]
        if tensor["data_type"] != "TYPE_" + kind:
            raise Refusal("expected {} datatype to be {}, got {}".format(name, kind, tensor["data_type"]))


def shape_text(shape: Sequence[int]) -> str:
    """A shape as upstream prints it."""
    return "[{}]".format(",".join(map(str, shape)))

"""Loads TorchScript."""

from __future__ import annotations

from typing import Any, List, Optional

from stubserve_stub.backends.pytorch.program import Argument, Program
from stubserve_stub.runtime.failure import Refusal

_STRINGS = "List[str]"
_TYPES = ("Tensor", "Optional[Tensor]", _STRINGS)


def load(torch: Any, path: str, device: Optional[str]) -> Program:
    """`device` is where the weights go, None for where they were saved from. Raises Refusal, and what torch raises."""
    module = torch.jit.load(path, map_location=device)
    method = getattr(module, "forward", None)
    if method is None:
        raise Refusal("'{}' has no method 'forward'".format(path))
    declared = method.schema.arguments[1:]  # behind the module itself
    takes_dict = any(argument.type.kind() == "DictType" for argument in declared)
    if takes_dict and len(declared) > 1:
        raise Refusal(
            "'{}' takes a dictionary beside other arguments ({}). Only a single input of type Dict(str, Tensor) is "
            "supported".format(path, ", ".join(argument.name for argument in declared))
        )
    return Program(
        method,
        None if takes_dict else [_argument(path, argument) for argument in declared],
        takes_dict=takes_dict,
        writes_inputs=_writes(method),
    )


def _argument(path: str, declared: Any) -> Argument:
    kind = str(declared.type)
    if kind not in _TYPES:
        raise Refusal(
            "An input of type '{}' was detected in the model. Only a single input of type Dict(str, Tensor) or "
            "input(s) of type Tensor or List[str] are supported: '{}' has it as '{}'".format(kind, path, declared.name)
        )
    optional = declared.has_default_value()
    default = declared.default_value if optional else None
    return Argument([declared.name], kind == _STRINGS, not optional, default)


def _writes(method: Any) -> bool:
    """Whether it changes its inputs or its own state, in which it may keep them."""
    try:
        graph = method.inlined_graph
        aliases = graph.alias_db()
        values: List[Any] = list(graph.inputs())
        return any(aliases.has_writers(value) for value in values)
    except Exception:  # versions of torch that cannot tell
        return True

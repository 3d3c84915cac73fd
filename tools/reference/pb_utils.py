"""The page of `triton_python_backend_utils`, out of its signatures and docstrings."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import c_python_backend_utils
import triton_python_backend_utils as pb_utils

_HEAD = """\
# triton_python_backend_utils

What a `model.py` imports as `pb_utils`. The names, arguments and errors are those of Triton's module, and [Known differences](../differences.md)
lists what is not. The module can be imported anywhere, in an editor or in a test, without a server: see [Testing a model](../guides/testing.md). It is typed.

`stack` and `unstack` are stubserve's own; real Triton has neither.

"""
_SECOND = """\
## In c_python_backend_utils

Triton has these in a second module, which a model may import as well.

"""
# What upstream's module has because it imports it, which nobody looks up here
_IMPORTED = {"json", "struct", "np"}


def pb_utils_page() -> str:
    """The page as Markdown."""
    names = [name for name in pb_utils.__all__ if name not in _IMPORTED]
    parts = [_HEAD, "## Classes\n\n"]
    parts += [_class(name, getattr(pb_utils, name)) for name in names if inspect.isclass(getattr(pb_utils, name))]
    parts.append("## Functions\n\n")
    parts += [
        _function("###", name, getattr(pb_utils, name)) for name in names if inspect.isfunction(getattr(pb_utils, name))
    ]
    parts.append("## Constants\n\n")
    for name in names:
        value = getattr(pb_utils, name)
        if not callable(value):
            parts.append(f"- `{name}`{_value(value)}\n")
    parts += ["\n", _SECOND]
    for name in c_python_backend_utils.__all__:
        value = getattr(c_python_backend_utils, name)
        if inspect.isclass(value) and name not in names:
            parts.append(_class(name, value))
    return "".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        keys = ", ".join(f"`{key}`" for key in value)
        return f": a numpy type for each of {keys}."
    return "." if isinstance(value, enum.Enum) else f" = {value}."


def _class(name: str, cls: Any) -> str:
    parts = [f"### {name}\n\n", _text(cls)]
    if issubclass(cls, enum.Enum):
        members = ", ".join(f"`{member.name}`" for member in cls)
        return "".join([*parts, f"Members: {members}.\n\n"])
    if "__init__" in vars(cls) and not issubclass(cls, BaseException):
        parts.append(f"```python\n{name}{_signature(cls.__init__, bound=True)}\n```\n\n")
    constants = [key for key, value in vars(cls).items() if not key.startswith("_") and isinstance(value, enum.Enum)]
    if constants:
        parts.append("Constants: " + ", ".join(f"`{name}.{key}`" for key in constants) + ".\n\n")
    for key, value in vars(cls).items():
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if inspect.isfunction(function) and not key.startswith("_"):
            bound = not isinstance(value, staticmethod)
            parts.append(_function("####", f"{name}.{key}", function, bound=bound))
    return "".join(parts)


def _function(level: str, name: str, function: Any, *, bound: bool = False) -> str:
    shown = f"```python\n{name}{_signature(function, bound=bound)}\n```\n\n"
    return f"{level} {name}\n\n{shown}{_text(function)}"


def _signature(function: Any, *, bound: bool) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    shown = [_parameter(parameter) for parameter in parameters]
    positional = [index for index, parameter in enumerate(parameters) if parameter.kind is parameter.POSITIONAL_ONLY]
    if positional:
        shown.insert(positional[-1] + 1, "/")
    given = f"({', '.join(shown)})"
    if len(given) > 100:
        given = "(\n" + "".join(f"    {one},\n" for one in shown) + ")"
    gives = signature.return_annotation
    return given + ("" if gives in ("None", signature.empty) else f" -> {gives}")


def _parameter(parameter: inspect.Parameter) -> str:
    annotation = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
    default = parameter.default
    if default is parameter.empty or not isinstance(default, (int, str, tuple, type(None))):
        # An object stands for "nothing was given", or for an argument that must be.
        default_text = "" if default is parameter.empty or repr(default) == "<required>" else " = ..."
    else:
        default_text = f" = {default!s}" if isinstance(default, enum.Enum) else f" = {default!r}"
    return f"{parameter.name}{annotation}{default_text}"


def _text(described: Any) -> str:
    """A docstring as Markdown: what is indented in it is an example."""
    text = (
        inspect.getdoc(described) or ""
        if "__doc__" not in vars(described)
        else inspect.cleandoc(described.__doc__ or "")
    )
    return text + "\n\n" if text else ""

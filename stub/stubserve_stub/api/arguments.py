"""Argument conventions of the public classes: what a model may pass where, and the TypeError when it may not.

Upstream's classes are bound C++, and models rely on the conversion rules of that: text may be `bytes`, an integer may
be anything with `__index__` (numpy's) but no float, and None is neither.
"""

from __future__ import annotations

import operator
from typing import Any, Dict, List, Optional, Tuple

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


class _Required:
    """The default of an argument that must be given although it follows optional ones."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = _Required()


def incompatible(function: str, signature: str, args: Tuple[Any, ...], kwargs: Optional[Dict[str, Any]] = None) -> Any:
    """The TypeError for a call with arguments of the wrong types, in upstream's form; `args` is without self."""
    kind = "constructor" if function == "__init__" else "function"
    invoked = ", ".join(repr(value) for value in args)
    if kwargs:
        named = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
        invoked = f"{invoked}; kwargs: {named}" if args else f"kwargs: {named}"
    return TypeError(
        f"{function}(): incompatible {kind} arguments. The following argument types are supported:\n    1. "
        f"{signature}\n\nInvoked with: {invoked}"
    )


def as_text(value: Any) -> Optional[str]:
    """`value` as text if it is str, bytes or a bytearray, else None. Raises UnicodeDecodeError."""
    if isinstance(value, str):
        if type(value) is str and value.isascii():
            return value
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return None
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode()
    return None


def as_integer(value: Any, low: int, high: int) -> Optional[int]:
    """`value` as an integer within the bounds, else None."""
    if type(value) is int:
        number = value
    else:
        try:
            # Before Python 3.10 a bool is its own index.
            number = int(operator.index(value))
        except TypeError:
            return None
    return number if low <= number <= high else None


def as_list(value: Any) -> Optional[List[Any]]:
    """The elements of a sequence (text is none), else None."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (str, bytes, dict, set, frozenset)) or not hasattr(type(value), "__getitem__"):
        return None
    try:
        return list(value)
    except TypeError:
        return None


def as_text_list(value: Any) -> Optional[List[str]]:
    """A sequence of texts as a list, else None."""
    elements = as_list(value)
    if elements is None:
        return None
    texts = []
    for element in elements:
        text = as_text(element)
        if text is None:
            return None
        texts.append(text)
    return texts

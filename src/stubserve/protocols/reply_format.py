"""How a client wants the outputs of its request."""

from __future__ import annotations

from typing import NamedTuple


class Slot(NamedTuple):
    """How one output goes into the reply; `classification` is the number of classes, 0 for the tensor itself."""

    binary: bool
    classification: int


class ReplyFormat(NamedTuple):
    """How the outputs go into the reply: by name in `slots`, or, where that is None, all as `default_binary` says.

    With `empty_final` a stream is told of the end of its responses even where there is nothing else to say.
    """

    slots: dict[str, Slot] | None
    default_binary: bool
    empty_final: bool = False

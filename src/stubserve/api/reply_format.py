"""How a client wants the outputs of its request."""

from __future__ import annotations

from typing import NamedTuple

from stubserve.memory.regions import RegionPlace


class Slot(NamedTuple):
    """How one output goes into the reply; `classification` is the number of classes, 0 for the tensor itself.

    One that goes into a client's `region` is IN_REGION in place of that, and is not in the reply.
    """

    binary: bool
    classification: int
    region: RegionPlace | None = None


IN_REGION = -1


class ReplyFormat(NamedTuple):
    """How the outputs go into the reply: by name in `slots`, or, where that is None, all as `default_binary` says.

    With `empty_final` a stream is told of the end of its responses even where there is nothing else to say.
    """

    slots: dict[str, Slot] | None
    default_binary: bool
    empty_final: bool = False

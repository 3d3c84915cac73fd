"""A place where sequences run, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Instance

# A sequence's id as clients give it; a number and a text are never equal.
SequenceId = int | str


def sequence_of(request: Request) -> SequenceId:
    """The id of the sequence that a request belongs to: its client's, or one that the batcher has given it."""
    return request.correlation_id if request.sequence is None else request.sequence[0]


class SequenceSlot:
    """One slot of an instance, which joined as number `joined`.

    `queue` are the requests of the sequence that has it, in order. `over` says that none will come to them, so that the
    slot is free behind the last. `number` is that of the sequence, which no other sequence has ever had: clients use
    their ids again; 0 when the slot is free. `running` is the request that keeps the next one from running, where the
    strategy knows such a thing. `gone` says that its instance is.

    `last_ns` is when the last request came, `watched` whether somebody will look whether that is too long ago.
    `controls` are the control inputs of a request in the middle of a sequence, with its id, once they have been made.
    """

    __slots__ = (
        "controls",
        "gone",
        "index",
        "instance",
        "joined",
        "last_ns",
        "number",
        "over",
        "queue",
        "running",
        "sequence",
        "watched",
    )

    def __init__(self, instance: Instance, joined: int, index: int) -> None:
        self.instance = instance
        self.joined = joined
        self.index = index
        self.gone = False
        self.watched = False
        # Of the sequence that was last given it, over or not
        self.sequence: SequenceId = 0
        self.number = 0
        self.queue: deque[Request] = deque()
        self.over = True
        self.running: Request | None = None
        self.last_ns = 0
        self.controls: tuple[SequenceId, Sequence[Tensor]] | None = None

    def __repr__(self) -> str:
        return f"<Slot {self.index} of {self.instance}: {self.sequence!r}, {len(self.queue)} queued>"

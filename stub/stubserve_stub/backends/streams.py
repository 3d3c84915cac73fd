"""Native backends that are decoupled: a request is answered with any number of responses, while `execute` and after it.

`answer` begins with one request, on the main thread, and gets a stream for its responses; usually it starts a thread.
What it needs of the inputs beyond its return it copies, because their memory is the request's. When `answer` has
returned for all requests of a batch the instance is free for the next, whatever is still being streamed.

A stream is used by one thread at a time. It waits, as a Python model's sender does (`api.sender`), while the client is
two groups of responses behind. The end of a stream is said by `end`, once; a stream that nobody ends keeps its client
waiting. A client that has gone is told by `cancelled`, and what is sent to it goes nowhere.

Backends for tests demand certain tensors, by name: the `check_` functions compare a configuration with them, in
upstream's texts.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from stubserve_stub.api.sender import GROUP_BYTES, GROUP_RESPONSES
from stubserve_stub.backends.base import InstanceFacts
from stubserve_stub.backends.loading.contract import shape_text
from stubserve_stub.backends.native import NativeBackend, NativeRequest, NativeResponse, entry_of
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.outputs import weight
from stubserve_stub.wire.messages import Entry

# (batch, index in it)
Key = Tuple[int, int]


class Stream:
    """The responses to one request."""

    def __init__(self, channel: Channel, key: Key, open_: "Dict[Key, Stream]") -> None:
        self._channel = channel
        self._key = key
        self._open = open_
        self._gone = threading.Event()
        # Guarded by _sending: nothing more may be sent; and what is left of the group that is being sent
        self._sending = threading.Lock()
        self._closed = False
        self._group_left = GROUP_RESPONSES
        self._group_bytes = GROUP_BYTES
        # Groups that may be begun
        self._credit = threading.Semaphore(1)

    @property
    def cancelled(self) -> bool:
        """Whether nobody reads it any more."""
        return self._gone.is_set()

    def wait(self, seconds: float) -> None:
        """Sleeps, but no longer than somebody reads."""
        self._gone.wait(seconds)

    def send(self, response: NativeResponse) -> None:
        """Sends a response that is not the last; waits while the client is far behind."""
        if self._group_left <= 0 or self._group_bytes <= 0:
            self._credit.acquire()
            self._group_left, self._group_bytes = GROUP_RESPONSES, GROUP_BYTES
        with self._sending:
            if self._closed:
                return
            start = time.monotonic_ns()
            wire = entry_of(response, self._channel)
            self._group_left -= 1
            self._group_bytes -= weight(wire)
            self._channel.respond(self._key, start, wire, self._group_left <= 0 or self._group_bytes <= 0)

    def end(self, response: Optional[NativeResponse] = None) -> None:
        """Sends the last response, or that there is no further one."""
        with self._sending:
            if self._closed:
                return
            self._closed = True
            self._open.pop(self._key, None)
            start = time.monotonic_ns()
            wire = None if response is None else entry_of(response, self._channel)
            self._channel.respond_last(self._key, start, wire, [])

    # What the backend does with it

    def cancel(self) -> None:
        self._gone.set()

    def acknowledge(self) -> None:
        """One more group has been passed on."""
        self._credit.release()

    def revoke(self) -> None:
        """Ends it without a word, for a request that is answered in another way."""
        self._gone.set()
        self._credit.release()
        with self._sending:
            self._closed = True
            self._open.pop(self._key, None)


class StreamingBackend(NativeBackend):
    """The part of a decoupled backend that deals with the wire; `answer` is left to each."""

    writes_inputs = False

    def instance_initialize(self, instance: InstanceFacts) -> None:
        super().instance_initialize(instance)
        if not instance.decoupled:
            raise Refusal(
                "model instance '{}' answers with any number of responses, which config.pbtxt has to say: "
                "`model_transaction_policy {{ decoupled: true }}`".format(instance.name)
            )
        self._open: Dict[Key, Stream] = {}
        self.host.control.handle("acknowledge", self._on_acknowledge)

    def answer(self, request: NativeRequest, stream: Stream) -> None:
        """Begins to answer a request. A Refusal that it raises is the request's only response."""
        raise NotImplementedError

    def after_batch(self, requests: Sequence[NativeRequest]) -> None:
        """Runs when all requests of a batch have been begun with, before the instance is free for the next."""

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        raise AssertionError("a decoupled backend answers through streams")

    def execute(self, batch: Batch) -> Sequence[Entry]:
        requests = []
        try:
            for index, wire in enumerate(batch.requests):
                if wire is None:
                    continue
                stream = Stream(self.host.channel, (batch.number, index), self._open)
                self._open[batch.number, index] = stream
                # After it is known: `cancel` may run at any moment, and has told the batch first.
                if index in batch.cancelled:
                    stream.cancel()
                requests.append(self._request(wire, batch))
                try:
                    self.answer(requests[-1], stream)
                except Refusal as refusal:
                    stream.end(NativeResponse(error=str(refusal), code=refusal.code))
            self.after_batch(requests)
        except BaseException:
            self.revoke(batch.number)
            raise
        batch.computed()
        return [None] * len(batch.requests)

    def revoke(self, number: int) -> None:
        for key, stream in list(self._open.items()):
            if key[0] == number:
                stream.revoke()

    # On the control thread

    def cancel(self, number: int, indices: Sequence[int]) -> None:
        for index in indices:
            stream = self._open.get((number, index))
            if stream is not None:
                stream.cancel()

    def _on_acknowledge(self, message: Dict[str, Any]) -> None:
        # The frees travel with it because the main thread may be in `execute` for as long as the stream lasts.
        self.host.channel.free(message["frees"])
        for number, index in message["groups"]:
            stream = self._open.get((number, index))
            if stream is not None:
                stream.acknowledge()


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

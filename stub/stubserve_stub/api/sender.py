"""`InferenceResponseSender`: how a model answers other than by returning from `execute`.

A sender belongs to one request. It may be used from any thread, during `execute` and after it, until it has sent
TRITONSERVER_RESPONSE_COMPLETE_FINAL. It sends one response at a time, at once, so nothing follows a final one.

Flow. Responses go out in groups: of GROUP_RESPONSES, or of GROUP_BYTES in shared memory, or of an eighth of that inside
messages. The last response of a group asks the server to say when the whole group has been passed on. At most two
groups of a request may be under way: `send` waits until the client of a slow stream has read on. When the client is
gone, nothing waits any more.

Memory. The request's inputs stay its own until the final response, which tells the server which of them the model still
holds. Outputs are always copied, because the model holds them.

End. A model that drops a sender (and its request) without a final response can never answer any more. Then a sender
that has sent something ends its stream, and one that has not fails its request.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple

from stubserve_stub.api.arguments import UINT32_MAX, as_integer, incompatible
from stubserve_stub.api.constants import RESPONSE_COMPLETE_FINAL
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.runtime.outputs import failed
from stubserve_stub.wire import codes
from stubserve_stub.wire.places import AsList

if TYPE_CHECKING:
    # These import msgpack, which is missing where only the public module is wanted.
    from stubserve_stub.runtime.states import StateUpdate
    from stubserve_stub.wire.messages import WireResponse

GROUP_RESPONSES = 128
GROUP_BYTES = 2 << 20

# Bytes inside messages weigh more: they become memory of the parent, where small answers are not counted.
_INLINE_WEIGHT = 8

# (batch, index in it)
Key = Tuple[int, int]

_NOT_RETURNED = (
    "model instance '{}': `execute` returned None in place of a response, and nothing was sent for this request. Is "
    "`return responses` missing at the end of `execute`? A model that answers through a response sender must keep the "
    "sender until it has sent TRITONSERVER_RESPONSE_COMPLETE_FINAL."
)
_NOT_SENT = (
    "model instance '{}' let go of the response sender of this request without a response; the model must send "
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL when it is done"
)


class InferenceResponseSender:
    """Sends the responses to one request."""

    # Where it sends to; None for a request that the model made itself
    _senders: Optional[Senders]
    _key: Key
    _requested: Collection[str]
    # The request's inputs in the arena: offset and tensor of each
    _tensors: List[Tuple[int, Tensor]]
    # The update of the sequence's states; None without implicit state
    _update: Optional[StateUpdate]
    _cancelled: bool
    # What ends the wait of a backend that waits for something else than its client
    _on_cancel: Optional[Callable[[], None]]
    # Nothing more may be sent
    _closed: bool
    # Guarded by _sending: how many sends there were, and whether the final one is out
    _sending: threading.Lock
    _sent: int
    _ended: bool
    # Whether the request was answered in another way before
    _revoked: bool
    _group_left: int
    _group_bytes: int
    # Groups that may begin; None until the first one is used up
    _credit: Optional[threading.Semaphore]
    # The response of a model that is not decoupled, while it waits for the final flag
    _kept: Optional[WireResponse]

    __slots__ = ("__weakref__", *__annotations__)

    def __new__(cls) -> InferenceResponseSender:
        raise TypeError("InferenceResponseSender: No constructor defined!")

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Sends a response; the final flag says that none follows, and may be sent without a response.

        Waits while the client is far behind. Raises TypeError for arguments of the wrong types, TritonModelException
        for what the state of the request does not allow.
        """
        bits = as_integer(flags, 0, UINT32_MAX)
        if bits is None or not (response is None or isinstance(response, InferenceResponse)):
            raise incompatible(
                "send",
                "(self: InferenceResponseSender, response: InferenceResponse = None, flags: int = 0) -> None",
                (self, response, flags),
            )
        if bits & ~RESPONSE_COMPLETE_FINAL:
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not bits:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        senders = self._senders
        if senders is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        with self._sending:
            if not senders.decoupled:
                if response is not None and self._sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
                if response is None and not self._sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
            self._check_open()
            if not bits and senders.decoupled:
                self._await_credit()
            self._sent += 1
            start = time.monotonic_ns()
            if senders.check is not None:
                response = senders.check.look(response, self._requested, None)
            wire = None
            if response is not None:
                partly = senders.decoupled
                wire = response._encode(self._requested, senders.channel, self._update, partly, None, senders.misnamed)
            if bits:
                self._finish(senders, wire, start)
            elif senders.decoupled:
                assert wire is not None
                self._send_one(senders, wire, start)
            else:
                # The client gets a single response, once that is known to be final.
                self._kept = wire

    def is_cancelled(self) -> bool:
        """Whether the client has gone. Does not ask the server."""
        return self._cancelled

    def _when_cancelled(self, act: Callable[[], None]) -> None:
        """Calls `act` as soon as the client has gone, perhaps at once and perhaps twice, on any thread."""
        self._on_cancel = act
        if self._cancelled:
            act()

    def _check_open(self) -> None:
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def _await_room(self) -> None:
        """Waits as `send` would, for a backend that wants its response to be new when it is sent."""
        with self._sending:
            self._check_open()
            self._await_credit()

    def _await_credit(self) -> None:
        if self._group_left <= 0 or self._group_bytes <= 0:
            assert self._credit is not None
            self._credit.acquire()
            self._check_open()
            self._group_left, self._group_bytes = GROUP_RESPONSES, GROUP_BYTES

    def _send_one(self, senders: Senders, wire: WireResponse, start_ns: int) -> None:
        self._group_left -= 1
        for _, _, _, place in wire[1]:
            if isinstance(place, bytes):
                self._group_bytes -= _INLINE_WEIGHT * len(place)
            else:
                self._group_bytes -= place.nbytes * (_INLINE_WEIGHT if isinstance(place, AsList) else 1)
        full = self._group_left <= 0 or self._group_bytes <= 0
        if full and self._credit is None:
            self._credit = threading.Semaphore(1)
        senders.channel.respond(self._key, start_ns, wire, full)

    def _finish(self, senders: Senders, wire: Optional[WireResponse], start_ns: int) -> None:
        self._closed = self._ended = True
        if wire is None:
            wire = self._kept
        self._kept = None
        senders.forget(self._key)
        senders.channel.respond_last(self._key, start_ns, wire, self._tensors)

    def _end(self, error: str = "", alone: bool = False) -> None:
        """Ends it for the stub, if it has not ended yet.

        Nothing more is sent for a request that is answered in another way, with two exceptions. When it has failed with
        an `error`, a response that waits for the final flag goes out with that error, because a stream's client gets
        all that was sent. And the error goes out `alone` where nothing else answers the request.
        """
        self._closed = True
        credit = self._credit
        if credit is not None:
            credit.release()  # a thread that waits for it is turned away
        with self._sending:
            if self._ended:
                return
            assert self._senders is not None
            kept, self._kept = self._kept, None
            if alone:
                self._finish(self._senders, failed(error, codes.INTERNAL), time.monotonic_ns())
            elif error and kept is not None:
                self._finish(self._senders, ((error, codes.INTERNAL), *kept[1:]), time.monotonic_ns())
            else:
                self._senders.forget(self._key)
                self._ended = self._revoked = True
                self._tensors = []

    def __del__(self) -> None:
        # Runs wherever the last reference goes, perhaps inside the ring's lock: it can only leave a note.
        senders = self._senders
        if senders is not None and not self._ended:
            senders.forget(self._key)
            senders.dropped(self._key, self._kept, self._sent, self._tensors)


class Senders:
    """The open senders of one stub, by batch and index. Gets cancellations and the server's credit."""

    def __init__(self, channel: Any, decoupled: bool) -> None:
        self.channel = channel
        self.decoupled = decoupled
        # Compares responses with the configuration; None where that is off
        self.check: Any = None
        # The error of a response that lacks an output and has one too many; None where such are passed on
        self.misnamed: Optional[Callable[[Sequence[Any], Collection[str]], str]] = None
        self._open: Dict[Key, weakref.ref[InferenceResponseSender]] = {}
        self._dropped: List[Tuple[Key, Optional[WireResponse], int, List[Tuple[int, Tensor]]]] = []

    def create(
        self,
        key: Key,
        requested: Collection[str],
        tensors: List[Tuple[int, Tensor]],
        update: Optional[StateUpdate] = None,
    ) -> InferenceResponseSender:
        sender = blank(self)
        sender._update = update
        sender._key = key
        sender._requested = requested
        sender._tensors = tensors
        self._open[key] = weakref.ref(sender)
        return sender

    def cancel(self, key: Key) -> None:
        """The client of this request is gone."""
        sender = self._find(key)
        if sender is not None:
            sender._cancelled = True
            if sender._on_cancel is not None:
                sender._on_cancel()

    def acknowledge(self, key: Key) -> None:
        """One more group of this request has been passed on."""
        sender = self._find(key)
        if sender is not None and sender._credit is not None:
            sender._credit.release()

    def forget(self, key: Key) -> None:
        self._open.pop(key, None)

    def revoke(self, batch: int) -> None:
        """Ends the senders of a batch that is answered in another way."""
        for key in list(self._open):
            sender = self._find(key) if key[0] == batch else None
            if sender is not None:
                sender._end()

    def dropped(self, key: Key, kept: Optional[WireResponse], sent: int, tensors: List[Tuple[int, Tensor]]) -> None:
        """The model has dropped this sender. Safe in a destructor: the main thread tells the server."""
        self._dropped.append((key, kept, sent, tensors))
        self.channel.poke()

    def report_dropped(self, instance: str) -> List[Key]:
        """Ends the requests of dropped senders, and returns their keys. Runs on the main thread."""
        keys = []
        while self._dropped:
            key, wire, sent, tensors = self._dropped.pop()
            if not sent:
                text = _NOT_SENT if self.decoupled else _NOT_RETURNED
                wire = failed(text.format(instance), codes.INTERNAL)
            self.channel.respond_last(key, time.monotonic_ns(), wire, tensors)
            keys.append(key)
        return keys

    def _find(self, key: Key) -> Optional[InferenceResponseSender]:
        reference = self._open.get(key)
        return None if reference is None else reference()


def blank(senders: Optional[Senders], answered: bool = False) -> InferenceResponseSender:
    """A sender that cannot send: its request has been answered already, or the model made the request itself."""
    sender: InferenceResponseSender = object.__new__(InferenceResponseSender)
    sender._senders = senders
    sender._cancelled = sender._revoked = False
    sender._closed = sender._ended = answered
    sender._sending = threading.Lock()
    sender._sent = int(answered)
    sender._group_left, sender._group_bytes = GROUP_RESPONSES, GROUP_BYTES
    sender._credit = sender._on_cancel = None
    sender._kept = None
    sender._update = None
    sender._tensors = []
    return sender

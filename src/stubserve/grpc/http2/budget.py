"""What a client may cost us on one connection: streams, useless work, pings, and time of the event loop.

Identifiers of streams (RFC 9113, 5.1.1): those of a client are odd, and each is above the last. What a client leaves
out is closed: it may not open it any more. What it has not come to yet is idle, and a frame that names it breaks the
connection. All others it has opened once, and their frames may have been on their way when the server had closed them.

Useless work: frames that move nothing (settings, window updates that nobody waits for, empty DATA, priorities, what is
not known) and streams that are opened only to be ended or broken cost the server more than their client. A few of them
belong to any client, so what is of use excuses some.

Pings: the rules and their defaults are gRPC's own, set by the `--grpc-http2-*` flags.

Time: most of what arrives is cheap for its length, or short. But frames can be made to cost far more than it costs to
send them: a header block of 128 KiB that is only taken apart to be refused takes 1.5 ms, and so do a thousand pings.
Clients that send such without pause had a small request of another client wait for a few milliseconds in each pass of
the loop. So after a read that took long a connection reads no further before its turn comes, and less at once from then
on. It shares the turns with all long work (`inference.long_work`: one piece per pass). While there is no long work to
do, long is what takes a slice; while others wait for their turns, long is a quarter of one, or many cheap connections
would make a pass long together. Reads of up to SHORT_BYTES cannot take long, and are not timed.
"""

from __future__ import annotations

from collections import deque
from time import monotonic

from stubserve.grpc.http2.frames import ENHANCE_YOUR_CALM, PROTOCOL_ERROR, ConnectionFault
from stubserve.inference.long_work import SLICE_S, Offload
from stubserve.settings.fronts import GrpcSettings

MAX_RESETS = 1000
MAX_IDLE_FRAMES = 1000
SHORT_BYTES = 4096
# So many of the ranges of identifiers that a client left out are remembered, which is as many as a proper client has.
_SKIPPED = 16
# A stream that is opened excuses so many frames that move nothing.
_EXCUSED = 8
# Of what has been sent so many bytes excuse one: a client that reads a stream may say for each message that it has,
# however small it is, and however many came at once. What they excuse beforehand has a limit.
_BYTES_EACH = 16
_MOST_BEFOREHAND = 100_000
_PING_INTERVAL_WITHOUT_CALLS_S = 7200.0
_LEAST_BYTES = 16 * 1024


class ClientBudget:
    """The budget of one connection. What goes beyond it raises ConnectionFault.

    `last_stream` is the identifier of the last stream that the client has opened, `resets` what counts of those that it
    ended or broke, and `room` where its next read goes.
    """

    __slots__ = (
        "_early_pings",
        "_frames",
        "_last_ping",
        "_offload",
        "_options",
        "_scratch",
        "_sent_at_ping",
        "_sent_at_update",
        "_skipped",
        "last_stream",
        "resets",
        "room",
    )

    def __init__(self, options: GrpcSettings, offload: Offload, scratch: memoryview) -> None:
        self._options = options
        # Identifiers, and those left out, as (first, end)
        self.last_stream = 0
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_SKIPPED)
        # Useless work that counts at the moment; the bytes of messages sent when a window was widened last
        self._frames = 0
        self.resets = 0
        self._sent_at_update = 0
        # Pings: when the last came, the bytes of messages sent then, and how many have come too early
        self._last_ping = 0.0
        self._sent_at_ping = 0
        self._early_pings = 0
        # Time
        self._offload = offload
        self._scratch = scratch
        self.room = scratch

    # Streams

    def open_stream(self, id: int) -> bool:
        """Takes the identifier of a header block. False if it had been opened before."""
        if id <= self.last_stream:
            if any(first <= id < end for first, end in self._skipped):
                raise ConnectionFault(PROTOCOL_ERROR, f"stream {id} is opened after stream {self.last_stream}")
            return False
        if id > self.last_stream + 2:
            self._skipped.append((self.last_stream + 1, id))
        self.last_stream = id
        if self._frames > 0:
            self._frames = max(self._frames - _EXCUSED, 0)
        return True

    def refuse_unopened(self, id: int, what: str) -> None:
        """Raises if the stream was never opened. `what` is what came for it."""
        if id % 2 == 0 or id > self.last_stream:
            raise ConnectionFault(PROTOCOL_ERROR, f"{what} of stream {id}, which was never open")

    # Useless work

    def take_idle_frame(self) -> None:
        """A frame that moves nothing."""
        self._frames += 1
        if self._frames > MAX_IDLE_FRAMES:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many frames that move nothing")

    def take_update(self, sent: int) -> None:
        """A window is widened where `sent` bytes have been sent so far; without any since the last it moves nothing."""
        moved = sent - self._sent_at_update
        if not moved:
            self.take_idle_frame()
            return
        self._sent_at_update = sent
        self._frames = max(self._frames - _EXCUSED - moved // _BYTES_EACH, -_MOST_BEFOREHAND)

    def take_reset(self) -> None:
        """A stream is ended by its client, or broken. One that ends by itself takes one back: half may end so."""
        self.resets += 2
        if self.resets > MAX_RESETS:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many cancelled streams")

    # Pings

    def take_ping(self, sent: int, has_streams: bool) -> None:
        """The client asks whether we are there, where `sent` bytes have been sent so far."""
        options = self._options
        now = monotonic()
        if sent != self._sent_at_ping:
            # Whatever was sent since excuses a ping.
            self._sent_at_ping = sent
            self._early_pings = 0
        else:
            interval = (
                options.min_recv_ping_interval_without_data / 1000
                if has_streams or options.keepalive_permit_without_calls
                else _PING_INTERVAL_WITHOUT_CALLS_S
            )
            if self._last_ping and now - self._last_ping < interval:
                self._early_pings += 1
                if options.max_ping_strikes and self._early_pings > options.max_ping_strikes:
                    raise ConnectionFault(ENHANCE_YOUR_CALM, "too_many_pings")
        self._last_ping = now

    # Time

    def read_took(self, seconds: float) -> bool:
        """What came with a read took so long; whether the next one has to wait for its turn."""
        waits = seconds > (SLICE_S / 4 if self._offload.busy else SLICE_S)
        size = len(self.room)
        if waits and size > _LEAST_BYTES:
            self.room = self._scratch[: size // 2]
        elif seconds < SLICE_S / 8 and size < len(self._scratch):
            self.room = self._scratch[: size * 2]
        return waits

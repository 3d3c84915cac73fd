"""What a client may cost on one connection: streams, useless work, pings, and time of the event loop.

Identifiers of streams (RFC 9113, 5.1.1): those of a client are odd, and each is above the last. An identifier that the
client leaves out is closed and may not be opened any more. One above the last is idle, and a frame that names it breaks
the connection. All others were opened once, and their frames may have been on their way when the server closed them.

Useless work: frames that move nothing (settings, unneeded window updates, empty DATA, priorities, unknown types) and
streams that are opened only to be ended or broken cost the server more than their client. Any client sends a few of
them, so useful work excuses some.

Pings: the rules and their defaults are gRPC's own, set by the `--grpc-http2-*` flags.

Time: most of what arrives is cheap for its length, or short. But some frames cost far more to read than to send: a
header block of 128 KiB that is read only to be refused takes 1.5 ms, and so do a thousand pings. Clients that sent such
frames without pause delayed a small request of another client by a few milliseconds in each pass of the loop. So after
a long read a connection waits for its turn before it reads on, and then reads less at once. It shares the turns with
all long work (`inference.long_work`: one piece per pass). A read is long if it takes a slice. While other work waits
for its turn, a quarter of a slice is long, or many cheap connections would together make a long pass. Reads of up to
SHORT_BYTES cannot take long, and are not timed.
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
# So many ranges of skipped identifiers are remembered, as many as a proper client has.
_SKIPPED = 16
# So many frames that move nothing are excused by each opened stream.
_EXCUSED = 8
# So many sent bytes excuse one frame: a client may widen its window for each message that it reads, however small the
# message, and for many at once. _MOST_BEFOREHAND limits what is excused in advance.
_BYTES_EACH = 16
_MOST_BEFOREHAND = 100_000
_PING_INTERVAL_WITHOUT_CALLS_S = 7200.0
_LEAST_BYTES = 16 * 1024


class ClientBudget:
    """The budget of one connection. Exceeding it raises ConnectionFault.

    `last_stream` is the last stream that the client has opened, `resets` the count of streams that came to nothing,
    and `room` the memory for its next read.
    """

    def __init__(self, options: GrpcSettings, offload: Offload, scratch: memoryview) -> None:
        self._options = options
        # Identifiers, and those skipped, as (first, end)
        self.last_stream = 0
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_SKIPPED)
        # The current count of useless frames; the bytes of messages sent when a window was widened last
        self._frames = 0
        self.resets = 0
        self._sent_at_update = 0
        # Pings: the time of the last, the bytes of messages sent by then, and how many have come too early
        self._last_ping = 0.0
        self._sent_at_ping = 0
        self._early_pings = 0
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
        """Raises if the stream was never opened; `what` names the frame that came for it."""
        if id % 2 == 0 or id > self.last_stream:
            raise ConnectionFault(PROTOCOL_ERROR, f"{what} of stream {id}, which was never open")

    # Useless work

    def take_idle_frame(self) -> None:
        self._frames += 1
        if self._frames > MAX_IDLE_FRAMES:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many frames that move nothing")

    def take_update(self, sent: int) -> None:
        """Counts a window update; it moves nothing if nothing was sent since the last. `sent` is the total so far."""
        moved = sent - self._sent_at_update
        if not moved:
            self.take_idle_frame()
            return
        self._sent_at_update = sent
        self._frames = max(self._frames - _EXCUSED - moved // _BYTES_EACH, -_MOST_BEFOREHAND)

    def take_reset(self) -> None:
        """Counts a stream that its client ended or broke, or opened beside too many others. One that ends by itself
        takes one back: half may be reset.
        """
        self.resets += 2
        if self.resets > MAX_RESETS:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many cancelled streams")

    # Pings

    def take_ping(self, sent: int, has_streams: bool) -> None:
        """Counts a ping that comes too early; `sent` is the bytes sent so far."""
        options = self._options
        now = monotonic()
        if sent != self._sent_at_ping:
            # Anything sent since the last ping excuses this one.
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
        """Whether the next read has to wait for its turn; handling this one took `seconds`."""
        waits = seconds > (SLICE_S / 4 if self._offload.busy else SLICE_S)
        size = len(self.room)
        if waits and size > _LEAST_BYTES:
            self.room = self._scratch[: size // 2]
        elif seconds < SLICE_S / 8 and size < len(self._scratch):
            self.room = self._scratch[: size * 2]
        return waits

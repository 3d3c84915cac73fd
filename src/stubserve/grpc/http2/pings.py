"""Pings both ways: how often the client may ask whether we are there, and when we ask the client.

The rules and their defaults are gRPC's own, set by the `--grpc-keepalive-*` and `--grpc-http2-*` flags.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.frames import ConnectionFault
from stubserve.grpc.http2.sender import Sender
from stubserve.settings.groups import GrpcSettings

log = logging.getLogger("stubserve.grpc")

_INTERVAL_WITHOUT_CALLS_S = 7200.0


class Pings:
    """The pings of one connection. `streams` are those open. `heard` is when the client last sent anything, in the
    event loop's time."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        sender: Sender,
        options: GrpcSettings,
        streams: Sized,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._sender = sender
        self._options = options
        self._streams = streams
        # The client's: when the last came, how many have come too early
        self._last = 0.0
        self._data_bytes = 0
        self._strikes = 0
        # Ours
        self.heard = loop.time()
        self._timer = loop.call_later(options.keepalive_time / 1000, self._ask)

    def answer(self, flags: int, payload: memoryview) -> None:
        """Takes a PING frame. Raises ConnectionFault where it breaks the protocol, or is one too many."""
        if len(payload) != 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "a ping of a wrong length")
        if flags & frames.ACK:
            return
        options = self._options
        now = self._loop.time()
        interval = (
            options.min_recv_ping_interval_without_data / 1000
            if self._streams or options.keepalive_permit_without_calls
            else _INTERVAL_WITHOUT_CALLS_S
        )
        if self._sender.data_bytes != self._data_bytes:
            # Whatever was sent since excuses a ping.
            self._data_bytes = self._sender.data_bytes
            self._strikes = 0
        elif self._last and now - self._last < interval:
            self._strikes += 1
            if options.max_ping_strikes and self._strikes > options.max_ping_strikes:
                raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too_many_pings")
        self._last = now
        self._sender.write(frames.frame(frames.PING, frames.ACK, 0, bytes(payload)))

    def stop(self) -> None:
        """Asks no more."""
        self._timer.cancel()

    def _ask(self) -> None:
        options = self._options
        period = options.keepalive_time / 1000
        silent = self._loop.time() - self.heard
        if silent < period or not (self._streams or options.keepalive_permit_without_calls):
            left = period - silent if silent < period else period
            self._timer = self._loop.call_later(left, self._ask)
            return
        self._sender.write(frames.frame(frames.PING, 0, 0, b"stubserv"))
        self._timer = self._loop.call_later(options.keepalive_timeout / 1000, self._expect, self.heard)

    def _expect(self, heard: float) -> None:
        if self.heard == heard:
            log.info("closing a gRPC connection whose client does not answer pings")
            self._transport.abort()
        else:
            self._ask()

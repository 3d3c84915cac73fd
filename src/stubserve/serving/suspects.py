"""The requests that were being executed when stubs of a model died.

A client often repeats a request that has failed. If the request was the cause, the next stub dies of it, too. So for a
while after a death each new request is compared with those that were being executed then:

- an equal request runs in a batch of its own, so that no other request dies with it;
- if it is executed, it was not the cause, and is forgotten;
- if it is being executed at another death, and at more of them than any other request there, the log names it: its id,
  and who sent it;
- if nothing else was being executed then, requests that are equal to it are refused for a while, where the operator
  wants that (`--quarantine-secs`). Streams and sequences run beside others, which may be the cause.

Requests are equal if the model gets the same inputs and parameters. Of large inputs only samples count, because the
event loop takes them. Requests with memory of their clients are never equal: its bytes change.

Nothing is compared, and no request costs more, until a stub has died while it executed something.
"""

# Compiled by mypyc.
from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from stubserve.errors import internal
from stubserve.inference.call import asker_of
from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor

log = logging.getLogger("stubserve.model")

# How long a death is remembered, and how many requests are
_REMEMBERED_NS = 300_000_000_000
_MOST = 512
# How many of the requests of one death are remembered, and how many are named
_OF_ONE_DEATH = 64
_NAMED = 4
_LONGEST_ID = 256
# The deaths after which a request is named, and refused
_SEVERAL = 2
# Larger inputs are compared by so many samples of so many bytes
_SAMPLES = 16
_SAMPLE_BYTES = 4096


@dataclass(slots=True)
class _Suspect:
    """A request that was being executed at `deaths`. `again` is the last equal request since then, if any."""

    deaths: int = 0
    forgotten_ns: int = 0
    refused_ns: int = 0
    again: Request | None = None


class Suspects:
    """The suspects of one model. `set_apart` makes a request run alone; equal ones are refused for `refused_s`.

    `has` says whether a stub has a request still.
    """

    def __init__(
        self, model: str, set_apart: Callable[[Request], None], has: Callable[[Request], bool], refused_s: float
    ) -> None:
        self._model = model
        self._set_apart = set_apart
        self._has = has
        self._refused_ns = int(refused_s * 1e9)
        # Nothing is compared while it is empty
        self.found: OrderedDict[bytes, _Suspect] = OrderedDict()

    def on_death(self, instance: str, executing: Sequence[Request], now_ns: int) -> None:
        """A stub has died while it executed these requests. They still have their inputs."""
        if not executing:
            return
        for over in [key for key, one in self.found.items() if self._is_over(one, now_ns, executing)]:
            del self.found[over]
        log.error("instance '%s' was executing %s when its stub died", instance, _names(executing))
        # One that is there several times dies once. Those that cannot be compared are one more.
        there = {content_of(request): request for request in reversed(executing[:_OF_ONE_DEATH])}
        deaths = {content: self._count_death(content, now_ns) for content in there if content is not None}
        most = max(deaths.values(), default=0)
        worst = [content for content, count in deaths.items() if count == most]
        if len(worst) == 1 and most >= _SEVERAL:
            refused = len(there) == 1 and bool(self._refused_ns)
            if refused:
                self.found[worst[0]].refused_ns = now_ns + self._refused_ns
            log.error(
                "model '%s': the request %s, or one that is equal to it, was being executed at %d deaths of stubs, and "
                "was not answered between them. It is likely the cause. %s",
                self._model,
                _name(there[worst[0]]),
                most,
                f"Requests that are equal to it are refused for {self._refused_ns / 1e9:g} s."
                if refused
                else "It is not refused, because others were being executed, too."
                if self._refused_ns
                else "With --quarantine-secs such requests would be refused for a while.",
            )
        while len(self.found) > _MOST:
            self.found.popitem(last=False)

    def _count_death(self, content: bytes, now_ns: int) -> int:
        suspect = self.found.setdefault(content, _Suspect())
        self.found.move_to_end(content)
        suspect.deaths += 1
        suspect.again = None
        suspect.forgotten_ns = now_ns + _REMEMBERED_NS + self._refused_ns
        return suspect.deaths

    def _is_over(self, suspect: _Suspect, now_ns: int, executing: Sequence[Request] = ()) -> bool:
        """Whether an equal request has been executed without a death, or the last death was long ago."""
        again = suspect.again
        if again is not None and again.compute_end_ns and again not in executing and not self._has(again):
            return True
        return now_ns > suspect.forgotten_ns

    def meet(self, request: Request, now_ns: int) -> None:
        """A new request. Raises ServeError if it is refused."""
        content = request.content = content_of(request)
        while self.found and self._is_over(next(iter(self.found.values())), now_ns):
            self.found.popitem(last=False)
        suspect = None if content is None else self.found.get(content)
        if content is None or suspect is None:
            return
        if self._is_over(suspect, now_ns):
            del self.found[content]
            return
        if now_ns < suspect.refused_ns:
            left_s = (suspect.refused_ns - now_ns) / 1e9
            raise internal(
                f"{request.id_prefix}the request is not executed: {suspect.deaths} stubs of model '{self._model}' died "
                f"while they executed an equal one. Such requests are refused for another {left_s:.0f} s "
                "(--quarantine-secs)"
            )
        self._set_apart(request)
        suspect.again = request


def content_of(request: Request) -> bytes | None:
    """What a request asks of its model, as a digest; None for a request that cannot be compared."""
    if request.content is not None:
        return request.content
    if request.regions is not None or isinstance(request.requested_outputs, dict):
        return None
    try:
        inputs = [(one.name, one.datatype, tuple(one.shape), _samples(one)) for one in request.inputs]
        form = repr((inputs, sorted((request.options.parameters or {}).items()))).encode()
    except Exception:  # as of a parameter without bytes; nothing that is unusual here may keep anybody from an answer
        return None
    return sha256(form).digest()


def _samples(tensor: Tensor) -> bytes:
    buffer = tensor.buffer
    if len(buffer) <= _SAMPLES * _SAMPLE_BYTES:
        return bytes(buffer)
    step = (len(buffer) - _SAMPLE_BYTES) // (_SAMPLES - 1)
    return b"".join(buffer[at : at + _SAMPLE_BYTES] for at in range(0, len(buffer) - _SAMPLE_BYTES + 1, step))


def _names(requests: Sequence[Request]) -> str:
    named = ", ".join(map(_name, requests[:_NAMED]))
    more = len(requests) - _NAMED
    return named if more <= 0 else f"{named} and {more} more requests"


def _name(request: Request) -> str:
    asker = asker_of(request)
    id = repr(request.id[:_LONGEST_ID]) if request.id else "without an id"
    return f"{id} of {asker}" if asker else id

"""An instance that could execute something if others gave a resource back: how it is seen where circles are looked for.

A model that holds a resource while it waits for another (BLS) may wait for one that needs the same resource. Upstream
both wait for ever. Here that is a circle like any other (`instances.waiting`): the caller waits for the instance that
it calls, and that one for an instance that holds what it lacks.

It is enough for it that one of the holders goes on. Where two of them would have to, a circle may be missed; nobody is
refused who could run.
"""

from __future__ import annotations

from collections.abc import Sequence

from stubserve.inference.request import Request
from stubserve.inference.served_model import BlockingCall, Waiter
from stubserve.instances.instance import Instance
from stubserve.serving.limited_dispatcher import LimitedDispatcher


class ResourceWait:
    """A `Waiter` in place of an instance's own, and what it waits for: `holders` of a resource."""

    request: Request | None = None

    def __init__(self, waiter: Waiter, resource: str, holders: Sequence[Waiter]) -> None:
        self.name = f"{waiter.name} (which needs the resource '{resource}')"
        self._waiter = waiter
        self._holders = holders

    def has(self, request: Request) -> bool:
        return self._waiter.has(request)

    def waits_for(self) -> Sequence[BlockingCall]:
        return (self,)

    @property
    def model(self) -> ResourceWait:
        return self

    def takers(self, request: Request | None) -> Sequence[Waiter]:
        return self._holders


def seen(limits: LimitedDispatcher, instance: Instance, waiter: Waiter) -> Waiter:
    """An instance's waiter, or in its place one that waits for the instances that hold what this one lacks."""
    resource, holders = limits.in_the_way(instance)
    waiters = [holder.waiter for holder in holders if isinstance(holder, Instance)]
    held_by = [one for one in waiters if one is not None]
    if not held_by or len(held_by) < len(waiters):
        return waiter
    return ResourceWait(waiter, resource, held_by)

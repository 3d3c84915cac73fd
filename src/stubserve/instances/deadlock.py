"""Which instances wait for which: finds calls that can never be answered.

An instance that executes a batch waits for all of its blocking calls. A call waits for the instance that executes it
or, while it is queued, for any instance of its model. An instance without a blocking call goes on by itself, and so
does one that is restarting. From these the search finds all instances that can go on. A call with no such instance is
a deadlock: no instance outside can wake a circle.

Such a circle closes with its last blocking call. So the search is needed only when a call begins, and it is always the
newest call that fails; the others go on, with its error at the end of their chain. It costs a look at the target's
instances, unless all of them wait.

A request that is paused, until a model has caught up with its answers, keeps its instance meanwhile. Such a pause may
be part of a circle, too. It is lifted then, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stubserve.inference.request import Request
from stubserve.inference.served_model import BlockingCall, CallTarget, Waiter


class FutureWaiter:
    """The waiter of what does not run yet: an instance that will have a stub, or a run of an ensemble."""

    def __init__(self, name: str, waits_for: Callable[[], Sequence[BlockingCall]] = tuple) -> None:
        self.name = name
        self.waits_for = waits_for

    def has(self, request: Request) -> bool:
        return False


class Pause(NamedTuple):
    """A pause until any instance of `model` has gone on; `lift` ends it before, and for good."""

    model: CallTarget
    lift: Callable[[], None]
    request: Request | None = None


def find_deadlock(caller: Waiter, model: CallTarget, request: Request | None) -> list[str] | None:
    """The chain of instances from `caller` on, each waiting for the next, if its call can never be answered; else None.

    `request` is the call's if it has been submitted; None if it is about to be.
    """
    first = model.waiters_for(request)
    for one in first:
        if one is not caller and not one.waits_for():
            return None
    # For each instance, a list of lists: of each list, one member must go on
    needs: dict[int, list[Sequence[Waiter]]] = {id(caller): [first]}
    pauses: dict[int, list[Pause]] = {}
    free: set[int] = set()
    todo = list(first)
    while todo:
        waiter = todo.pop()
        if id(waiter) in needs or id(waiter) in free:
            continue
        calls = waiter.waits_for()
        if not calls:
            free.add(id(waiter))
            continue
        needs[id(waiter)] = [call.model.waiters_for(call.request) for call in calls]
        pauses[id(waiter)] = [call for call in calls if isinstance(call, Pause)]
        for group in needs[id(waiter)]:
            todo.extend(group)
    while True:
        freed = {
            waiter
            for waiter, calls in needs.items()
            if waiter not in free and all(any(id(one) in free for one in group) for group in calls)
        }
        if not freed:
            break
        free |= freed
    if not first or any(id(one) in free for one in first):
        return None
    lifted = [pause.lift() for waiter, held in pauses.items() if waiter not in free for pause in held]
    if lifted:
        return find_deadlock(caller, model, request)
    chain = [caller.name]
    seen = {id(caller)}
    waiter = first[0]
    while id(waiter) not in seen:
        seen.add(id(waiter))
        chain.append(waiter.name)
        waiter = next(group[0] for group in needs[id(waiter)] if group and not any(id(one) in free for one in group))
    return [*chain, waiter.name]

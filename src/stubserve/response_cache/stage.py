"""The response cache as one model version uses it: which requests it answers, and which answers it gets.

Guarantees:

- a request that the cache answers touches neither scheduler nor instance. Its answer goes out at once if the caller is
  ready for that, else with the next `poll`, and in the model's order of answers if there is one (`preserve_ordering`);
- any fault of the store is a miss: the request goes on as if there were no cache. If the key takes long to make,
  or the store is remote, the request waits meanwhile, with a place in the queue that counts for the queue's limit, and
  can be cancelled;
- only successful, whole responses are kept (`ResponseCache.keep`), and none of a member that the ensemble's key does
  not stand for;
- a request that refers to its client's shared memory bypasses the cache: the model may read other bytes there than
  those in the key, and other clients would get the answer;
- a model that is loaded again has other keys, so no answer of its predecessor is served.

**Coalescing** (`coalesce=true`). While a request runs, equal ones that came later wait for its answer and do not run.
One that came earlier does not: where answers keep their order, each would wait for the other. Those that wait are
answered like hits. If the request fails they run themselves, each on its own, so no client gets the error of another.
If only its client has gone, one of them takes its place. A queue policy's timeout counts from when a request is queued,
so not while it waits for another. The policy's limit counts: the waiting request has a place in the queue. A reader may
cancel any request, and send another, while it is answered. By then that request has no followers any more, and its
former followers continue with the next poll.

Statistics, as upstream: a hit is a success with a queue time and no computation; a miss counts when its answer is
there, with the times of lookup and insertion.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import logging

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.request import CANCELLED, Request, Response
from stubserve.inference.tensor import drop_blocks
from stubserve.response_cache.entry import CacheEntry, lent
from stubserve.response_cache.key import is_quick, key_of
from stubserve.response_cache.store import ResponseCache
from stubserve.serving.answering import AnsweringModel
from stubserve.serving.stages import Stage

log = logging.getLogger("stubserve.cache")


class _Asked:
    """A request that was not answered at once: it runs, waits for one that does, or is due with the next poll.

    While it runs or waits this object gets the answer before the request's reader does.
    """

    __slots__ = ("_cache", "alone", "asked_ns", "followers", "key", "reader", "request", "response", "took_ns")

    def __init__(self, cache: CacheStage, request: Request, key: bytes | None, asked_ns: int, took_ns: int) -> None:
        self._cache = cache
        self.request = request
        self.reader = request.on_response
        # None if the answer could not be looked up
        self.key = key
        # The time of the look-up, and how long it took
        self.asked_ns = asked_ns
        self.took_ns = took_ns
        self.followers: dict[Request, _Asked] = {}
        # Once it is due: its answer, or None if it is to run; and whether it then runs even beside an equal request
        self.response: Response | None = None
        self.alone = False

    def on_response(self, request: Request, response: Response) -> None:
        request.on_response = self.reader
        self._cache.on_answer(self, response)


class CacheStage(Stage):
    """The cache of one model version, in front of its queue. Lives on the event loop.

    `identity` stands for all that the model's answers depend on.
    """

    def __init__(self, cache: ResponseCache, identity: bytes, model: AnsweringModel, queue: Stage) -> None:
        super().__init__()
        self._name = model.name
        self._identity = identity
        self._outputs = sorted(model.signature.outputs)
        self._cache = cache
        self._local = cache.local
        self._delivery = model.delivery
        self._statistics = model.statistics
        self._queue = queue
        self._clock = model.clock
        self._told_of_size = False
        model.statistics.cached = True
        # Requests that are answered, or go on, with the next poll
        self._due: list[_Asked] = []
        # Requests that wait for a key that takes long to make, or for a remote store
        self._tasks: set[asyncio.Task[None]] = set()
        # With coalescing: the running requests by key, and for each follower the request that it waits for
        self._running: dict[bytes, _Asked] = {}
        self._followed: dict[Request, _Asked] = {}

    # Requests

    def enqueue(self, request: Request) -> None:
        """Answers a request from the cache, or queues it."""
        if request.regions is not None or isinstance(request.requested_outputs, dict):
            # Tensors of the request may lie where only stubs read them.
            self._queue.enqueue(request)
            return
        request.queue_start_ns = asked_ns = self._clock()
        local = self._local
        if local is None or not is_quick(request):
            self._queue.take_place(request)
            task = self._loop.create_task(self._look_elsewhere(request, asked_ns))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        try:
            key = key_of(self._identity, self._outputs, request)
        except ValueError:  # a parameter that has no key
            self._queue.enqueue(request)
            return
        entry = local.get(key)
        took_ns = self._clock() - asked_ns
        if entry is None:
            self._begin(_Asked(self, request, key, asked_ns, took_ns))
            return
        hit = _Asked(self, request, key, asked_ns, took_ns)
        hit.response = entry.response()
        self._due.append(hit)

    def take_place(self, request: Request) -> None:
        self._queue.take_place(request)

    def leave_place(self, request: Request) -> bool:
        return self._queue.leave_place(request)

    def cancel(self, request: Request) -> None:
        """Requests that are due end with the next poll."""
        leader = self._followed.get(request)
        if leader is not None:
            self._part(leader.followers.pop(request))
            if self._queue.leave_place(request):
                self._fail_cancelled(request)

    def leader_of(self, request: Request) -> Request:
        leader = self._followed.get(request)
        return request if leader is None else leader.request

    def poll(self) -> None:
        """Answers hits, and runs what can run."""
        self._poll_is_due = False
        if self._due:
            due, self._due = self._due, []
            for asked in due:
                request, response = asked.request, asked.response
                if response is not None:
                    self._statistics.record_hit(request, asked.asked_ns, asked.took_ns, self._clock())
                    if (latencies := self._delivery.latencies) is not None:
                        latencies.on_hit(asked.asked_ns - request.queue_start_ns, asked.took_ns)
                    self._delivery.pass_on(request, response)
                elif self._queue.leave_place(request):
                    self._go_on(asked)
        self._queue.poll()

    # Looking elsewhere

    async def _look_elsewhere(self, request: Request, asked_ns: int) -> None:
        """Makes a key that takes long, or asks a remote store; then the request goes on. Raises nothing."""
        asked = _Asked(self, request, None, asked_ns, 0)
        response: Response | None = None
        try:
            if is_quick(request):  # the store is elsewhere
                asked.key = key = key_of(self._identity, self._outputs, request)
            else:
                asked.key = key = await asyncio.to_thread(key_of, self._identity, self._outputs, request)
            entry = await self._cache.fetch(key) if self._local is None else self._local.get(key)
            if entry is not None:
                response = entry.response()
                if self._local is None:
                    entry.drop()
        except ValueError:
            pass
        except Exception:
            log.exception("the response cache failed for a request to model '%s', which is computed", self._name)
        asked.took_ns = self._clock() - asked_ns
        if not self._queue.leave_place(request):
            # The request has been answered: another client's request has taken its place, or the client has gone.
            if response is not None:
                drop_blocks(response.outputs)
        elif response is not None:
            asked.response = response
            self._due.append(asked)
        else:
            self._go_on(asked)
        self.poll_soon()

    def _fail_cancelled(self, request: Request) -> None:
        text = "Request was cancelled while it waited for the response cache"
        error = ServeError(Code.CANCELLED, request.id_prefix + text)
        self._delivery.fail((request,), error, CANCELLED)

    # Running

    def _begin(self, asked: _Asked) -> None:
        """Lets a request wait for the answer to an equal running one; else queues it.

        Raises ServeError if the queue is full.
        """
        request, key = asked.request, asked.key
        if key is None:
            self._queue.enqueue(request)
            return
        leader = None if asked.alone else self._running.get(key)
        if leader is not None and leader.asked_ns >= asked.asked_ns:
            leader = None
        request.on_response = asked.on_response
        try:
            if leader is None:
                self._queue.enqueue(request)
            else:
                self._queue.take_place(request)
        except BaseException:
            request.on_response = asked.reader
            raise
        if leader is not None:
            leader.followers[request] = asked
            self._followed[request] = leader
        elif self._cache.coalesces:
            self._running.setdefault(key, asked)

    def _go_on(self, asked: _Asked) -> None:
        """Begins with a request that is expected already: if the queue refuses it, it gets that as its answer."""
        request = asked.request
        if request.cancelled:
            self._fail_cancelled(request)
            return
        try:
            self._begin(asked)
        except ServeError as refusal:
            self._delivery.fail((request,), refusal, None)
        except Exception:
            log.exception("a request to model '%s' could not be queued", self._name)
            unexpected = internal("unexpected error while the request was handled; see the server's log")
            self._delivery.fail((request,), unexpected, None)

    def _part(self, follower: _Asked) -> None:
        request = follower.request
        del self._followed[request]
        request.on_response = follower.reader

    # Answers

    def on_answer(self, asked: _Asked, response: Response) -> None:
        """Passes an answer on: to a request that ran (it is kept), or to a follower that lost its place."""
        request, key = asked.request, asked.key
        leader = self._followed.pop(request, None)
        if leader is not None:
            del leader.followers[request]
            asked.reader(request, response)
            return
        assert key is not None
        began_ns = self._clock()
        if self._running.get(key) is asked:
            del self._running[key]
        given: CacheEntry | None = None
        # A response without outputs brings nothing, or has lost them: no request waited for it.
        if response.error is None and response.final and response.outputs:
            given = lent(response)
        # From here on the request has no followers: its reader may cancel any request.
        followers, asked.followers = asked.followers, {}
        for one in followers.values():
            self._part(one)
            if given is None:
                one.alone = not request.cancelled
                self._due.append(one)
            elif self._queue.leave_place(one.request):
                one.response = given.response()
                one.response.transient = response.transient
                self._due.append(one)
        if followers:
            self.poll_soon()
        if given is not None and response.transient:
            given.drop()
        elif given is not None:
            try:
                if not self._cache.keep(key, given):
                    self._tell_of_size(given.size)
            except Exception:
                log.exception("an answer of model '%s' could not be put into the response cache", self._name)
        took_ns = asked.took_ns + self._clock() - began_ns
        self._statistics.record_miss(took_ns)
        if (latencies := self._delivery.latencies) is not None:
            latencies.on_miss(took_ns)
        asked.reader(request, response)

    def _tell_of_size(self, size: int) -> None:
        """Warns once that an answer was too large."""
        if not self._told_of_size and self._local is not None:
            self._told_of_size = True
            log.warning(
                "an answer of model '%s' takes %d bytes in the response cache, which has %d in all: such answers are "
                "not kept. Give --cache-config=local,size= more, or take response_cache out of its config.pbtxt.",
                self._name,
                size,
                self._local.limit,
            )

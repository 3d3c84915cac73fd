"""The response cache as one model version uses it: which requests are answered from it, and what it is given.

Guarantees:
- a request that is answered from the cache touches neither scheduler nor instance. Its answer goes out at once where
  whoever asks is ready for that, else with the next `poll`, and in the model's order of answers where it keeps one
  (`preserve_ordering`);
- whatever is wrong with the store is a miss: the request goes on as if there were no cache. A request whose key takes
  long, or whose store is elsewhere, waits meanwhile, and can be cancelled;
- only successful, whole responses are kept (`keeper`);
- a request that refers to shared memory of its client goes past the cache: what its model reads there may be other than
  what its key was made of, and others would get the answer;
- a model that is loaded anew has other keys, so nothing that its predecessor said is served.

**Coalescing** (`coalesce=true`). While a request runs, equal ones wait for its answer and do not run. They are
answered like hits. Where the request fails they run themselves, each on its own, so nobody gets an error that was
somebody else's; where only its client has gone, one of them takes its place. A queue policy's timeout counts from when
a request is queued, so it does not count while it waits for another.

Statistics, as upstream: a hit is a success with a queue time and no computation; a miss counts when its answer is
there, with the times of lookup and insertion.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.latencies import Latencies
from stubserve.inference.request import CANCELLED, Request, Response
from stubserve.inference.statistics import ModelStatistics
from stubserve.response_cache.entry import Entry, lent
from stubserve.response_cache.key import is_quick, key_of
from stubserve.response_cache.store import ResponseCache
from stubserve.serving.keeper import Keeper

log = logging.getLogger("stubserve.cache")


class Answers(Protocol):
    """Who passes answers on, and counts requests that are to be answered."""

    @property
    def keeps_order(self) -> bool: ...

    def expect(self, request: Request) -> None: ...

    def pass_on(self, request: Request, response: Response) -> None: ...

    def fail(self, requests: Iterable[Request], error: ServeError, outcome: str | None) -> None: ...


class _Miss:
    """A request that runs because the cache had no answer; hears the answer before its reader does."""

    __slots__ = ("_cache", "followers", "key", "looked_up_ns", "reader", "request")

    def __init__(self, cache: ModelCache, request: Request, key: bytes, looked_up_ns: int) -> None:
        self._cache = cache
        self.request = request
        self.reader = request.on_response
        self.key = key
        self.looked_up_ns = looked_up_ns
        # Equal requests that wait for the answer: when each asked, and how long it took to look the answer up
        self.followers: dict[Request, tuple[int, int]] = {}

    def on_response(self, request: Request, response: Response) -> None:
        request.on_response = self.reader
        self._cache.on_answer(self, response)


class _Hit:
    """An answer that goes out with the next poll."""

    __slots__ = ("asked_ns", "request", "response", "took_ns")

    def __init__(self, request: Request, response: Response, asked_ns: int, took_ns: int) -> None:
        self.request = request
        self.response = response
        self.asked_ns = asked_ns
        self.took_ns = took_ns


class ModelCache:
    """The cache of one model version, between those who ask and its queue. Lives on the event loop.

    `queue` puts a request into the model's queue, or raises ServeError; `run` runs what can run (the model's own poll).
    """

    def __init__(
        self,
        name: str,
        identity: bytes,
        outputs: Sequence[str],
        cache: ResponseCache,
        answers: Answers,
        statistics: ModelStatistics,
        queue: Callable[[Request], None],
        run: Callable[[], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        # Fixed
        self._name = name
        self._identity = identity
        self._outputs = sorted(outputs)
        self._cache = cache
        self._local = cache.local
        self._keeper = Keeper(name, cache)
        self._answers = answers
        self._statistics = statistics
        self._queue = queue
        self._run = run
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.latencies: Latencies | None = None
        statistics.cached = True
        # What goes out with the next poll
        self._hits: list[_Hit] = []
        self._poll_is_due = False
        # Requests whose key or answer is being looked for elsewhere
        self._tasks: set[asyncio.Task[None]] = set()
        # With coalescing: what runs, by its key, and for whose answer a request waits
        self._running: dict[bytes, _Miss] = {}
        self._followed: dict[Request, _Miss] = {}

    # Requests

    def enqueue(self, request: Request, at_once: bool = False) -> bool:
        """Takes a request: it will be answered from the cache, or is queued. Raises ServeError as the queue does.

        With `at_once` what is found in no time is answered before this returns, unless other answers have to go out
        before it. Whether it is answered.
        """
        request.texts_as_json = False  # what is kept is for any client
        if request.regions is not None:
            self._queue(request)
            self._answers.expect(request)
            return False
        request.queue_start_ns = asked_ns = self._clock()
        local = self._local
        if local is None or not is_quick(request):
            self._answers.expect(request)
            task = self._loop.create_task(self._look_elsewhere(request, asked_ns))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return False
        try:
            key = key_of(self._identity, self._outputs, request, False)
        except ValueError:  # a parameter that nobody could look up
            self._queue(request)
            self._answers.expect(request)
            return False
        entry = local.get(key)
        now_ns = self._clock()
        took_ns = now_ns - asked_ns
        if entry is not None:
            self._answers.expect(request)
            if at_once and not self._answers.keeps_order:
                self._answer(request, entry.response(), asked_ns, took_ns, now_ns)
                return True
            self._hits.append(_Hit(request, entry.response(), asked_ns, took_ns))
        elif not self._follow(key, request, asked_ns, took_ns):
            self._begin(request, key, took_ns)
            self._answers.expect(request)
        else:
            self._answers.expect(request)
        return False

    def cancel(self, request: Request) -> None:
        """The client of a request is gone, which is marked as cancelled."""
        miss = self._followed.pop(request, None)
        if miss is not None:
            del miss.followers[request]
            self._fail_cancelled(request)

    def leader_of(self, request: Request) -> Request:
        """The request whose answer this one waits for, or itself."""
        miss = self._followed.get(request)
        return request if miss is None else miss.request

    def poll_soon(self) -> None:
        """Polls once for all that this turn of the event loop brings."""
        if not self._poll_is_due:
            self._poll_is_due = True
            self._loop.call_soon(self.poll)

    def poll(self) -> None:
        """Answers what the cache had, and runs what can run. Raises nothing."""
        self._poll_is_due = False
        if self._hits:
            hits, self._hits = self._hits, []
            for hit in hits:
                self._answer(hit.request, hit.response, hit.asked_ns, hit.took_ns, self._clock())
        self._run()

    def _answer(self, request: Request, response: Response, asked_ns: int, took_ns: int, now_ns: int) -> None:
        """Passes on a hit."""
        self._statistics.record_hit(request, asked_ns, took_ns, now_ns)
        if self.latencies is not None:
            self.latencies.on_hit(asked_ns - request.queue_start_ns, took_ns)
        self._answers.pass_on(request, response)

    # Looking elsewhere

    async def _look_elsewhere(self, request: Request, asked_ns: int) -> None:
        """Makes a key that takes long, asks a store that is elsewhere; then the request goes on. Raises nothing."""
        key: bytes | None = None
        entry: Entry | None = None
        try:
            if is_quick(request):  # the store is elsewhere
                key = key_of(self._identity, self._outputs, request)
            else:
                key = await asyncio.to_thread(key_of, self._identity, self._outputs, request)
            if self._local is not None:
                entry = self._local.get(key)
                response = None if entry is None else entry.response()
            else:
                entry = await self._cache.fetch(key)
                response = None if entry is None else entry.response()
                if entry is not None:
                    entry.drop()
        except ValueError:
            response = None
        except Exception:
            log.exception("the response cache failed for a request to model '%s', which is computed", self._name)
            response = None
        took_ns = self._clock() - asked_ns
        if response is not None:
            self._hits.append(_Hit(request, response, asked_ns, took_ns))
        elif request.cancelled:
            self._fail_cancelled(request)
            return
        elif key is None or not self._follow(key, request, asked_ns, took_ns):
            self._begin_late(request, key, took_ns)
        self.poll_soon()

    def _fail_cancelled(self, request: Request) -> None:
        error = request.refuse(Code.CANCELLED, "Request was cancelled while it waited for the response cache")
        self._answers.fail((request,), error, CANCELLED)

    # Running

    def _follow(self, key: bytes, request: Request, asked_ns: int, took_ns: int) -> bool:
        """Has a request wait for the answer to an equal one; False where there is none."""
        if not self._cache.coalesces:
            return False
        miss = self._running.get(key)
        if miss is None:
            return False
        miss.followers[request] = (asked_ns, took_ns)
        self._followed[request] = miss
        return True

    def _begin(self, request: Request, key: bytes, took_ns: int) -> _Miss:
        """Queues a request whose answer is to be kept. Raises ServeError."""
        miss = _Miss(self, request, key, took_ns)
        request.on_response = miss.on_response
        try:
            self._queue(request)
        except BaseException:
            request.on_response = miss.reader
            raise
        if self._cache.coalesces:
            self._running.setdefault(key, miss)
        return miss

    def _begin_late(self, request: Request, key: bytes | None, took_ns: int) -> _Miss | None:
        """Queues a request that is expected already, and so is answered where the queue does not take it."""
        try:
            if key is not None:
                return self._begin(request, key, took_ns)
            self._queue(request)
        except ServeError as refusal:
            self._answers.fail((request,), refusal, None)
        except Exception:
            log.exception("a request to model '%s' could not be queued", self._name)
            unexpected = internal("unexpected error while the request was handled; see the server's log")
            self._answers.fail((request,), unexpected, None)
        return None

    # Answers

    def on_answer(self, miss: _Miss, response: Response) -> None:
        """The answer to a request that ran: keeps it, and passes it on."""
        began_ns = self._clock()
        request = miss.request
        if self._running.get(miss.key) is miss:
            del self._running[miss.key]
        followers, miss.followers = miss.followers, {}
        answered: list[_Hit] = []
        if response.error is None and response.final and not response.empty:
            try:
                given = lent(response)
                answered = [_Hit(one, given.response(), asked, took) for one, (asked, took) in followers.items()]
                self._keeper.keep(miss.key, given)
            except Exception:
                log.exception("an answer of model '%s' could not be put into the response cache", self._name)
        took_ns = miss.looked_up_ns + self._clock() - began_ns
        self._statistics.record_miss(took_ns)
        if self.latencies is not None:
            self.latencies.on_miss(took_ns)
        miss.reader(request, response)
        if followers:
            for follower in followers:
                del self._followed[follower]
            if answered:
                self._hits += answered
            else:
                self._run_followers(miss, request.cancelled, followers)
            self.poll_soon()

    def _run_followers(self, miss: _Miss, gone: bool, followers: dict[Request, tuple[int, int]]) -> None:
        """Those who waited for an answer that failed run themselves, or, if only its client is `gone`, one of them."""
        while followers:
            request = next(iter(followers))
            _, took_ns = followers.pop(request)
            begun = self._begin_late(request, miss.key, took_ns)
            if gone and begun is not None and self._running.get(miss.key) is begun:
                begun.followers.update(followers)
                self._followed.update(dict.fromkeys(followers, begun))
                return

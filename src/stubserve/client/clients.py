"""The clients: a URL, `infer`, `frame`; one for threads, one for asyncio."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from stubserve.client.exchange import Exchange, Step, Steps
from stubserve.client.tensors import Shapes

T = TypeVar("T")
DEFAULT_LIMIT = 256 << 20
# A balancer sends all requests with the same value to one server (docs/deployment/several-servers.md)
SEQUENCE_HEADER = "x-sequence-id"


# gevent's event loops (hubs) of threads that have or had a tritonclient for HTTP. gevent does not end them with their
# threads, and each has four descriptors.
_hubs: list[tuple[threading.Thread, Any]] = []
_hubs_lock = threading.Lock()


@dataclass(frozen=True)
class Statistics:
    """A client's shared memory: blocks, how many of them are in use, and their bytes.

    `by_wire` is why tensors go over the wire, in the server's words; None if they do not.
    """

    blocks: int
    lent: int
    nbytes: int
    by_wire: str | None


class _Connected:
    """What both clients have. `_new_triton` makes a tritonclient; `_call` gives it a step."""

    _more = ""

    def __init__(
        self, url: str, *, limit: int = DEFAULT_LIMIT, headers: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        scheme, _, host = url.partition("://")
        if scheme not in ("http", "https", "grpc", "grpcs") or not host:
            raise ValueError(f"'{url}' is no URL of a server: write http://host:port, https://, grpc:// or grpcs://")
        if scheme.endswith("s"):
            options["ssl"] = True
        try:
            module = importlib.import_module(f"tritonclient.{scheme[:4]}")
            client = importlib.import_module(f"tritonclient.{scheme[:4]}{self._more}").InferenceServerClient
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'tritonclient[{scheme[:4]}]'") from error
        self._new_triton: Callable[[], Any] = lambda: client(host, **options)
        self._headers = dict(headers or {})
        self._exchange = Exchange(module, limit)

    def statistics(self) -> Statistics:
        return Statistics(*self._exchange.pool.counts(), self._exchange.by_wire)

    def _call(self, triton: Any, step: Step) -> Any:
        method, arguments = step
        # tritonclient puts headers of its own into the dict that it is given.
        headers = dict(self._headers)
        if arguments.get("sequence_id"):
            headers.setdefault(SEQUENCE_HEADER, str(arguments["sequence_id"]))
        return getattr(triton, method)(**{"headers": headers, **arguments})


class Client(_Connected):
    """A client for any number of threads, each of which gets a tritonclient of its own.

    `url` is `http://host:port`, or with `https`, `grpc` or `grpcs`. `limit` is how many bytes of shared memory the
    client may have; a tensor for which there is no room is sent. `headers` go with every call. Other options are those
    of tritonclient's `InferenceServerClient`. Raises ValueError for another kind of URL, and ImportError without the
    part of tritonclient for it.

    A client belongs to the process that made it. Close it, or use it in `with`: then the server lets go of its memory.
    """

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._of_thread = threading.local()
        # Kept until a thread has ended: a tritonclient that dies within its thread's end makes a new hub there.
        self._all: dict[threading.Thread, Any] = {}

    @property
    def triton(self) -> Any:
        """This thread's tritonclient, for all that is no inference."""
        if not hasattr(self._of_thread, "triton"):
            self._close_those_of(lambda thread: not thread.is_alive())
            self._of_thread.triton = self._all[threading.current_thread()] = self._new_triton()
            _remember_hub()
        return self._of_thread.triton

    def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        *,
        outputs: Iterable[str] | Shapes | None = None,
        version: str = "",
        **options: Any,
    ) -> dict[str, np.ndarray]:
        """Asks a model. Returns its outputs by their names.

        `inputs` are arrays by the names of the inputs, with the batch as their first dimension where the model has one.
        Those from `frame`, and those from earlier answers, are read where they lie. Others are copied into a block.
        Arrays below 64 KiB and arrays of strings are sent. Lists, numbers, texts, and arrays of another type become
        what the configuration says, if nothing but the precision of floats is lost; else ValueError names the value.

        `outputs` are the names of the outputs that are wanted, all of them if not given. An output of a fixed size is
        written into a block by the server, and the array is a view of it; keep the array for as long as you like. An
        output whose size the configuration leaves open (a dimension of -1 beside the batch), and strings, are sent,
        because the server needs the place before the model runs. If you know the largest shape of such an output, name
        it: `outputs={"Y": (100, 6)}`, with the batch. None instead of a shape stands for what the configuration says.

        Other options are those of tritonclient's `infer`: `sequence_id`, `priority`, `request_id` and so on. The
        sequence is in the header `x-sequence-id`, too, for balancers. Streams of decoupled models are not offered.
        Raises what tritonclient raises, and TypeError for a dtype that Triton does not have. An output that is larger
        than its place is an error of the server, which says both sizes.
        """
        return self._run(self._exchange.infer(model, inputs, outputs, version, options))

    @contextlib.contextmanager
    def frame(self, shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[np.ndarray]:
        """An array to write into, in memory that the server reads. What is in it beforehand is undefined.

        It stays valid after the `with` for as long as somebody holds it. While a request with it is under way, leave
        it alone. Where there is no shared memory it is an ordinary array, and is sent.
        """
        yield self._run(self._exchange.frame(shape, np.dtype(dtype)))

    def close(self) -> None:
        """Ends all connections. Arrays stay valid."""
        self._run(self._exchange.close())
        self._close_those_of(lambda _: True)

    def _close_those_of(self, ended: Callable[[threading.Thread], bool]) -> None:
        for thread in list(filter(ended, list(self._all))):
            triton = self._all.pop(thread, None)
            if triton is not None:
                triton.close()
        _end_hubs()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = self._call(self.triton, step)
                except BaseException as error:
                    _free(error)
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        except BaseException as error:
            _free(error)
            raise


class AsyncClient(_Connected):
    """The same for asyncio: `Client`, with `await` and `async with`. It belongs to one event loop.

    Copying an input into its block is done in the loop, about a millisecond for 6 MB. `frame` needs no copy.
    """

    _more = ".aio"
    _triton: Any = None

    @property
    def triton(self) -> Any:
        """The tritonclient, for all that is no inference. aiohttp wants it made within the loop."""
        if self._triton is None:
            self._triton = self._new_triton()
        return self._triton

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        *,
        outputs: Iterable[str] | Shapes | None = None,
        version: str = "",
        **options: Any,
    ) -> dict[str, np.ndarray]:
        """See `Client.infer`."""
        return await self._run(self._exchange.infer(model, inputs, outputs, version, options))

    @contextlib.asynccontextmanager
    async def frame(self, shape: tuple[int, ...], dtype: DTypeLike) -> AsyncIterator[np.ndarray]:
        """See `Client.frame`."""
        yield await self._run(self._exchange.frame(shape, np.dtype(dtype)))

    async def close(self) -> None:
        """Ends all connections. Arrays stay valid."""
        await self._run(self._exchange.close())
        if self._triton is not None:
            await self._triton.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._call(self.triton, step)
                except BaseException as error:
                    _free(error)
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        except BaseException as error:
            _free(error)
            raise


def _remember_hub() -> None:
    """Notes the hub of this thread, so that it can be ended once the thread has."""
    gevent = sys.modules.get("gevent")
    if gevent is None or importlib.import_module("gevent.monkey").is_module_patched("threading"):
        return  # threads that are greenlets share the hub of the real one
    with _hubs_lock:
        _hubs.append((threading.current_thread(), gevent.get_hub()))


def _end_hubs() -> None:
    """Ends the hubs of threads that have ended."""
    with _hubs_lock:
        ended = {id(hub): hub for thread, hub in _hubs if not thread.is_alive()}
        _hubs[:] = [(thread, hub) for thread, hub in _hubs if thread.is_alive()]
    for hub in ended.values():
        if hub.loop is not None:
            hub.destroy(destroy_loop=True)


def _free(error: BaseException) -> None:
    """Takes the variables out of the frames that an error came through.

    tritonclient and gevent hold some errors longer than they need to. These must not hold the blocks of a request.
    """
    traceback.clear_frames(error.__traceback__)

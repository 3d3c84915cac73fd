"""A model version that serves, as the rest of the server knows it, whatever is behind it.

Protocols, the registry, metrics, and models that call others speak to a `ServedModel`; only what loads models knows
which kind it is. `Waiter` and `BlockingCall` are its view of who waits for whom (`instances.waiting`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from stubserve.inference.latencies import Latencies
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.trace import ModelTracing


class InstanceFacts(NamedTuple):
    """The facts about a model's instance at one moment, for metrics and the status page.

    Sizes are bytes; `pid` is 0, and what belongs to a stub zero, while it has none. `state` is one of "starting",
    "ready", "asleep", "restarting", "failed", "draining" and "stopped". `restarts` counts the starts after a death,
    ever. `memory` belongs to the process alone, `arena` is shared memory that is committed for its outputs. `batches`
    and `requests` are those that the stub has, `executing_s` is for how many seconds it has been executing its batch.
    `error` is why it is not ready, empty if it is.
    """

    name: str
    state: str
    pid: int = 0
    restarts: int = 0
    memory: int = 0
    arena: int = 0
    batches: int = 0
    requests: int = 0
    executing_s: float = 0.0
    error: str = ""


class ServedModel(Protocol):
    """A model version that takes requests.

    `config` is the completed ModelConfig message. `load_seconds` is how long its load took. `namespace` is empty where
    models are told apart by their names. `identity` stands for configuration and files, where a shared response cache
    has to know; else it is empty.
    """

    name: str
    namespace: str
    version: int
    config: Any
    signature: Signature
    statistics: ModelStatistics
    latencies: Latencies | None
    tracing: ModelTracing
    load_seconds: float
    identity: bytes

    @property
    def key(self) -> str:
        """How it is kept apart from other models: the name, with the namespace in front if there is one."""

    # Requests

    def submit(self, request: Request) -> None:
        """Queues an admitted request; `request.on_response` gets the answer. Raises ServeError if it is not taken."""

    def enqueue(self, request: Request) -> None:
        """As `submit`, for a caller that polls when all that arrive together are queued."""

    def poll(self) -> None:
        """Runs what can run now. Raises nothing."""

    def cancel(self, request: Request) -> None:
        """The client of a submitted request is gone. It still gets its answer, sooner maybe."""

    @property
    def queued(self) -> int:
        """Requests that wait to be executed."""

    @property
    def under_way(self) -> int:
        """Requests that are not answered to their end."""

    # Readiness

    def down(self) -> bool:
        """Whether every request would be refused now."""

    def why_not_ready(self) -> str:
        """Empty if all of it is ready, else the reason for people."""

    def checks_readiness(self) -> bool:
        """Whether the model has a say in it, and `check_ready` takes time."""

    async def check_ready(self) -> str:
        """As `why_not_ready`, with what the model itself says. Raises nothing."""

    # What it rests on

    @property
    def needs(self) -> Collection[str]:
        """The names of the models without which it cannot serve."""

    def stands(self) -> bool:
        """Whether these are still the ones that it was loaded with."""

    def takers(self, request: Request | None) -> Sequence[Waiter]:
        """Who executes a request or, while nobody does, who may take it, now or when they have been restarted.

        None stands for a request that is still to be submitted.
        """

    def instance_facts(self) -> Sequence[InstanceFacts]:
        """Its own instances as they are now; none for one that rests on other models."""

    # The end

    def reserve(self) -> None:
        """Keeps it from being drained: the caller is going to submit something. Each call needs one `release`."""

    def release(self) -> None:
        """The end of a reservation."""

    async def drained(self, patience_s: float = 0.0) -> bool:
        """Waits until nothing is queued or executing, and nobody waits for `check_ready` to submit something.

        With a patience no longer than some batch has been executing for all of that time; False then.
        """

    async def stop(self, timeout_s: float) -> None:
        """Finalizes and ends what it runs on, by force after `timeout_s`; no request is taken from now on."""


class Waiter(Protocol):
    """One that takes requests and may wait for others meanwhile: an instance, or an ensemble."""

    @property
    def name(self) -> str: ...

    def has(self, request: Request) -> bool:
        """Whether it executes this request."""

    def waits_for(self) -> Sequence[BlockingCall]:
        """The calls that keep it from finishing what it executes; empty if it goes on by itself."""


class Takers(Protocol):
    """The target of a call: a model, as far as it matters which instances could answer."""

    def takers(self, request: Request | None) -> Sequence[Waiter]:
        """As of a `ServedModel`."""


class BlockingCall(Protocol):
    """A call that its caller waits for, or whatever else it cannot go on without."""

    @property
    def model(self) -> Takers: ...

    @property
    def request(self) -> Request | None: ...


class ModelFinder(Protocol):
    """Finds the models that ensembles, and models that call others, ask for."""

    def find(self, name: str, version: str) -> ServedModel:
        """The version of a model, the latest that is ready for an empty text. Raises ServeError."""

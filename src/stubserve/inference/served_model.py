"""A model version that serves, whatever kind it is: the interface for the rest of the server.

Protocols, the registry, metrics, and models that call others use a `ServedModel`; only the loading knows its kind.
`Waiter` and `BlockingCall` describe which caller waits for which instance (`instances.deadlock`).
"""

# Compiled by mypyc.
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

    Sizes are bytes; `pid` is 0, and a stub's figures are zero, while there is no stub. `state` is one of "starting",
    "ready", "asleep", "restarting", "failed", "draining" and "stopped". `restarts` counts all starts after a death.
    `memory` belongs to the process alone, `arena` is shared memory that is committed for its outputs. `batches` and
    `requests` are those that the stub has, `executing_s` is for how many seconds it has been executing its batch.
    `error` is why the instance is not ready, empty if it is ready.
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
    models are told apart by their names. `identity` stands for configuration and files, for a shared response cache;
    else it is empty.
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
        """The model's unique key: the name, with the namespace in front if there is one."""

    def takes_over_from(self, former: ServedModel) -> None:
        """Begins to serve in the place of `former`, which finishes its requests: sequences that run there go on."""

    # Requests

    def submit(self, request: Request) -> None:
        """Queues an admitted request; `request.on_response` gets the answer. Raises ServeError for a refusal."""

    def enqueue(self, request: Request) -> None:
        """As `submit`, for a caller that polls once all requests that arrived together are queued."""

    def poll(self) -> None:
        """Runs what can run now. Raises nothing."""

    def cancel(self, request: Request) -> None:
        """The client of a submitted request is gone. The request still gets its answer, perhaps sooner."""

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
        """Empty if the whole model is ready, else the reason, for people."""

    def checks_readiness(self) -> bool:
        """Whether the model itself decides about its readiness, so that `check_ready` takes time."""

    async def check_ready(self) -> str:
        """As `why_not_ready`, with the model's own answer. Raises nothing."""

    # Models that this one needs

    @property
    def needs(self) -> Collection[str]:
        """The names of the models that this one cannot serve without."""

    def has_same_members(self) -> bool:
        """Whether these are still the models that it was loaded with."""

    def waiters_for(self, request: Request | None) -> Sequence[Waiter]:
        """The instances that execute a request. If none does, those that may take it, now or after a restart.

        None stands for a request that is still to be submitted.
        """

    def instance_facts(self) -> Sequence[InstanceFacts]:
        """The current facts of its own instances; none for a model that runs on other models."""

    # The end

    def reserve(self) -> None:
        """Prevents the end of a drain: the caller is going to submit a request. Each call needs one `release`."""

    def release(self) -> None:
        """The end of a reservation."""

    async def drained(self, patience_s: float = 0.0) -> bool:
        """Waits until nothing is queued or executing, and no caller waits for `check_ready` to submit a request.

        With a patience, the wait ends with False once a batch has been executing for all of that time.
        """

    async def stop(self, timeout_s: float) -> None:
        """Finalizes and ends what the model runs on, by force after `timeout_s`. No request is taken from now on."""


class Waiter(Protocol):
    """An instance or an ensemble. It takes requests, and may wait for other models meanwhile."""

    @property
    def name(self) -> str: ...

    def has(self, request: Request) -> bool:
        """Whether the model executes this request."""

    def waits_for(self) -> Sequence[BlockingCall]:
        """The calls that this waiter cannot finish without; empty if it does not wait."""


class CallTarget(Protocol):
    """The target of a call: a model, reduced to the instances that could answer."""

    def waiters_for(self, request: Request | None) -> Sequence[Waiter]:
        """As of a `ServedModel`."""


class BlockingCall(Protocol):
    """A call that its caller waits for, or anything else that the caller cannot go on without."""

    @property
    def model(self) -> CallTarget: ...

    @property
    def request(self) -> Request | None: ...


class ModelFinder(Protocol):
    """Finds the models that ensembles, and models that call others, ask for."""

    def find(self, name: str, version: str) -> ServedModel:
        """The version of a model; for an empty text the latest ready one. Raises ServeError."""

"""The interface of a backend: functions of Triton's backend API, and what the server wants to know.

A stub has one model, and one or more instances of it. So these are called once in a process::

    initialize             the process is up
    model_initialize       the model's files are there to be read; its configuration may still change
      complete_config        only if `completes_config`; then the process ends, and another one serves, but for a
                             backend that `serves_after_completion`

and these once for each instance, but for `execute`, on what `for_instance` returns::

    for_instance           an object for the instance, which shares what the first three have made
    instance_initialize    the configuration is final; one instance after the other
      execute                again and again; `is_ready`, `cancel`, `revoke` meanwhile
    instance_finalize      no further batch will come; not after a load that failed

If one of them raises before the first `execute`, the load fails; a `Refusal` becomes the error as it is. The first
three run on the main thread. Each instance has a thread, the first one the main thread, where all of its functions run
except `is_ready` and `cancel`. A stub has several instances only where the backend's card says so (`Card.shares`).

An input that lies in the arena may be read until `execute` returns. A backend that keeps views for longer says so
through the batch's memory (see `runtime.batch`), and has dropped everything else that it was given.
"""

from __future__ import annotations

import copy
from typing import Dict, NamedTuple, Sequence

from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.host import Host
from stubserve_stub.wire.messages import Entry


class ModelFiles(NamedTuple):
    """Where a model version lies, and the program that runs it (empty for backends that need none).

    `file` is imported as `module`, with `paths` at the end of `sys.path`.
    """

    version_dir: str
    file: str
    module: str
    paths: Sequence[str]


class InstanceSetup(NamedTuple):
    """What an instance gets. `arguments` are the seven of Triton's `initialize`, with the configuration as JSON."""

    name: str
    arguments: Dict[str, str]
    outputs: Sequence[str]
    decoupled: bool


class Backend:
    """All functions but `execute` are optional."""

    host: Host
    # Known after `model_initialize`: whether to call `complete_config`, and which methods of the contract the model has
    completes_config: bool = False
    serves_after_completion: bool = False
    methods: Sequence[str] = ()
    # Known after `instance_initialize`: whether to call `is_ready`, and how many requests may be open at a time, 0 for
    # any number: with so many the instance is given no further batch until one has had its final response
    checks_readiness: bool = False
    streams: int = 0

    def initialize(self, host: Host) -> None:
        self.host = host

    def model_initialize(self, model: ModelFiles) -> None:
        pass

    def complete_config(self, model: str, config_json: str) -> str:
        """The configuration of the model named `model`, completed; JSON both ways."""
        raise NotImplementedError

    def for_instance(self, host: Host) -> Backend:
        made = copy.copy(self)
        made.host = host
        return made

    def instance_initialize(self, instance: InstanceSetup) -> None:
        pass

    def execute(self, batch: Batch) -> Sequence[Entry]:
        """The entries of the batch's RESULT, one for each slot, as `wire.messages` has them.

        An exception is the answer to all requests of the batch. It calls `batch.computed()` before it encodes.
        """
        raise NotImplementedError

    def instance_finalize(self) -> None:
        pass

    def is_ready(self) -> bool:
        """Whether the model would accept a request now. On a thread of its own; an exception is the reason of a no."""
        return True

    def cancel(self, number: int, indices: Sequence[int]) -> None:
        """The clients of these requests of a batch are gone. May come after its execution, and on the control thread.

        The batch's own `cancelled` has them already.
        """

    def revoke(self, number: int) -> None:
        """The requests of this batch have been answered with an error: nothing more may be sent for them."""

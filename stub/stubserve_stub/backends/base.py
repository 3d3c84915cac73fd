"""What a stub asks of a backend: the seven functions of Triton's backend API, and what the server wants to know.

A stub runs one instance of one model, so each function is called at most once in a process, but for `execute`::

    initialize             the process is up
    model_initialize       the model's files are there to be read; its configuration may still change
      complete_config        only if `completes_config`; then the process ends, and another one serves, but for a
                             backend that `serves_after_completion`
    instance_initialize    the configuration is final
      execute                again and again; `is_ready`, `cancel`, `revoke` meanwhile
    instance_finalize, model_finalize, finalize     no further batch will come

The first three may raise anything, and fail the load; `Refusal` does so in its own words. The last three are all
called, whatever they raise, but not after a load that failed. All run on the main thread but `is_ready` and `cancel`.

An input that lies in the arena may be looked at until `execute` returns. A backend that keeps views beyond that says so
through the batch's memory (see `runtime.batch`), and everything else that it was given it has dropped.
"""

from __future__ import annotations

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
    """What an instance is told: its name, the seven arguments of Triton's `initialize` (the configuration as JSON is
    `model_config`), the names of the model's outputs, and whether it answers with any number of responses."""

    name: str
    arguments: Dict[str, str]
    outputs: Sequence[str]
    decoupled: bool


class Backend:
    """One backend in one stub. All functions but `execute` are optional."""

    host: Host
    # Known after `model_initialize`: whether `complete_config` is to be asked, and what of the contract the model has
    completes_config: bool = False
    serves_after_completion: bool = False
    methods: Sequence[str] = ()
    # Known after `instance_initialize`: whether `is_ready` is to be asked
    checks_readiness: bool = False

    def initialize(self, host: Host) -> None:
        self.host = host

    def model_initialize(self, model: ModelFiles) -> None:
        pass

    def complete_config(self, model: str, config_json: str) -> str:
        """The configuration of the model named `model`, completed; JSON both ways."""
        raise NotImplementedError

    def instance_initialize(self, instance: InstanceSetup) -> None:
        pass

    def execute(self, batch: Batch) -> Sequence[Entry]:
        """The entries of the batch's RESULT, one for each slot, as `wire.messages` has them.

        What it raises is the answer to all of its requests. It calls `batch.computed()` before it encodes.
        """
        raise NotImplementedError

    def instance_finalize(self) -> None:
        pass

    def model_finalize(self) -> None:
        pass

    def finalize(self) -> None:
        pass

    def is_ready(self) -> bool:
        """Whether the model would take a request now. On a thread of its own; what it raises is the reason of a no."""
        return True

    def cancel(self, number: int, indices: Sequence[int]) -> None:
        """The clients of these requests of a batch are gone, also after it has been executed. On the control thread.

        The batch's own `cancelled` has them already.
        """

    def revoke(self, number: int) -> None:
        """All requests of this batch are answered with an error: nothing more may be sent for them."""

"""Starting stubs for one version of one model: the boot message, the handshake, the arguments of `initialize`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stubserve_stub.backends.cards import PYTHON, built_in, card_of

from stubserve.environments.environment import Environment
from stubserve.instances.execution_watch import execute_timeout
from stubserve.instances.seat import Seat
from stubserve.instances.services import Services
from stubserve.instances.stub import Stub
from stubserve.instances.stub_devices import NO_GPU_MEMORY, GpuMemory
from stubserve.memory.server_memory import Memory
from stubserve.model_config.complete import InstanceSpec


@dataclass(frozen=True)
class Program:
    """What a stub runs: a backend; for Python a file too, its module's name, and folders for the end of `sys.path`.

    `file` is None for a built-in backend without a file. `runtime` comes from the served configuration.
    `default_environment` is the packed environment of a backend written in Python, for models that name none.
    `settings` are the --backend-config values for the backend.
    """

    file: Path | None
    module: str = ""
    search_path: tuple[Path, ...] = ()
    runtime: str = ""
    default_environment: Path | None = None
    backend: str = PYTHON
    settings: Mapping[str, str] = field(default_factory=dict)


class Launcher:
    """Makes stubs for the model version in `version_dir`.

    With `terminal` one stub has the server's terminal, for a debugger. `threads` limits the threads of packages that
    read no variables of the environment (0: no limit). `execute_timeout_s` is the limit of an `execute` if the
    model sets none (0: no limit); `check_outputs` is which answers are compared with the configuration: never, first or
    always. `gpu_memory` is what tensors may lie on beside the arena. `instances_per_stub` is for each kind of instance
    how many may share a stub, 1 where it is missing.
    """

    def __init__(
        self,
        memory: Memory,
        environment: Environment,
        model_dir: Path,
        version_dir: Path,
        program: Program,
        services: Services,
        terminal: bool = False,
        threads: int = 0,
        execute_timeout_s: float = 0.0,
        check_outputs: str = "never",
        gpu_memory: GpuMemory = NO_GPU_MEMORY,
        instances_per_stub: Mapping[str, int] | None = None,
    ) -> None:
        self._memory = memory
        self._environment = environment
        self._model_dir = model_dir
        self.version_dir = version_dir
        self.program = program
        self._services = services
        self._terminal = terminal
        self._threads = threads
        self._execute_timeout_s = execute_timeout_s
        self._check_outputs = check_outputs
        self._gpu_memory = gpu_memory
        self.instances_per_stub = instances_per_stub or {}

    def boot(self, instance: str) -> Stub:
        """A stub that is importing the model. Raises ServeError if no process can be started."""
        # A model in Python may use any of the packages that those of stubserve limit.
        cards = [*built_in().values(), card_of(self.program.backend)]
        return Stub(
            instance,
            self._environment,
            self._memory,
            {
                "instance": instance,
                "backend": cards[-1].program,
                "settings": dict(self.program.settings),
                "model_file": str(self.program.file or ""),
                "module": self.program.module,
                "paths": [str(folder) for folder in self.program.search_path],
                "version_dir": str(self.version_dir),
                "threads": self._threads,
                "limits_threads": list(dict.fromkeys(card.limits_threads for card in cards if card.limits_threads)),
                "terminal": self._terminal,
                "check_outputs": self._check_outputs,
            },
            log_from_stub,
            self._services,
            self._terminal,
            self._gpu_memory,
        )

    async def initialize(self, stub: Stub, spec: InstanceSpec, config: Any, config_json: str) -> Seat:
        """Initializes an instance in a stub that has imported the model; `config_json` is args["model_config"].

        Returns its seat. Raises ServeError with the model's own error.
        """
        arguments = initialize_arguments(spec, config.name, config_json, self._model_dir, self.version_dir.name)
        outputs = [output.name for output in config.output]
        decoupled = config.model_transaction_policy.decoupled
        limit = execute_timeout(config, self._execute_timeout_s)
        seat = stub.seat(spec.name)
        await seat.initialize(arguments, outputs, decoupled)
        seat.watch.limit(limit)
        return seat


def initialize_arguments(
    spec: InstanceSpec, model: str, config_json: str, model_dir: Path, version: str
) -> dict[str, str]:
    return {
        "model_config": config_json,
        "model_instance_kind": spec.kind,
        "model_instance_name": spec.name,
        "model_instance_device_id": str(spec.device_id),
        "model_repository": str(model_dir),
        "model_version": version,
        "model_name": model,
    }


_LEVELS = {0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR, 3: logging.DEBUG}


def log_from_stub(message: dict[str, Any]) -> None:
    """Writes a model's log line as if it were the server's, with the model's file and line.

    A line of the stub's own has the number 0: no file of the model stands there.
    """
    logger = logging.getLogger("stubserve.model" if message["line"] else "stubserve.stub")
    level = _LEVELS[message["level"]]
    if logger.isEnabledFor(level):
        record = logger.makeRecord(
            logger.name,
            level,
            message["file"],
            message["line"],
            message["message"],
            (),
            None,
            extra={"model_line": True, "fields": {"id": message["request_id"]} if message.get("request_id") else {}},
        )
        logger.handle(record)

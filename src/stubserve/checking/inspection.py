"""Importing one model in its environment, by the first steps of a load, and the findings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from stubserve.environments.resolve import Environments
from stubserve.instances.launcher import Launcher
from stubserve.instances.services import Services
from stubserve.instances.stub_process import own_memory
from stubserve.loading.program import environment_of, find_program
from stubserve.memory.server_memory import Memory
from stubserve.model_config.complete import normalise
from stubserve.model_config.proto import ModelConfig
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.logs import LogSettings
from stubserve.repository.folder import ModelFolder, available_versions, check_model_name, read_config
from stubserve.repository.registry import Registry
from stubserve.settings.groups import LoggingSettings

_ARENA_BYTES = 64 << 20


@dataclass(frozen=True)
class Finding:
    """The findings, and `rows` that show them to people. `environment` is its folder, empty for the server's own.

    `file` is None for a built-in backend, which needs none; `methods` are those of the contract.
    """

    backend: str
    file: Path | None
    environment: str
    methods: tuple[str, ...]
    rows: dict[str, str]


async def inspect(path: Path, backend_directory: Path, environment_cache: Path | None = None) -> Finding:
    """Imports the newest version of the model in the folder `path`, which is absolute and without links.

    Raises ServeError with the error that would fail its load.
    """
    check_model_name(path.name)
    folder = ModelFolder(path.name, path, path.parent)
    config = normalise(read_config(folder) or ModelConfig(), folder.name, path)
    version = available_versions(folder, config)[-1]
    program = find_program(config, path, version, backend_directory)
    environment = await environment_of(program, Environments(environment_cache), config, path)
    services = Services(Registry(), LogSettings(LoggingSettings()), MetricRegistry({}))
    launcher = Launcher(Memory(_ARENA_BYTES), environment, path, folder.version_path(version), program, services)
    start = time.monotonic()
    stub = launcher.boot(f"{folder.name}_0")
    try:
        await stub.handshake.imported()
        elapsed = time.monotonic() - start
        memory = own_memory(stub.pid)
    finally:
        await stub.kill()
    facts = stub.handshake.facts
    methods = tuple(facts["methods"])
    file, contract = str(program.file), f"TritonPythonModel with {', '.join(methods) or 'no methods'}"
    if program.file is None:
        file = contract = f"none, the backend '{program.backend}' needs none"
    import_s = facts["import_ns"] / 1e9
    rows = {
        "model": f"{folder.name}, version {version}",
        "file": file,
        "environment": environment.prefix or "the server's own",
        "interpreter": facts["executable"],
        "python": f"{facts['implementation']} {facts['python']}",
        "numpy": facts["numpy"],
        "class": contract,
        "import time": f"{import_s:.3f} s, after {max(elapsed - import_s, 0.0):.3f} s until the stub was up",
        "memory": f"{memory / 1e6:.1f} MB after the import",
    }
    return Finding(program.backend, program.file, environment.prefix, methods, rows)

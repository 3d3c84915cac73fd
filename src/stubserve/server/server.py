"""The server without its front ends: its models and all that they share."""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stubserve import __version__
from stubserve.api.access import KINDS, OWNER
from stubserve.api.fair_queues import OFF, FairQueues
from stubserve.api.management import header_forwarding
from stubserve.connections.receive_buffers import ReceiveBuffers
from stubserve.connections.slow_clients import RequestPace, SlowClients
from stubserve.errors import STANDARD, ServeError, Statuses, invalid, unavailable
from stubserve.http.access import http_access
from stubserve.http.json.process import JsonProcess
from stubserve.inference.long_work import Offload
from stubserve.inference.served_model import ServedModel
from stubserve.instances.confinement import confinement
from stubserve.instances.janitor import Janitor
from stubserve.instances.services import Services
from stubserve.loading.control import ModelControl
from stubserve.loading.loader import Loader
from stubserve.memory.server_memory import Memory
from stubserve.observability import logs
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.families import RESERVED
from stubserve.observability.metrics import MachineMetrics, ServerMetrics
from stubserve.parts import Find, Part, Sample, is_installed, not_installed, parts_of, require
from stubserve.repository.folder import list_names
from stubserve.repository.registry import UNLOADED, Registry, VersionState
from stubserve.settings.groups import EXPLICIT, NONE, POLL, Settings

if TYPE_CHECKING:
    # What is off is not imported.
    from stubserve.api.tokens import AccessTokens
    from stubserve.memory.client_regions import ClientRegions
    from stubserve.rate_limiter.limiter import RateLimiter
    from stubserve.response_cache.store import ResponseCache

log = logging.getLogger("stubserve.server")


class Server:
    """One server: its models and shared memory, and all that the protocols need. Raises OSError, Unusable."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.parts: Sequence[Part] = parts_of(settings)
        self.log_settings = logs.configure(settings.logging)
        self.name = settings.id
        self.version = __version__
        # Access, and the limits of clients
        auth, clients = settings.auth, settings.clients
        self.tokens = None if auth.token_file is None else _tokens(auth.token_file)
        self.owner = os.environ.pop(OWNER, "").encode()
        self.http_access = http_access(settings.http.restricted, self.tokens, auth.open_kinds, self.owner)
        self.http_forwarding = header_forwarding(settings.http.header_forward_pattern)
        self.max_input_size = settings.http.max_input_size
        Statuses.are_standard = settings.http.status == STANDARD
        pace = RequestPace(clients.min_rate, clients.request_timeout_secs)
        self.slow_clients = SlowClients(pace, clients.send_timeout_secs, clients.idle_timeout_secs)
        self.max_connections: int = clients.max_connections
        self.fair_queues = None if clients.fair_queues == OFF else FairQueues(clients.fair_queues)
        # Shared memory, and the means to make room in it
        self.memory = Memory(settings.shm_limit)
        self.memory.make_room = self._make_room
        self.block = self.memory.block
        self.store = self.memory.store
        self.heap = self.memory.heap
        self.regions = _client_regions() if clients.shm else None
        cache = self.part("response_cache") if settings.cache.name else None
        self.cache: ResponseCache | None = None if cache is None else cache.open(self.memory)
        self.receive_buffers = ReceiveBuffers(self.memory, self.slow_clients, settings.connection_share_bytes)
        self.offload = Offload()
        self.large_json = JsonProcess(self.memory.block)
        # State: its gRPC port, whether it is about to stop, and whether it has; `drain` begins that in an own process
        self.grpc_port = 0
        self.loaded = False
        self.failed = False
        self.leaves = False
        self.drain: Callable[[], None] | None = None
        self.exiting = False
        self._registry = Registry(settings.repository.namespacing, names_others=self.http_access is None)
        # The model version that a question is about, which costs nothing, and the one for an inference request; both by
        # name and version. Raise ServeError. When the server stops they refuse everything.
        self.known_model = self._registry.find
        self.find_model: Find = self._registry.find
        for part in self.parts:
            self.find_model = part.finder(self.find_model)
        custom = MetricRegistry(RESERVED)
        measured = settings.metrics
        interval_s = measured.interval_ms / 1000
        machine = MachineMetrics(interval_s, measured.allow_cpu)
        self.metrics = ServerMetrics(
            self._registry.serving, measured.latencies, machine, custom, self.memory, self._samples
        )
        self._janitor = Janitor()
        self._confinement = confinement(settings.instances)
        self._control = self._model_control(custom)

    def _model_control(self, custom: MetricRegistry) -> ModelControl:
        """The model control; the models' own metrics live in `custom`."""
        settings = self.settings
        limits = settings.rate_limit
        checks = settings.repository.notices_changes and is_installed("commands")
        given = {(name, device): count for name, count, device in limits.resources}
        loader = Loader(
            settings.instances,
            self.memory,
            completes=not settings.repository.disable_auto_complete,
            latencies=settings.metrics.latencies if settings.metrics.allow else None,
            cache=self.cache,
            limiter=_rate_limiter(given) if limits.on else None,
            # With --dev the check of the saved files reports them.
            hints=not checks,
            step=self._load_step,
        )
        services = Services(
            self._registry,
            self.log_settings,
            custom,
            janitor=self._janitor,
            confinement=self._confinement,
            client_regions=settings.clients.shm,
        )
        return ModelControl(
            settings.repository,
            loader,
            self._registry,
            services,
            settings.exit_timeout_secs,
            checks=_check_command(settings) if checks else (),
        )

    async def _load_step(self, model: ServedModel, folder: Path) -> None:
        """What parts do with a model at its load. Raises ServeError."""
        for part in self.parts:
            await part.load(model, folder)

    def part(self, name: str) -> Any:
        """The part in the folder of this name. Raises ServeError."""
        for part in self.parts:
            if part.name == name:
                return part
        raise not_installed(name)

    async def load(self) -> bool:
        """Loads the models of the start; returns whether all are loaded. Raises ServeError if a repository cannot be
        read.

        After that error the server is neither live nor ready, and has no models.
        """
        for part in self.parts:
            await part.start()
        try:
            await asyncio.to_thread(_check_debugged, self.settings)
            complete = await self._control.load_all()
        except ServeError:
            self.failed = True
            self.known_model = self.find_model = _find_before_start
            raise
        self.loaded = True
        return complete

    def serving(self) -> list[ServedModel]:
        """Every model version that takes requests."""
        return self._registry.serving()

    def leaving(self) -> list[ServedModel]:
        return self._control.leaving()

    @property
    def has_models(self) -> bool:
        """Whether there is a model, in any state, or may be one later: by a load, or in a polled repository."""
        return bool(self._registry.models) or self.settings.repository.control_mode in (EXPLICIT, POLL)

    @property
    def registry(self) -> Registry:
        """The models. Raises ServeError if the server could not be started."""
        if self.failed:
            raise _not_started()
        return self._registry

    @property
    def control(self) -> ModelControl:
        """Loads and unloads models. Raises ServeError if the server could not be started."""
        if self.failed:
            raise _not_started()
        return self._control

    async def ready(self) -> bool:
        """Whether the server is ready in the sense of /v2/health/ready."""
        if not self.loaded or self.leaves:
            return False
        if not self.settings.strict_readiness:
            return True
        for entry in list(self._registry.models.values()):
            # As upstream, a model whose configuration cannot be used is no model that could be ready.
            if not entry.versions and entry.is_empty:
                return False
            for version in list(entry.versions.values()):
                if version.reason == UNLOADED:
                    continue
                if (
                    version.state is not VersionState.READY
                    or version.model is None
                    or await version.model.check_ready()
                ):
                    return False
        return True

    def _samples(self) -> Iterator[Sample]:
        """Measurements of the server as a whole."""
        tokens = self.tokens
        yield "stubserve_log_lines_lost_total", (), self.log_settings.lines_lost()
        yield "stubserve_token_file_reads_total", (), 0 if tokens is None else tokens.epoch - 1
        yield "stubserve_token_file_failures_total", (), 0 if tokens is None else tokens.failures
        for part in self.parts:
            yield from part.samples()

    def _make_room(self) -> bool:
        """Makes room in shared memory for a request; returns False if there is none to gain."""
        # Cached answers go before answers with a waiting client.
        return (self.cache is not None and self.cache.give_way()) or self.slow_clients.make_room()

    async def give_up_changes(self) -> None:
        """Ends loads that are under way: clients waiting for a load must not hold up those waiting for inference."""
        await self._control.give_up_changes()

    async def end_debugged(self) -> None:
        """Ends the models in a debugger: they may stand at a breakpoint, and nothing continues them from there."""
        debugged = self.settings.instances
        models = [model for model in self.serving() if debugged.gives_terminal(model.name) and model.under_way]
        await asyncio.gather(*(model.stop(0) for model in models))

    async def stop(self, timeout_s: float | None = None) -> None:
        """Lets running requests finish, finalizes the models, ends the stubs; within --exit-timeout-secs by default."""
        self.exiting = True
        self.known_model = self.find_model = _find_at_end
        await self._control.stop(self.settings.exit_timeout_secs if timeout_s is None else timeout_s)
        await self._janitor.stop()
        await asyncio.to_thread(self._confinement.close)
        self.large_json.close()
        if self.regions is not None:
            self.regions.close()
        for part in self.parts:
            await part.close()
        self.offload.close()


def _check_debugged(settings: Settings) -> None:
    """Raises ServeError INVALID_ARG if --debug-model names a model that is missing and cannot come later."""
    names = settings.instances.debug_models
    if not names or settings.repository.control_mode != NONE:
        return
    try:
        known = list_names(settings.repository.paths)
    except ServeError:
        return  # the load reports the reason
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean '{close[0]}'?" if close else ""
            raise invalid(f"--debug-model={name}: there is no model of that name{meant}")


def _tokens(file: Path) -> AccessTokens:
    from stubserve.api.tokens import AccessTokens

    return AccessTokens(file, KINDS)


def _client_regions() -> ClientRegions:
    from stubserve.memory.client_regions import ClientRegions

    return ClientRegions()


def _rate_limiter(resources: dict[tuple[str, int | None], int]) -> RateLimiter:
    require("rate_limiter")
    from stubserve.rate_limiter.limiter import RateLimiter

    return RateLimiter(resources)


def _find_at_end(name: str, version: str) -> ServedModel:
    raise unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests")


def _find_before_start(name: str, version: str) -> ServedModel:
    raise _not_started()


def _not_started() -> ServeError:
    return unavailable("Server not ready")


def _check_command(settings: Settings) -> list[str]:
    """The command that checks the repositories as they are served."""
    return [
        *(sys.executable, "-m", "stubserve", "check"),
        *(str(path.absolute()) for path in settings.repository.paths),
        f"--backend-directory={settings.instances.backend_directory}",
        f"--repoagent-directory={settings.repository.agent_directory}",
        f"--gpu-fallback={'cpu' if settings.repository.gpu_to_cpu else 'none'}",
    ]

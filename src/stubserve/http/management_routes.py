"""The management routes: what they do, and the JSON bodies that they read. All texts are upstream's."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stubserve.api import management
from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError, internal, invalid, malformed, unavailable
from stubserve.http.asgi_request import QUESTION_BYTES, body_of, json_response
from stubserve.http.json.values import ODD_BYTES, UNSET, find, is_uint, parse_json
from stubserve.inference.served_model import ServedModel
from stubserve.memory.regions import disabled
from stubserve.model_config.render import model_metadata, to_json_dict
from stubserve.observability.logs import FORMATS

_UINT32_MAX = (1 << 32) - 1
_FILE = "file:"
_MOST_VALUES = 100_000
_PIECE_BYTES = 1 << 18


class ManagementRoutes:
    """The handlers. Each either returns a response or raises ServeError."""

    def __init__(self, server: ServerFacts) -> None:
        self._server = server

    # Health

    async def live(self, request: Request) -> Response:
        return Response(b"", 200 if management.live(self._server) else 400)

    async def ready(self, request: Request) -> Response:
        management.refuse_while_exiting(self._server)
        return Response(b"", 200 if await self._server.ready() else 400)

    async def drain(self, request: Request) -> Response:
        management.drain(self._server)
        return Response(b"")

    async def model_ready(self, request: Request) -> Response:
        reason = await self._model(request).check_ready()
        if reason:
            raise invalid(f"Model version not ready: {reason}")
        return Response(b"")

    # Metadata

    async def server_metadata(self, request: Request) -> Response:
        return json_response(
            {
                "name": self._server.name,
                "version": self._server.version,
                "extensions": management.extensions(self._server),
            }
        )

    async def metadata(self, request: Request) -> Response:
        model = self._model(request)
        versions = management.metadata_versions(self._server, model, request.path_params.get("version", ""))
        return json_response(model_metadata(model.config, versions))

    async def config(self, request: Request) -> Response:
        return json_response(to_json_dict(self._model(request).config))

    # Statistics and repository

    async def statistics(self, request: Request) -> Response:
        params = request.path_params
        rows = management.statistics(self._server.registry, params.get("model", ""), params.get("version", ""))
        return json_response({"model_stats": rows})

    async def index(self, request: Request) -> Response:
        async with body_of(request, self._server, QUESTION_BYTES) as body:
            only_ready = find(parse_json(body, ODD_BYTES), "ready") if body else UNSET
        if only_ready is UNSET:
            only_ready = False
        elif not isinstance(only_ready, bool):
            raise invalid("Invalid value for 'ready': expected a boolean")
        return json_response(await self._server.control.index(only_ready))

    async def repository_by_name(self, request: Request) -> Response:
        raise management.no_repository_name()

    async def load(self, request: Request) -> Response:
        async with body_of(request, self._server) as body:
            config, files = await asyncio.to_thread(_load_parameters, body)
        await self._server.control.load(request.path_params["model"], config, files)
        return Response(b"")

    async def unload(self, request: Request) -> Response:
        async with body_of(request, self._server, QUESTION_BYTES) as body:
            unload_dependents = _unload_dependents(body)
        await self._server.control.unload(request.path_params["model"], unload_dependents)
        return Response(b"")

    async def log_settings(self, request: Request) -> Response:
        return json_response(self._server.log_settings.to_dict())

    async def update_log_settings(self, request: Request) -> Response:
        async with body_of(request, self._server, QUESTION_BYTES) as body:
            changes = _log_settings(body)
        self._server.log_settings.update(changes)
        return await self.log_settings(request)

    async def trace_settings(self, request: Request) -> Response:
        model = management.traced_model(self._server, request.path_params.get("model", ""))
        return json_response(_shown(management.tracing(self._server).to_dict(model)))

    async def update_trace_settings(self, request: Request) -> Response:
        model = management.traced_model(self._server, request.path_params.get("model", ""))
        async with body_of(request, self._server, QUESTION_BYTES) as body:
            changes = _trace_settings(body)
        management.tracing(self._server).update(changes, model)
        return await self.trace_settings(request)

    # Shared memory of clients

    async def region_status(self, request: Request) -> Response:
        return json_response(management.region_rows(self._server, _region(request)))

    async def cuda_region_status(self, request: Request) -> Response:
        return json_response(management.region_rows(self._server, _region(request), on_device=True))

    async def register_region(self, request: Request) -> Response:
        name = _region(request)
        async with body_of(request, self._server, QUESTION_BYTES) as body:
            if self._server.regions is None:
                raise disabled()
            if not name:
                raise invalid("'region name' is necessary to register system shared memory region")
            management.register_region(self._server, name, *_region_parameters(body))
        return Response(b"", media_type="application/json")

    async def register_cuda_region(self, request: Request) -> Response:
        name = _region(request)
        async with body_of(request, self._server, QUESTION_BYTES) as body:
            if self._server.regions is not None and not name:
                raise invalid("'region name' is necessary to register cuda shared memory region")
            regions = management.cuda_regions(self._server, name)
            await regions.register_on_device(name, *_cuda_region_parameters(body))
        return Response(b"", media_type="application/json")

    async def unregister_region(self, request: Request) -> Response:
        async with body_of(request, self._server, QUESTION_BYTES):
            management.unregister_region(self._server, _region(request))
        return Response(b"", media_type="application/json")

    async def unregister_cuda_region(self, request: Request) -> Response:
        async with body_of(request, self._server, QUESTION_BYTES):
            management.unregister_region(self._server, _region(request), on_device=True)
        return Response(b"", media_type="application/json")

    def _model(self, request: Request) -> ServedModel:
        return self._server.known_model(request.path_params["model"], request.path_params.get("version", ""))


# Of a cudaIpcMemHandle_t
CUDA_HANDLE_BYTES = 64


def _region(request: Request) -> str:
    name: str = request.path_params.get("region", "")
    return name


def _load_parameters(body: bytes) -> tuple[str | None, dict[str, bytes]]:
    """The configuration (JSON text) if the body has one, and the files by path. An empty body has neither.

    Raises ServeError with upstream's texts. Damaged base64 is refused; upstream reads as much of it as it can.
    """
    values = 0
    for at in range(0, len(body), _PIECE_BYTES):
        piece = body[at : at + _PIECE_BYTES]
        # Files are long texts without any of these. Reading many values holds up all other requests.
        values += sum(map(piece.count, (b",", b"[", b"{", b"\\")))
        if values > _MOST_VALUES:
            raise invalid(f"the load request has more than {_MOST_VALUES} values and escaped characters")
    parameters = find(parse_json(body), "parameters") if body else UNSET
    if parameters is UNSET:
        return None, {}
    if not isinstance(parameters, dict):
        raise malformed("attempt to get members for non-object")
    config: str | None = None
    files = {}
    for name, value in parameters.items():
        if not isinstance(value, str):
            raise _wrong("string")
        if name == "config":
            config = value
        elif name.startswith(_FILE):
            files[name.removeprefix(_FILE)] = _from_base64(name, value)
        else:
            raise internal("unexpected error on creating Triton parameter")
    return config, files


def _unload_dependents(body: bytes) -> bool:
    """Whether to unload the members of an ensemble as well. A body without sense is a no, as upstream."""
    try:
        parameters = find(parse_json(body, ODD_BYTES), "parameters") if body else UNSET
    except ServeError:
        return False
    return isinstance(parameters, dict) and parameters.get("unload_dependents") is True


def _from_base64(name: str, text: str) -> bytes:
    """Decodes base64, with or without line breaks and padding."""
    letters = "".join(text.split()).rstrip("=")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except ValueError as error:
        raise invalid(f"load parameter '{name}' is no base64: {error}") from None


def _log_settings(body: bytes) -> dict[str, Any]:
    """The settings to change, for `LogSettings.update`; null keeps one. Raises ServeError with upstream's texts."""
    document = parse_json(body, ODD_BYTES)
    changes: dict[str, Any] = {}
    if find(document, "log_file") not in (UNSET, None):
        raise management.fixed_log_file()
    for name in ("log_info", "log_warning", "log_error", "log_verbose_level", "log_format"):
        value = find(document, name)
        if value in (UNSET, None):
            continue
        if name == "log_verbose_level":
            if not is_uint(value) or value > _UINT32_MAX:
                raise _wrong("unsigned-integer")
        elif name == "log_format":
            if not isinstance(value, str):
                raise _wrong("string")
            if value not in FORMATS:
                raise unavailable(f"invalid argument for --log_format, got: {value}")
        elif not isinstance(value, bool):
            raise _wrong("boolean")
        changes[name] = value
    return changes


def _trace_settings(body: bytes) -> dict[str, Any]:
    """The fields to change, for `Tracing.update`; None resets a field. Raises ServeError with upstream's texts."""
    document = parse_json(body, ODD_BYTES)
    changes: dict[str, Any] = {}
    if find(document, "trace_file") is not UNSET:
        raise management.fixed_trace_file()
    value = find(document, "trace_level")
    if value is None:
        changes |= management.cleared_trace("trace_level")
    elif value is not UNSET:
        if not isinstance(value, list):
            raise _wrong("array")
        if not all(isinstance(name, str) for name in value):
            raise _wrong("string")
        changes |= management.trace_levels(value)
    for name in management.TRACE_NUMBERS:
        value = find(document, name)
        if value is UNSET:
            continue
        if value is not None and not isinstance(value, str):
            raise _wrong("string")
        changes |= management.cleared_trace(name) if value is None else management.trace_number(name, value)
    return changes


def _shown(settings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The settings as JSON has them: the levels are a list, every other value is a text."""
    return {name: list(values) if name == "trace_level" else values[0] for name, values in settings.items()}


def _region_parameters(body: bytes) -> tuple[str, int, int]:
    """Key, offset and size of a region. Raises ServeError with upstream's texts."""
    document = parse_json(body, ODD_BYTES)
    key = _given(document, "key")
    if not isinstance(key, str):
        raise _wrong("string")
    offset = find(document, "offset")
    offset = 0 if offset is UNSET else _size(offset)
    return key, offset, _size(_given(document, "byte_size"))


def _cuda_region_parameters(body: bytes) -> tuple[bytes, int, int]:
    """Handle, GPU and size of a region. Raises ServeError with upstream's texts."""
    document = parse_json(body, ODD_BYTES)
    text = _given(_given(document, "raw_handle"), "b64")
    try:
        raw = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except ValueError:
        raw = b""
    if len(raw) != CUDA_HANDLE_BYTES:
        raise invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return raw, _size(_given(document, "device_id")), _size(_given(document, "byte_size"))


def _given(document: object, name: str) -> Any:
    value = find(document, name)
    if value is UNSET:
        raise invalid(f"Shared memory register request has no '{name}' field")
    return value


def _size(value: object) -> int:
    if not is_uint(value):
        raise _wrong("unsigned-integer")
    assert isinstance(value, int)
    return value


def _wrong(kind: str) -> ServeError:
    return malformed(f"attempt to access JSON non-{kind} as {kind}")

"""The unary RPCs of GRPCInferenceService, except inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from stubserve.api import management
from stubserve.api.management import ServerFacts
from stubserve.errors import Code, ServeError, invalid
from stubserve.grpc.messages import service_pb2
from stubserve.inference.served_model import ServedModel
from stubserve.model_config.render import model_metadata
from stubserve.observability.logs import FORMATS

SERVICE = "inference.GRPCInferenceService"


class ManagementRpcs:
    """One coroutine per RPC, by its name in `METHODS`. Each takes the request and returns the response, or raises."""

    def __init__(self, server: ServerFacts) -> None:
        self._server = server

    # Health

    async def server_live(self, request: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=management.live(self._server))

    async def server_ready(self, request: Any) -> Any:
        management.refuse_while_exiting(self._server)
        return service_pb2.ServerReadyResponse(ready=await self._server.ready())

    async def model_ready(self, request: Any) -> Any:
        try:
            ready = not await self._model(request).check_ready()
        except ServeError as error:
            # A missing model and a model that is not ready are answers here; over HTTP they are errors.
            if error.code not in (Code.NOT_FOUND, Code.UNAVAILABLE):
                raise
            ready = False
        return service_pb2.ModelReadyResponse(ready=ready)

    # Metadata

    async def server_metadata(self, request: Any) -> Any:
        return service_pb2.ServerMetadataResponse(
            name=self._server.name,
            version=self._server.version,
            extensions=management.extensions(self._server),
        )

    async def model_metadata(self, request: Any) -> Any:
        model = self._model(request)
        versions = management.metadata_versions(self._server, model, request.version)
        return json_format.ParseDict(model_metadata(model.config, versions), service_pb2.ModelMetadataResponse())

    async def model_config(self, request: Any) -> Any:
        return service_pb2.ModelConfigResponse(config=self._model(request).config)

    # Statistics and repository

    async def model_statistics(self, request: Any) -> Any:
        rows = management.statistics(self._server.registry, request.name, request.version)
        return json_format.ParseDict({"model_stats": rows}, service_pb2.ModelStatisticsResponse())

    async def repository_index(self, request: Any) -> Any:
        _check_repository(request)
        rows = await self._server.control.index(request.ready)
        return json_format.ParseDict({"models": rows}, service_pb2.RepositoryIndexResponse())

    async def repository_model_load(self, request: Any) -> Any:
        _check_repository(request)
        config: str | None = None
        files: dict[str, bytes] = {}
        for key, parameter in request.parameters.items():
            choice = parameter.WhichOneof("parameter_choice")
            if key == "config":
                if choice != "string_param":
                    raise invalid("invalid value type for load parameter 'config', expected string_param.")
                config = parameter.string_param
            elif key.startswith("file:"):
                if choice != "bytes_param":
                    raise invalid(f"invalid value type for load parameter '{key}', expected bytes_param.")
                files[key.removeprefix("file:")] = parameter.bytes_param
            else:
                raise invalid(f"unrecognized load parameter '{key}'.")
        await self._server.control.load(request.model_name, config, files)
        return service_pb2.RepositoryModelLoadResponse()

    async def repository_model_unload(self, request: Any) -> Any:
        _check_repository(request)
        dependents = False
        for key, parameter in request.parameters.items():
            if key == "unload_dependents":
                if parameter.WhichOneof("parameter_choice") != "bool_param":
                    raise invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")
                dependents = parameter.bool_param
        await self._server.control.unload(request.model_name, dependents)
        return service_pb2.RepositoryModelUnloadResponse()

    async def log_settings(self, request: Any) -> Any:
        settings = self._server.log_settings
        settings.update(_log_changes(request.settings))
        parameters = {"log_verbose_level": "uint32_param", "log_file": "string_param", "log_format": "string_param"}
        return service_pb2.LogSettingsResponse(
            settings={
                name: service_pb2.LogSettingsResponse.SettingValue(**{parameters.get(name, "bool_param"): value})
                for name, value in settings.to_dict().items()
            }
        )

    async def trace_setting(self, request: Any) -> Any:
        tracing = management.tracing(self._server)
        model = management.traced_model(self._server, request.model_name)
        tracing.update(_trace_changes(request.settings), model)
        return service_pb2.TraceSettingResponse(
            settings={
                name: service_pb2.TraceSettingResponse.SettingValue(value=values)
                for name, values in tracing.to_dict(model).items()
            }
        )

    # Shared memory of clients

    async def system_region_status(self, request: Any) -> Any:
        response = service_pb2.SystemSharedMemoryStatusResponse()
        _put_rows(response, management.region_rows(self._server, request.name))
        return response

    async def system_region_register(self, request: Any) -> Any:
        management.register_region(self._server, request.name, request.key, request.offset, request.byte_size)
        return service_pb2.SystemSharedMemoryRegisterResponse()

    async def system_region_unregister(self, request: Any) -> Any:
        management.unregister_region(self._server, request.name)
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    async def cuda_region_status(self, request: Any) -> Any:
        response = service_pb2.CudaSharedMemoryStatusResponse()
        _put_rows(response, management.region_rows(self._server, request.name, on_device=True))
        return response

    async def cuda_region_register(self, request: Any) -> Any:
        regions = management.cuda_regions(self._server, request.name)
        of_gpu = request.raw_handle, request.device_id, request.byte_size
        await regions.register_on_device(request.name, *of_gpu)
        return service_pb2.CudaSharedMemoryRegisterResponse()

    async def cuda_region_unregister(self, request: Any) -> Any:
        management.unregister_region(self._server, request.name, on_device=True)
        return service_pb2.CudaSharedMemoryUnregisterResponse()

    def _model(self, request: Any) -> ServedModel:
        return self._server.known_model(request.name, request.version)


def _put_rows(response: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Makes rows of regions the `regions` of a response."""
    for row in rows:
        region = response.regions[row["name"]]
        for field, value in row.items():
            setattr(region, field, value)


def _check_repository(request: Any) -> None:
    if request.repository_name:
        raise management.no_repository_name()


# The field in which a setting is sent, and upstream's name for that kind in errors
_LOG_KINDS = {
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def _log_changes(settings: Any) -> dict[str, Any]:
    """The settings to change, for `LogSettings.update`. Raises ServeError with upstream's texts."""
    if "log_file" in settings:
        raise management.fixed_log_file()
    changes = {}
    for name, (field, kind) in _LOG_KINDS.items():
        if name not in settings:
            continue
        if settings[name].WhichOneof("parameter_choice") != field:
            raise invalid(f"expect {kind} for '{name}'")
        changes[name] = getattr(settings[name], field)
    if changes.get("log_format", FORMATS[0]) not in FORMATS:
        raise invalid(f"invalid argument for log_format, got: {changes['log_format']}")
    return changes


def _trace_changes(settings: Any) -> dict[str, Any]:
    """The fields to change, for `Tracing.update`; a setting without a value is reset. Raises ServeError."""
    changes: dict[str, Any] = {}
    if "trace_file" in settings:
        raise management.fixed_trace_file()
    if "trace_level" in settings:
        names = settings["trace_level"].value
        changes |= management.trace_levels(names) if names else management.cleared_trace("trace_level")
    for name in management.TRACE_NUMBERS:
        if name not in settings:
            continue
        values = settings[name].value
        if len(values) > 1:
            raise invalid(f"expect only 1 value for '{name}'")
        changes |= management.trace_number(name, values[0], " ") if values else management.cleared_trace(name)
    return changes


# RPC -> its kind as in `--grpc-restricted-protocol`, and its coroutine
METHODS = {
    "ServerLive": ("health", ManagementRpcs.server_live),
    "ServerReady": ("health", ManagementRpcs.server_ready),
    "ModelReady": ("health", ManagementRpcs.model_ready),
    "ServerMetadata": ("metadata", ManagementRpcs.server_metadata),
    "ModelMetadata": ("metadata", ManagementRpcs.model_metadata),
    "ModelConfig": ("model-config", ManagementRpcs.model_config),
    "ModelStatistics": ("statistics", ManagementRpcs.model_statistics),
    "RepositoryIndex": ("model-repository", ManagementRpcs.repository_index),
    "RepositoryModelLoad": ("model-repository", ManagementRpcs.repository_model_load),
    "RepositoryModelUnload": ("model-repository", ManagementRpcs.repository_model_unload),
    "SystemSharedMemoryStatus": ("shared-memory", ManagementRpcs.system_region_status),
    "SystemSharedMemoryRegister": ("shared-memory", ManagementRpcs.system_region_register),
    "SystemSharedMemoryUnregister": ("shared-memory", ManagementRpcs.system_region_unregister),
    "CudaSharedMemoryStatus": ("shared-memory", ManagementRpcs.cuda_region_status),
    "CudaSharedMemoryRegister": ("shared-memory", ManagementRpcs.cuda_region_register),
    "CudaSharedMemoryUnregister": ("shared-memory", ManagementRpcs.cuda_region_unregister),
    "TraceSetting": ("trace", ManagementRpcs.trace_setting),
    "LogSettings": ("logging", ManagementRpcs.log_settings),
}

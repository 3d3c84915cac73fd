"""The page of HTTP routes and RPCs, out of the tables that requests are routed by."""

from __future__ import annotations

from typing import Any, cast

from starlette.routing import Route

from stubserve.grpc.service import Service
from stubserve.http.app import create_app
from stubserve.parts import parts_of
from stubserve.settings.fronts import HttpSettings
from stubserve.settings.groups import Settings
from tools.reference.markdown import table

# Paths without the version that may stand in most of them
HTTP = {
    "/v2": "Name, version and extensions of the server.",
    "/v2/health/live": "200 once the server runs, whatever its models do.",
    "/v2/health/ready": "200 when the server takes requests; with `--strict-readiness` (the default) only when every model is ready.",
    "/v2/drain": "Readiness says no from now on, and connections are told to close; only where `model-repository` needs rights.",
    "/v2/models/stats": "Statistics of all models.",
    "/v2/logging": "The log's settings; POST changes them.",
    "/v2/models/{model}": "Name, versions, inputs and outputs of the model.",
    "/v2/models/{model}/ready": "200 when the model takes requests, else the reason.",
    "/v2/models/{model}/config": "The model's configuration, completed.",
    "/v2/models/{model}/stats": "Counts and times of the model, its batches, and the memory of its stubs.",
    "/v2/models/{model}/infer": "Inference: JSON, JSON with binary tensors behind it, or one raw tensor.",
    "/v2/models/{model}/generate": "Inference with plain JSON: inputs by name, one answer.",
    "/v2/models/{model}/generate_stream": "The same with the responses as server-sent events.",
    "/v2/repository/index": 'All models of the repository with their states; `{"ready": true}` for those that serve.',
    "/v2/repository/models/{model}/load": "Loads or reloads a model, with `--model-control-mode=explicit`.",
    "/v2/repository/models/{model}/unload": "Unloads a model, with `--model-control-mode=explicit`.",
    "/v2/repository/{repository}/index": "As in Triton: repositories cannot be named, so this is an error.",
    "/v2/repository/{repository}/models/{model}/load": "The same error.",
    "/v2/repository/{repository}/models/{model}/unload": "The same error.",
    "/v2/trace/setting": "What is traced; POST changes it.",
    "/v2/models/{model}/trace/setting": "What is traced of the model; POST changes it.",
    "/v2/systemsharedmemory/status": "All regions of shared memory that clients have registered.",
    "/v2/systemsharedmemory/register": "Without a region this is an error.",
    "/v2/systemsharedmemory/unregister": "Unregisters all regions.",
    "/v2/systemsharedmemory/region/{region}/status": "One region.",
    "/v2/systemsharedmemory/region/{region}/register": "Registers a region of shared memory, with `--allow-client-shm`.",
    "/v2/systemsharedmemory/region/{region}/unregister": "Unregisters it.",
    "/v2/cudasharedmemory/status": "An empty list: there are no regions of GPUs.",
    "/v2/cudasharedmemory/register": "An error: memory of GPUs is not offered yet.",
    "/v2/cudasharedmemory/unregister": "Nothing: there are none.",
    "/v2/cudasharedmemory/region/{region}/status": "404.",
    "/v2/cudasharedmemory/region/{region}/register": "An error: memory of GPUs is not offered yet.",
    "/v2/cudasharedmemory/region/{region}/unregister": "Nothing: there are none.",
    "/v1/models": "With `--openai`: the models that OpenAI's routes serve. See [Language models](../guides/language-models.md).",
    "/v1/models/{model}": "With `--openai`: one of them.",
    "/v1/models/{model}/load": "With `--openai`: loads a model that is not loaded, under explicit model control.",
    "/v1/models/{model}/unload": "With `--openai`: unloads a model.",
    "/health/ready": "With `--openai`: as `/v2/health/ready`.",
    "/metrics": "With `--openai`: the metrics, as on their own port, unless that has an address of its own (`--metrics-address`).",
    "/v1/chat/completions": "With `--openai`: a chat, as a whole or as server-sent events.",
    "/v1/completions": "With `--openai`: a text that goes on.",
    "/v1/embeddings": "With `--openai`: vectors of texts.",
    "/v1/{path}": "With `--openai`: 404, in OpenAI's form of errors.",
}
GRPC = {
    "ServerLive": "Whether the server runs.",
    "ServerReady": "Whether the server takes requests.",
    "ModelReady": "Whether the model does.",
    "ServerMetadata": "Name, version and extensions of the server.",
    "ModelMetadata": "Name, versions, inputs and outputs of a model.",
    "ModelConfig": "The model's configuration, completed.",
    "ModelStatistics": "Counts and times of one model or of all.",
    "RepositoryIndex": "All models of the repository with their states.",
    "RepositoryModelLoad": "Loads or reloads a model, with `--model-control-mode=explicit`.",
    "RepositoryModelUnload": "Unloads a model, with `--model-control-mode=explicit`.",
    "SystemSharedMemoryStatus": "Regions of shared memory that clients have registered.",
    "SystemSharedMemoryRegister": "Registers one, with `--allow-client-shm`.",
    "SystemSharedMemoryUnregister": "Unregisters one or all.",
    "CudaSharedMemoryStatus": "There are no regions of GPUs.",
    "CudaSharedMemoryRegister": "An error: memory of GPUs is not offered yet.",
    "CudaSharedMemoryUnregister": "Nothing: there are none.",
    "TraceSetting": "What is traced; settings in the request change it.",
    "LogSettings": "Reads and changes the log's settings.",
    "ModelInfer": "One request, one answer.",
    "ModelStreamInfer": "Any number of requests and responses; for decoupled models.",
    "Check": "The health of gRPC's own protocol.",
    "Watch": "The same, told again whenever it changes.",
    "ServerReflectionInfo": "Tells tools as grpcurl what there is to call.",
}
_HEAD = """\
# HTTP and gRPC routes

The protocol is [KServe's v2](https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol) with Triton's extensions. Under a model's path
a version may be named: `/v2/models/{model}/versions/{version}/infer`. Without one the newest version answers.

An error over HTTP is `{"error": "..."}` with one of these statuses; over gRPC it is the status in brackets: 400 (INVALID_ARGUMENT, and some others),
404 (NOT_FOUND), 500 (INTERNAL), 501 (UNIMPLEMENTED), 503 (UNAVAILABLE). The routes below `/v1`, which are OpenAI's, have OpenAI's errors.

"""


def http_routes() -> dict[str, list[str]]:
    """Path -> methods, without those paths that name a version."""
    app = create_app(cast(Any, None), parts_of(Settings(http=HttpSettings(openai=True))))
    found = {}
    for route in app.routes:
        assert isinstance(route, Route)
        if "{version:digits}" not in route.path:
            found[route.path.replace(":path}", "}")] = list(cast(Any, route.endpoint).methods)
    return found


def grpc_methods() -> list[tuple[str, str]]:
    """(service, name) of every RPC."""
    return [cast(Any, tuple(path[1:].split("/"))) for path in Service(cast(Any, None)).methods]


def routes_page() -> str:
    """The page as Markdown."""
    rows = [(", ".join(methods), f"`{path}`", _sentence(HTTP, "HTTP", path)) for path, methods in http_routes().items()]
    calls = [(f"`{service}`", f"`{name}`", _sentence(GRPC, "GRPC", name)) for service, name in grpc_methods()]
    metrics = "The port of metrics has one route, `GET /metrics`.\n\n"
    http = table(("method", "path", "what it answers"), rows)
    return "".join(
        [_HEAD, "## HTTP\n\n", http, metrics, "## gRPC\n\n", table(("service", "RPC", "what it answers"), calls)]
    )


def _sentence(sentences: dict[str, str], table: str, name: str) -> str:
    """What HTTP or GRPC says of a route or an RPC. Raises LookupError that names the place for the sentence."""
    if name not in sentences:
        raise LookupError(f"{name} has no sentence: say in {table} of tools/reference/routes.py what it answers")
    return sentences[name]

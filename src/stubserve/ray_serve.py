"""stubserve on Ray Serve: each replica serves the models of a repository, on whichever machine Ray puts it.

    serve run stubserve.ray_serve:app repository=/srv/models replicas=2

The repository has to be at the same place on all machines. Ray's proxies take the HTTP requests and hand each to a
replica. A replica is stubserve's ASGI app in an actor of Ray, with the models' stubs as its children. An actor that
dies takes its stubs with it, and Ray starts another. There is no gRPC and no metrics port (docs/deployment/asgi.md).
"""

from __future__ import annotations

import shlex
from typing import Any

from ray import serve

# Seconds for a replica to finalize its models; a bit more than --exit-timeout-secs
STOP_S = 35.0

_ARGUMENTS = {"repository", "replicas", "cpus", "flags"}


def app(arguments: dict[str, str]) -> serve.Application:
    """The application. Raises ValueError for an argument that is unknown or missing.

    `repository` is a folder, `replicas` how many to run, `cpus` the cores of each, `flags` as for `stubserve serve`.
    """
    unknown = sorted(arguments.keys() - _ARGUMENTS)
    if unknown:
        raise ValueError(f"stubserve.ray_serve has no argument {unknown[0]!r}, only {', '.join(sorted(_ARGUMENTS))}")
    if "repository" not in arguments:
        raise ValueError("name the folder of models: serve run stubserve.ray_serve:app repository=/srv/models")
    words = [arguments["repository"], *shlex.split(arguments.get("flags", ""))]

    def build() -> Any:
        # In the replica, where the models are
        from stubserve.asgi import create_app
        from stubserve.flags import parse_arguments

        return create_app(parse_arguments(words))

    @serve.deployment(
        name="models",
        num_replicas=int(arguments.get("replicas", "1")),
        ray_actor_options={"num_cpus": float(arguments.get("cpus", "1"))},
        max_ongoing_requests=1000,
        graceful_shutdown_timeout_s=STOP_S,
    )
    @serve.ingress(build)
    class Models:
        app: Any  # made by `build`

        async def check_health(self) -> None:
            """Raises RuntimeError if a model cannot recover; Ray then starts another replica."""
            if await _status(self.app, "/v2/health/ready") != 200:
                raise RuntimeError("not every model is ready")

    models: Any = Models
    return models.bind()


async def _status(asgi: Any, path: str) -> int:
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    await asgi(scope, receive, send)
    return int(statuses[0])

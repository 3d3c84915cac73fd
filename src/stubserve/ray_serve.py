"""stubserve on Ray Serve: Ray places and counts the servers, and clients' requests reach them without Ray.

    applications:
      - import_path: stubserve.ray_serve:app
        args: { repository: /srv/models, replicas: 2 }

`stubserve.fleet` has the parts, and says what they guarantee.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from stubserve.fleet.directory import Directory
from stubserve.fleet.front import Front
from stubserve.fleet.groups import Group, groups_of
from stubserve.fleet.replica import Replica

# Seconds that Ray gives a replica to end, beyond its `drain_s`: --exit-timeout-secs and a bit more
_STOP_S = 40.0

_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
_OWN = {"repository", "groups", "fronts", "address", *(f"{kind}_port" for kind in _PORTS)}


def app(arguments: dict[str, Any]) -> serve.Application:
    """The application. Raises ValueError for an argument that is unknown, missing or wrong.

    `repository` is a folder or a cloud address that all nodes reach. `groups` says which models are served together
    (`groups.Group` has what can be said of each); without it all models are one group, and what is said of a group is
    said at the top. `fronts` is how many nodes answer clients (1), at `address` (0.0.0.0) with `http_port` (8000),
    `grpc_port` (8001) and `metrics_port` (8002).
    """
    if not arguments.get("repository"):
        raise ValueError("stubserve.ray_serve: name the folder of models: `args: { repository: /srv/models }`")
    groups = groups_of({name: value for name, value in arguments.items() if name not in _OWN}, arguments.get("groups"))
    directory = serve.deployment(
        Directory,
        name="directory",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,
        logging_config={"enable_access_log": False},
    ).bind()
    replicas = [_models(group, str(arguments["repository"]), directory) for group in groups]
    front = serve.deployment(
        Front,
        name="front",
        num_replicas=int(arguments.get("fronts", 1)),
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,
    )
    ports = {kind: int(arguments.get(f"{kind}_port", port)) for kind, port in _PORTS.items()}
    models = {group.name: group.models for group in groups}
    linger_s = int(max(group.drain_s for group in groups) + _STOP_S)
    application: serve.Application = front.bind(
        directory, str(arguments.get("address", "0.0.0.0")), ports, models, linger_s, replicas
    )
    return application


def _models(group: Group, repository: str, directory: serve.Application) -> serve.Application:
    options: dict[str, Any] = {"num_replicas": group.least}
    if group.most > group.least:
        options = {
            "autoscaling_config": {
                "min_replicas": group.least,
                "max_replicas": group.most,
                "upscale_delay_s": group.upscale_delay_s,
                "downscale_delay_s": group.downscale_delay_s,
                "policy": {"policy_function": "stubserve.fleet.demand:replicas_for_demand"},
            }
        }
    deployment = serve.deployment(
        Replica,
        name=f"models-{group.name}",
        ray_actor_options={"num_cpus": group.cpus, "num_gpus": group.gpus, "resources": group.resources},
        graceful_shutdown_timeout_s=group.drain_s + _STOP_S,
        health_check_period_s=2,
        health_check_timeout_s=10,
        **options,
    )
    application: serve.Application = deployment.bind(group, repository, directory)
    return application

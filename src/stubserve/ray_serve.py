"""stubserve on Ray Serve: Ray places and counts the servers, and clients' requests reach them without Ray.

    proxy_location: Disabled
    applications:
      - { name: front, import_path: stubserve.ray_serve:front, args: { fronts: 3 } }
      - { name: models, import_path: stubserve.ray_serve:models, route_prefix: null, args: { repository: /srv/models } }

There may be several applications of `models`, with models of their own. `stubserve.fleet` has the parts, and says what
they guarantee.
"""

from __future__ import annotations

from typing import Any

from ray import serve

from stubserve.fleet.directory import Directory
from stubserve.fleet.front import Front
from stubserve.fleet.group import Group, group_of
from stubserve.fleet.replica import Replica

# Seconds that Ray gives a replica to end, beyond its `drain_s`: --exit-timeout-secs and a bit more
_STOP_S = 40.0

_FRONT = {"fronts": 1, "address": "0.0.0.0", "http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}


def front(arguments: dict[str, Any]) -> serve.Application:
    """The application that answers clients. Raises ValueError for an argument that is unknown.

    `fronts` is how many nodes answer (1), at `address` (0.0.0.0) with `http_port` (8000), `grpc_port` (8001) and
    `metrics_port` (8002).
    """
    if unknown := sorted(arguments.keys() - _FRONT.keys()):
        raise ValueError(f"stubserve.ray_serve:front has no argument {unknown[0]!r}, only {', '.join(_FRONT)}")
    said = {**_FRONT, **arguments}
    directory = serve.deployment(
        Directory,
        name="directory",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,
        logging_config={"enable_access_log": False},
    ).bind()
    fronts = serve.deployment(
        Front,
        name="front",
        num_replicas=int(said.pop("fronts")),
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,
    )
    application: serve.Application = fronts.bind(directory, **said)
    return application


def models(arguments: dict[str, Any]) -> serve.Application:
    """An application that serves models; `fleet.group.Group` has its arguments. Raises ValueError for a wrong one."""
    group = group_of(arguments)
    deployment = serve.deployment(
        Replica,
        name="replicas",
        ray_actor_options={"num_cpus": group.cpus, "num_gpus": group.gpus, "resources": group.resources},
        graceful_shutdown_timeout_s=group.drain_s + _STOP_S,
        health_check_period_s=2,
        health_check_timeout_s=10,
        **_count(group),
    )
    application: serve.Application = deployment.bind(group)
    return application


def _count(group: Group) -> dict[str, Any]:
    if group.most == group.least:
        return {"num_replicas": group.least}
    return {
        "autoscaling_config": {
            "min_replicas": group.least,
            "max_replicas": group.most,
            "upscale_delay_s": group.upscale_delay_s,
            "downscale_delay_s": group.downscale_delay_s,
            "policy": {"policy_function": "stubserve.fleet.demand:replicas_for_demand"},
        }
    }

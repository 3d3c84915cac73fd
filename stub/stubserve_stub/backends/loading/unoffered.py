"""Features that Triton's backends offer and stubserve's do not yet."""

from __future__ import annotations

from stubserve_stub.backends.base import InstanceFacts
from stubserve_stub.runtime.failure import Refusal


def refuse_gpu(instance: InstanceFacts, backend: str) -> None:
    """Raises Refusal for an instance that is to run on a GPU."""
    if instance.arguments["model_instance_kind"] == "GPU":
        raise Refusal(
            "model instance '{}' is to run on a GPU, and the {} backend runs on CPUs only: "
            "`instance_group [ {{ kind: KIND_CPU }} ]` says so in config.pbtxt".format(instance.name, backend)
        )

"""What Triton's backends offer and stubserve's do not yet: left out it would give wrong results, so it is refused."""

from __future__ import annotations

from typing import Any, Mapping

from stubserve_stub.backends.base import InstanceFacts
from stubserve_stub.runtime.failure import Refusal


def refuse_gpu(instance: InstanceFacts, backend: str) -> None:
    """Raises Refusal for an instance that is to run on a GPU."""
    if instance.arguments["model_instance_kind"] == "GPU":
        raise Refusal(
            "model instance '{}' is to run on a GPU, and the {} backend runs on CPUs only: "
            "`instance_group [ {{ kind: KIND_CPU }} ]` says so in config.pbtxt".format(instance.name, backend)
        )


def refuse_parts(config: Mapping[str, Any], backend: str) -> None:
    """Raises Refusal for what a configuration asks of batches."""
    parts = [part for part in ("batch_input", "batch_output") if config.get(part)]
    parts += ["allow_ragged_batch" for tensor in config["input"] if tensor.get("allow_ragged_batch")]
    if parts:
        raise Refusal(
            "model '{}' has '{}', which stubserve does not offer for the {} backend yet".format(
                config["name"], parts[0], backend
            )
        )

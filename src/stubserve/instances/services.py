"""The services of the server that its stubs need."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stubserve.errors import ServeError, unavailable
from stubserve.inference.served_model import ModelFinder
from stubserve.instances.confinement import Confinement
from stubserve.instances.janitor import Janitor
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.logs import LogSettings

log = logging.getLogger("stubserve.instances")


class ControlForModels:
    """Model control as stubs see it. This base class is for servers without it. Both methods raise ServeError."""

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Loads a model, with this configuration (JSON) and these files if given."""
        raise no_model_control()

    async def unload(self, name: str, dependents: bool = False) -> None:
        """Unloads a model, and with `dependents` the members of an ensemble; does not wait for the end."""
        raise no_model_control()


def no_model_control(polls: bool = True) -> ServeError:
    """Upstream's text, also for servers that do not poll; these say what to do."""
    text = "explicit model load / unload is not allowed if polling is enabled"
    return unavailable(
        text if polls else f"{text}. This server does not poll; start it with --model-control-mode=explicit"
    )


@dataclass(frozen=True)
class Services:
    """What a stub's model may call (`models`), load and unload (`control`), and where its metrics live (`metrics`).

    `janitor` ends processes of models when the server is gone, None for none. `confinement` takes rights from stubs.
    `client_regions`: requests may refer to shared memory of clients.
    """

    models: ModelFinder
    log_settings: LogSettings
    metrics: MetricRegistry
    control: ControlForModels = field(default_factory=ControlForModels)
    janitor: Janitor | None = None
    confinement: Confinement = field(default_factory=Confinement)
    client_regions: bool = False


async def change_model(control: ControlForModels, query: dict[str, Any]) -> dict[str, Any]:
    """Loads or unloads a model for a model. Returns None as "value" when done, or the reason why not as "error"."""
    try:
        if query["query"] == "load_model":
            await control.load(query["model"], query["config"] or None, query["files"])
        else:
            await control.unload(query["model"], query["unload_dependents"])
    except ServeError as error:
        return {"error": error.message}
    except Exception as raised:
        # The model waits for an answer, and its stub is not at fault.
        log.exception("unexpected error while a model's request was carried out: %s", query.get("query"))
        return {"error": f"unexpected error in the server: {raised!r}"}
    return {"value": None}

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
    """Model control as stubs see it; this is the one where there is none. Both methods raise ServeError."""

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Loads a model, with this configuration (JSON) if there is one, made of these files if there are any."""
        raise no_model_control()

    async def unload(self, name: str, dependents: bool = False) -> None:
        """Lets a model go, and with `dependents` the members of an ensemble; does not wait until it is gone."""
        raise no_model_control()


def no_model_control() -> ServeError:
    """Upstream's words, also where nothing polls."""
    return unavailable("explicit model load / unload is not allowed if polling is enabled")


@dataclass(frozen=True)
class Services:
    """What a stub's model may call (`models`), load and unload (`control`), and where its metrics live (`metrics`).

    `janitor` ends what models have started when the server is gone; without one it is left over. `confinement` is what
    their processes give up. `client_regions` says whether requests may refer to shared memory of clients.
    """

    models: ModelFinder
    log_settings: LogSettings
    metrics: MetricRegistry
    control: ControlForModels = field(default_factory=ControlForModels)
    janitor: Janitor | None = None
    confinement: Confinement = field(default_factory=Confinement)
    client_regions: bool = False


async def change_model(control: ControlForModels, wish: dict[str, Any]) -> dict[str, Any]:
    """Carries out what a model wants; None as "value" when it is done, or why not as "error"."""
    try:
        if wish["question"] == "load_model":
            await control.load(wish["model"], wish["config"] or None, wish["files"])
        else:
            await control.unload(wish["model"], wish["unload_dependents"])
    except ServeError as error:
        return {"error": error.message}
    except Exception as raised:
        # The model waits for an answer, and it is no fault of its stub's.
        log.exception("unexpected error while a model's request was carried out: %s", wish.get("question"))
        return {"error": f"unexpected error in the server: {raised!r}"}
    return {"value": None}

"""The services of the server that its stubs need."""

from __future__ import annotations

from dataclasses import dataclass, field

from stubserve.instances.bls import Models
from stubserve.instances.confinement import Confinement
from stubserve.instances.janitor import Janitor
from stubserve.instances.model_control import ControlForModels, NoModelControl
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.logs import LogSettings


@dataclass(frozen=True)
class Services:
    """What a stub's model may call (`models`), load and unload (`control`), and where its metrics live (`metrics`).

    `janitor` ends what models have started when the server is gone; without one it is left over. `confinement` is what
    their processes give up. `client_regions` says whether requests may refer to shared memory of clients.
    """

    models: Models
    log_settings: LogSettings
    metrics: MetricRegistry
    control: ControlForModels = field(default_factory=NoModelControl)
    janitor: Janitor | None = None
    confinement: Confinement = field(default_factory=Confinement)
    client_regions: bool = False

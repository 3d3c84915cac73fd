"""The settings of `--trace-config`: which requests are traced, and where their traces go."""

from __future__ import annotations

import os
from dataclasses import dataclass

# Forms of traces; and the level that has the times of a request
TRITON, OPENTELEMETRY = "triton", "opentelemetry"
TIMESTAMPS = "TIMESTAMPS"


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """What is traced, and where to. `config` has (mode or "" for all, setting, value): all of --trace-config together.

    The other flags about tracing are older words for some of these settings.
    """

    config: tuple[tuple[str, str, str], ...] = ()

    def value(self, mode: str, setting: str, default: str) -> str:
        """The last value of a setting."""
        values = [value for one, name, value in self.config if (one, name) == (mode, setting)]
        return values[-1] if values else default

    @property
    def mode(self) -> str:
        return self.value("", "mode", TRITON)

    @property
    def levels(self) -> frozenset[str]:
        """What is kept of a request: TIMESTAMPS, TENSORS. A level of OFF takes back those before it."""
        found: set[str] = set()
        for mode, name, value in self.config:
            if (mode, name) == ("", "level"):
                found = set() if value == "OFF" else found | {TIMESTAMPS if value in ("MIN", "MAX") else value}
        return frozenset(found)

    @property
    def rate(self) -> int:
        return int(self.value("", "rate", "1000"))

    @property
    def count(self) -> int:
        return int(self.value("", "count", "-1"))

    @property
    def file(self) -> str:
        return self.value(TRITON, "file", "")

    @property
    def log_frequency(self) -> int:
        return int(self.value(TRITON, "log-frequency", "0"))

    # OpenTelemetry

    @property
    def url(self) -> str:
        return self.value(OPENTELEMETRY, "url", "http://localhost:4318/v1/traces")

    @property
    def resource(self) -> dict[str, str]:
        """What spans say of the server."""
        texts = [text for mode, name, text in self.config if (mode, name) == (OPENTELEMETRY, "resource")]
        return {name: value for name, _, value in (text.partition("=") for text in texts)}

    @property
    def max_queue_size(self) -> int:
        return self._bsp("max_queue_size", "2048")

    @property
    def schedule_delay_ms(self) -> int:
        return self._bsp("schedule_delay", "5000")

    @property
    def max_export_batch_size(self) -> int:
        return self._bsp("max_export_batch_size", "512")

    def options(self) -> dict[str, str]:
        """The settings of OpenTelemetry, under the names that the protocols show."""
        resource = {"service.name": "triton-inference-server", **self.resource}
        return {
            "url": self.url,
            "resource": ",".join(f"{name}={value}" for name, value in resource.items()),
            "bsp_max_export_batch_size": str(self.max_export_batch_size),
            "bsp_schedule_delay": str(self.schedule_delay_ms),
            "bsp_max_queue_size": str(self.max_queue_size),
        }

    def _bsp(self, name: str, default: str) -> int:
        default = os.environ.get(f"OTEL_BSP_{name.upper()}", default)
        return int(self.value(OPENTELEMETRY, f"bsp_{name}", default))

"""The settings of the front ends: HTTP, gRPC, and the platforms of clouds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Kinds of APIs, and the header and value that they want
Restricted = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. With `mutual` a client needs a certificate that `root_certificates` vouch for."""

    certificate: str
    key: str
    root_certificates: str
    mutual: bool

    @property
    def files(self) -> list[str]:
        return [path for path in (self.certificate, self.key, self.root_certificates) if path]

    def check(self) -> None:
        """Raises OSError that names the file which cannot be read."""
        for path in self.files:
            with open(path, "rb"):
                pass


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What a protocol is told of TLS."""

    use_ssl: bool = False
    use_ssl_mutual: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""

    @property
    def tls(self) -> Tls | None:
        """None for without; to want clients' certificates means to want TLS."""
        if not (self.use_ssl or self.use_ssl_mutual):
            return None
        return Tls(self.server_cert, self.server_key, self.root_cert, self.use_ssl_mutual)


@dataclass(frozen=True, slots=True)
class HttpSettings(TlsSettings):
    """How HTTP is served."""

    allow: bool = True
    address: str = "0.0.0.0"
    port: int = 8000
    reuse_port: bool = False
    max_input_size: int = 64 << 20
    header_forward_pattern: str = ""
    cors_origins: tuple[str, ...] = ()
    restricted_apis: tuple[Restricted, ...] = ()
    # Whether there is a page to try models on; None: where nobody but this machine can reach it
    try_page: bool | None = None

    @property
    def shows_try_page(self) -> bool:
        if self.try_page is not None:
            return self.try_page
        return self.address == "localhost" or self.address == "::1" or self.address.startswith("127.")

    @property
    def restricted(self) -> dict[str, tuple[str, str]]:
        """All of --http-restricted-api together: kind -> (header, value) that requests must have."""
        return {kind: required for group in self.restricted_apis for kind, required in group.items()}


@dataclass(frozen=True, slots=True)
class GrpcSettings(TlsSettings):
    """How gRPC is served. Times are in milliseconds, None for without limit."""

    allow: bool = True
    address: str = "0.0.0.0"
    port: int = 8001
    reuse_port: bool = False
    header_forward_pattern: str = ""
    restricted_protocols: tuple[Restricted, ...] = ()
    transport: str = "native"
    compression_level: str = "none"
    keepalive_time: int = 7_200_000
    keepalive_timeout: int = 20_000
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age: int | None = None
    max_connection_age_grace: int | None = None

    @property
    def restricted(self) -> dict[str, tuple[str, str]]:
        """All of --grpc-restricted-protocol together: kind -> (key, value) that metadata must have."""
        return {kind: required for group in self.restricted_protocols for kind, required in group.items()}


@dataclass(frozen=True, slots=True)
class SageMakerSettings:
    """SageMaker's routes, and the ports (first, last) that others may have then."""

    allow: bool = False
    port: int = 8080
    safe_ports: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class VertexSettings:
    """Vertex AI's routes. Without a default model there may be only one."""

    allow: bool = False
    port: int = 8080
    default_model: str = ""

"""The settings of the front ends: HTTP, gRPC, and the platforms of clouds."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stubserve.errors import TRITON

# Per kind of APIs: the header and value that it requires
Restricted = Mapping[str, tuple[str, str]]


class Tls(Struct, frozen=True):
    """Paths of PEM files. With `mutual` a client needs a certificate that `root_certificates` vouch for."""

    certificate: str
    key: str
    root_certificates: str
    mutual: bool

    @property
    def files(self) -> list[str]:
        return [path for path in (self.certificate, self.key, self.root_certificates) if path]

    def check(self) -> None:
        """Raises OSError that names an unreadable file."""
        for path in self.files:
            with open(path, "rb"):
                pass


class FrontSettings(Struct, frozen=True):
    """The settings that HTTP and gRPC share."""

    use_ssl: bool = False
    use_ssl_mutual: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    allow: bool = True
    address: str = ""  # until `Settings.with_addresses`, if no flag names one
    port: int = 8000
    reuse_port: bool = False
    header_forward_pattern: str = ""
    restrictions: tuple[Restricted, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the port."""
        return self.address == "localhost" or self.address == "::1" or self.address.startswith("127.")

    @property
    def tls(self) -> Tls | None:
        """The files for TLS, or None without TLS; asking for clients' certificates turns TLS on."""
        if not (self.use_ssl or self.use_ssl_mutual):
            return None
        return Tls(self.server_cert, self.server_key, self.root_cert, self.use_ssl_mutual)

    @property
    def restricted(self) -> dict[str, tuple[str, str]]:
        """All `restrictions` together: kind -> (header, value) that requests must have, or (key, value) in metadata."""
        return {kind: required for group in self.restrictions for kind, required in group.items()}


class HttpSettings(FrontSettings, frozen=True):
    """How HTTP is served."""

    max_input_size: int = 64 << 20
    cors_origins: tuple[str, ...] = ()
    status: str = TRITON
    openai: bool = False
    # A port of its own for them, and what it requires beside `restrictions`; None for none
    openai_port: int | None = None
    openai_restrictions: tuple[Restricted, ...] = ()
    # Whether to serve the page for trying models; None: if only this machine can reach it
    try_page: bool | None = None
    # Whether to describe the models as OpenAPI; None: where there is that page
    openapi: bool | None = None

    @property
    def shows_try_page(self) -> bool:
        if self.try_page is not None:
            return self.try_page
        return self.is_local

    @property
    def shows_openapi(self) -> bool:
        return self.shows_try_page if self.openapi is None else self.openapi


class GrpcSettings(FrontSettings, frozen=True):
    """How gRPC is served. Times are in milliseconds; None: no limit."""

    port: int = 8001
    compression_level: str = "none"
    keepalive_time: int = 7_200_000
    keepalive_timeout: int = 20_000
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age: int | None = None
    max_connection_age_grace: int | None = None


class SageMakerSettings(Struct, frozen=True):
    """SageMaker's routes, and the ports (first, last) that the other front ends may have then."""

    allow: bool = False
    port: int = 8080
    safe_ports: tuple[int, int] | None = None


class VertexSettings(Struct, frozen=True):
    """Vertex AI's routes. Without a default model there may be only one model."""

    allow: bool = False
    port: int = 8080
    default_model: str = ""

"""How gRPC is to be served: what the flags `--grpc-*` say, as a transport needs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. With `mutual` a client needs a certificate that `root_certificates` vouch for."""

    certificate: str
    key: str
    root_certificates: str
    mutual: bool

    def check(self) -> None:
        """Raises OSError that names the file which cannot be read."""
        for path in (self.certificate, self.key, self.root_certificates):
            if path:
                with open(path, "rb"):
                    pass


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Times in milliseconds; None for without limit."""

    address: str
    port: int
    reuse_port: bool
    tls: Tls | None
    compression_level: str
    keepalive_time: int
    keepalive_timeout: int
    keepalive_permit_without_calls: bool
    max_pings_without_data: int
    min_recv_ping_interval_without_data: int
    max_ping_strikes: int
    max_connection_age: int | None
    max_connection_age_grace: int | None

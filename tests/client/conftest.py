"""The servers that tests of the client ask: stubserve, and real Triton where it is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.client.helpers import FLAG, names_of, write_models
from tests.conformance import servers
from tests.real_server import Serving


@dataclass(frozen=True)
class Asked:
    """A server, the folder of its model `waits`, and how to reach it."""

    name: str
    folder: Path
    http: str
    grpc: str

    def url(self, protocol: str) -> str:
        return self.http if protocol == "http" else self.grpc


@pytest.fixture(scope="module", params=["stubserve", pytest.param("triton", marks=pytest.mark.slow)])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Both servers, one after the other."""
    root = tmp_path_factory.mktemp("both") / "models"
    root.mkdir()
    write_models(root)
    if request.param == "stubserve":
        with Serving(root, FLAG) as server:
            server.wait_until_ready()
            http, grpc = (f"{scheme}://127.0.0.1:{port}" for scheme, port in _ports(server))
            yield Asked("stubserve", root / "waits", http, grpc)
        return
    if not (servers.peers_home() / "env.sh").exists():
        pytest.skip("real Triton is not installed: tools/peers.sh")
    # A stub that has not started after 30 s ends real Triton, and a busy machine takes longer.
    flags = ("--strict-readiness=false", "--backend-config=python,stub-timeout-seconds=240")
    with servers.serving("triton", root, root.parent / "log", *flags) as triton:
        yield Asked("triton", root / "waits", f"http://127.0.0.1:{triton.port}", f"grpc://127.0.0.1:{triton.grpc_port}")


def _ports(server: Serving) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("http", server.port), ("grpc", server.grpc_port)


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert names_of(os.getpid()) == []

"""The configuration of HAProxy in a front: HAProxy takes it, and it sends each request where it belongs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from stubserve.fleet.balancer import Addresses, Balancer
from stubserve.fleet.directory import Fleet, Front, Member
from tests.conformance.servers import free_ports
from tests.deploy.test_balancers import SEQUENCE, SUMS, haproxy
from tests.network import Network
from tests.real_server import Serving, eventually, io_config, write_model

pytestmark = pytest.mark.skipif(not haproxy(), reason="needs HAProxy")


class Fronted:
    """Servers behind a balancer; `show` says which there are."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        http, grpc, metrics, everyone_http, everyone_grpc, self._peer = free_ports(6)
        self.addresses = Addresses("127.0.0.1", http, grpc, metrics, everyone_http, everyone_grpc)
        (folder / "front").mkdir()
        self._balancer = Balancer(folder / "front", self.addresses)
        stack.callback(self._balancer.end)
        self.http = tritonclient.http.InferenceServerClient(f"127.0.0.1:{http}")
        self.grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc}")
        stack.callback(self.grpc.close)

    def server(
        self, number: int, *models: str, group: str = "all", named: bool = False, network: Network | None = None
    ) -> tuple[Serving, Member]:
        repository = self._folder / str(number)
        repository.mkdir()
        for model in models:
            write_model(repository, model, SUMS, io_config("INT32", "1", 8, SEQUENCE))
        host, server = "127.0.0.1", Serving(repository)
        if network is not None:
            host = network.address(0)
            server = Serving(repository, *(f"--{part}-address={host}" for part in ("http", "grpc")))
            server.command[:0] = network.within(0)
        self._stack.enter_context(server)
        if network is None:
            server.wait_until_ready()
        names = models if named else ()
        ports = server.port, server.grpc_port, server.metrics_port
        return server, Member(f"0000000{2 * number}", group, names, host, *ports, sequences=True)

    def show(self, *members: Member) -> None:
        self.show_groups({member.group: member.models for member in members}, *members)

    def show_groups(self, groups: dict[str, tuple[str, ...]], *members: Member) -> None:
        self._balancer.show(Fleet(1, list(members), [Front("f", "127.0.0.1", self._peer)], groups), "f")
        eventually(lambda: self.status("/v2/health/live") == 200)

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.addresses.http}{path}", timeout=30) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except URLError:
            return 0

    def step(self, kind: str, model: str, id: Any, number: int, **options: Any) -> int:
        """One step of a sequence; the sum so far."""
        module, client = {"http": (tritonclient.http, self.http), "grpc": (tritonclient.grpc, self.grpc)}[kind]
        given = module.InferInput("INPUT0", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[number]], np.int32))
        answered: int = client.infer(model, [given], sequence_id=id, **options).as_numpy("OUTPUT0").item()
        return answered


@pytest.fixture
def fronted(tmp_path: Path) -> Iterator[Fronted]:
    with contextlib.ExitStack() as stack:
        yield Fronted(tmp_path, stack)


def answered(server: Serving) -> int:
    (entry,) = server.request("GET", "/v2/models/sums/stats").json()["model_stats"]
    return int(entry["inference_stats"]["success"]["count"])


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_sequences_stay_where_they_are(fronted: Fronted, kind: str) -> None:
    """By the id in the request, while servers come and leave. Sums would be wrong, or refused, anywhere else."""
    first, one = fronted.server(1, "sums")
    fronted.show(one)
    ids = [5, 300, 2**40, 2**62]
    for id in ids:
        assert fronted.step(kind, "sums", id, 1, sequence_start=True) == 1
    second, two = fronted.server(2, "sums")
    fronted.show(one, two)
    for id in ids:
        assert fronted.step(kind, "sums", id, 2) == 3
    assert answered(second) == 0
    # New ones go to the other server, too.
    for id in range(1000, 1008):
        fronted.step(kind, "sums", id, 1, sequence_start=True)
    assert 0 < answered(second) < 8
    # The first leaves: it gets what it has, and nothing new.
    fronted.show(dataclasses.replace(one, leaving=True), two)
    before = answered(first)
    for id in ids:
        assert fronted.step(kind, "sums", id, 3, sequence_end=True) == 6
    assert answered(first) == before + len(ids)
    for id in range(2000, 2008):
        fronted.step(kind, "sums", id, 1, sequence_start=True)
    assert answered(first) == before + len(ids)


def test_each_group_has_its_models(fronted: Fronted) -> None:
    _, one = fronted.server(1, "a", group="one group", named=True)
    _, two = fronted.server(2, "b", "c", group="rest")
    fronted.show(one, two)
    for kind in ("http", "grpc"):
        for model in ("a", "b", "c"):
            assert fronted.step(kind, model, 7, 1, sequence_start=True, sequence_end=True) == 1
    for model in ("a", "b", "c"):
        assert fronted.grpc.is_model_ready(model)
        assert fronted.http.is_model_ready(model)
    assert fronted.status("/v2/models/nobody") == 404
    assert fronted.status("/v2/health/ready") == 200
    # Group two has nobody.
    fronted.show_groups({"one group": ("a",), "rest": ()}, one)
    eventually(lambda: fronted.status("/v2/health/ready") == 503)
    assert fronted.step("http", "a", 8, 1, sequence_start=True) == 1
    body = json.dumps({"inputs": []}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{fronted.addresses.http}/v2/models/b/infer", body)
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    with refused.value as answer:
        assert (answer.code, json.load(answer)) == (503, {"error": "no replica of this model is ready"})
        assert answer.headers["Retry-After"] == "1"


def test_a_dead_server_is_left_out(fronted: Fronted) -> None:
    first, one = fronted.server(1, "sums")
    _, two = fronted.server(2, "sums")
    fronted.show(one, two)
    for id in range(1, 9):
        fronted.step("http", "sums", id, 1, sequence_start=True)
    first.process.kill()
    first.process.wait()
    for id in range(100, 120):
        assert fronted.step("http", "sums", id, 1, sequence_start=True, sequence_end=True) == 1


@pytest.mark.parametrize("replaced", [False, True], ids=["running", "replaced"])
def test_a_stream_to_a_node_that_is_cut_off_ends(tmp_path: Path, replaced: bool) -> None:
    """Also in a process of HAProxy that was replaced, and only goes on for its connections."""
    with contextlib.ExitStack() as stack:
        try:
            network = Network("10.197.84", 1, stack)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("this machine lets nobody make networks")
        fronted = Fronted(tmp_path, stack)
        _, far = fronted.server(1, "far", group="far", named=True, network=network)
        _, near = fronted.server(2, "near", group="near", named=True)
        fronted.show(far)
        eventually(lambda: fronted.http.is_model_ready("far"))
        answers: queue.Queue[Any] = queue.Queue()
        fronted.grpc.start_stream(lambda result, error: answers.put((result, error)))
        given = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[7]], np.int32))
        fronted.grpc.async_stream_infer("far", [given], sequence_id=1, sequence_start=True)
        result, error = answers.get(timeout=30)
        assert error is None
        assert result.as_numpy("OUTPUT0").item() == 7
        if replaced:
            fronted.show(far, near)
        assert answers.empty()
        network.cut_off(0)
        if replaced:
            fronted.show_groups({"far": ("far",), "near": ("near",)}, near)
        result, error = answers.get(timeout=30)
        assert "Stream removed" in str(error)


def test_what_haproxy_does_not_take_is_said(fronted: Fronted) -> None:
    wrong = Member("00000002", "all", (), "not an address", 1, 2, 3)
    with pytest.raises(RuntimeError, match=r"HAProxy does not take .*haproxy\.cfg"):
        fronted.show(wrong)


def test_haproxy_dies_with_its_front(tmp_path: Path) -> None:
    """Killed as Ray's actors are; nothing of it stays."""
    ports = free_ports(6)
    script = f"""
import pathlib, time
from stubserve.fleet.balancer import Addresses, Balancer
from stubserve.fleet.directory import Fleet, Front, Member
balancer = Balancer(pathlib.Path({str(tmp_path)!r}), Addresses("127.0.0.1", *{ports[:5]}))
server, front = Member("00000002", "all", (), "127.0.0.1", 1, 2, 3), Front("f", "127.0.0.1", {ports[5]})
balancer.show(Fleet(1, [server], [front], {{"all": ()}}), "f")
print(balancer._process.pid, flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as front:
        assert front.stdout is not None
        pid = int(front.stdout.readline())
        front.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text())

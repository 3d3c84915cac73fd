"""The configuration of HAProxy in a front: HAProxy takes it, and it sends each request where it belongs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.service_pb2 as pb
import tritonclient.http
from tritonclient.utils import InferenceServerException

from stubserve.fleet import configuration
from stubserve.fleet.balancer import Balancer
from stubserve.fleet.configuration import Addresses
from stubserve.fleet.directory import Fleet, Front, ReplicaInfo
from tests.deploy.test_balancers import SEQUENCE, SUMS, haproxy
from tests.network import Network
from tests.real_server import Serving, eventually, io_config, write_model
from tools.ports import free_ports

TOKEN = "e3a7c1d85b9f4c20a6d1"
FROM_EVERYONE = 418
START = '"sequence_start": true'

pytestmark = [pytest.mark.long, pytest.mark.skipif(not haproxy(), reason="needs HAProxy")]


class FanOut(BaseHTTPRequestHandler):
    """In the place of what asks all servers."""

    def do_GET(self) -> None:
        self.send_response(FROM_EVERYONE)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Fronted:
    """Servers behind a balancer; `show` says which there are."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        *ports, self._peer = free_ports(6)
        self.addresses = Addresses("127.0.0.1", *ports)
        (folder / "front").mkdir()
        self._balancer = Balancer(folder / "front", self.addresses)
        stack.callback(self._balancer.end)
        self.http = tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports[0]}")
        self.grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{ports[1]}")
        stack.callback(self.grpc.close)

    def server(
        self,
        number: int,
        *models: str,
        group: str = "all",
        named: bool = False,
        network: Network | None = None,
        ids: str = "UINT64",
        flags: tuple[str, ...] = (),
    ) -> tuple[Serving, ReplicaInfo]:
        repository = self._folder / str(number)
        repository.mkdir()
        for model in models:
            write_model(repository, model, SUMS, io_config("INT32", "1", 8, SEQUENCE.replace("UINT64", ids)))
        host, server = "127.0.0.1", Serving(repository, *flags)
        if network is not None:
            host = network.address(0)
            server = Serving(repository, *(f"--{part}-address={host}" for part in ("http", "grpc")))
            server.command[:0] = network.within(0)
        self._stack.enter_context(server)
        if network is None:
            server.wait_until_ready()
        names = models if named else ()
        ports = server.port, server.grpc_port, server.metrics_port
        return server, ReplicaInfo(f"0000000{2 * number}", group, names, host, *ports, sequences=60)

    def show(self, *replicas: ReplicaInfo) -> None:
        self.show_groups({replica.group: replica.models for replica in replicas}, *replicas)

    def show_groups(self, groups: dict[str, tuple[str, ...]], *replicas: ReplicaInfo) -> None:
        self._balancer.show(Fleet(1, list(replicas), [Front("f", "127.0.0.1", self._peer)], groups), "f")
        eventually(lambda: self.status("/v2/health/live") == 200)

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.addresses.http}{path}", timeout=30) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except URLError:
            return 0

    def post(self, body: str, path: str = "/v2/models/sums/infer", **headers: str) -> tuple[int, Any]:
        """Status and sum, or error, of a step that is written in JSON by hand."""
        url = f"http://127.0.0.1:{self.addresses.http}{path}"
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body.encode(), given), timeout=30) as answer:
                return answer.status, json.load(answer)["outputs"][0]["data"][0]
        except HTTPError as error:
            with error:
                return error.code, json.load(error)["error"]

    def step(self, kind: str, model: str, id: Any, number: int, **options: Any) -> int:
        """One step of a sequence; the sum so far."""
        module, client = {"http": (tritonclient.http, self.http), "grpc": (tritonclient.grpc, self.grpc)}[kind]
        given = module.InferInput("INPUT0", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[number]], np.int32))
        options["headers"] = dict(options.get("headers", {}))  # the client adds to them
        answered: int = client.infer(model, [given], sequence_id=id, **options).as_numpy("OUTPUT0").item()
        return answered


@pytest.fixture
def fronted(tmp_path: Path) -> Iterator[Fronted]:
    with contextlib.ExitStack() as stack:
        yield Fronted(tmp_path, stack)


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    """Two servers with sequences whose ids are texts."""
    with contextlib.ExitStack() as stack:
        fronted = Fronted(tmp_path_factory.mktemp("two"), stack)
        fronted.show(*(fronted.server(number, "sums", ids="STRING")[1] for number in (1, 2)))
        fan_out = stack.enter_context(HTTPServer(("127.0.0.1", fronted.addresses.fan_out_http), FanOut))
        threading.Thread(target=fan_out.serve_forever).start()
        stack.callback(fan_out.shutdown)
        yield fronted


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


INPUTS = '"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}]'


@pytest.mark.parametrize(
    ("start", "steps"),
    [
        ('"sequence_id": "0"', ['"sequence_id": "0"', r'"sequence_id": "\u0030"']),
        ('"sequence_id": " lead"', ['"sequence_id" :  " lead"', r'"sequence_id": "\u0020lead"']),
        ('"sequence_id": ",x"', ['"sequence_id":",x"']),
        ('"sequence_id": "two words"', ['"sequence_id": "two words"']),
        ('"sequence_id": "a}\\"]b"', ['"x": "}", "sequence_id": "a}\\"]b"']),
        ('"sequence_id": "café"', [r'"sequence_id": "caf\u00e9"', r'"sequence\u005fid": "caf\u00e9"']),
        ('"sequence_id": "😀"', [r'"sequence_id": "\ud83d\ude00"', r'"s\u0065quence_id": "\uD83D\uDE00"']),
        ('"sequence_id": "first"', ['"sequence_id": "first", "sequence_id": "second"']),
        ('"sequence_id": "value"', ['"a": "sequence_id", "b": "\\"sequence_id\\":7", "sequence_id": "value"']),
        ('"sequence_id": "sequence_id"', ['"sequence_id": "sequence_id"']),
    ],
    ids=lambda said: said if isinstance(said, str) else "",
)
def test_an_id_is_read_as_a_server_reads_it(two_servers: Fronted, start: str, steps: list[str]) -> None:
    """However it is written. At the other server a step would be refused."""
    for total, parameters in enumerate((f"{start}, {START}", *steps, *steps, start), 1):
        before, behind = (
            f'{{"parameters": {{{parameters}}}, {INPUTS}}}',
            f'{{{INPUTS}, "parameters": {{{parameters}}}}}',
        )
        assert two_servers.post((before, behind)[total % 2]) == (200, total)


def test_a_path_and_an_empty_header_are_read_as_a_server_reads_them(two_servers: Fronted) -> None:
    body = f'{{"parameters": {{"sequence_id": "paths", {START}}}, {INPUTS}}}'
    assert two_servers.post(body) == (200, 1)
    body = body.replace(START, '"x": 1')
    paths = ("/v2/models/sums/%69nfer", "/v2%2fmodels/sum%73/infer?x=/stats", "/v2/models/sums/versions/1/infe%72")
    for total, path in enumerate(paths * 2, 2):
        assert two_servers.post(body, path) == (200, total)
    for total in range(8, 12):
        assert two_servers.post(body, x_sequence_id="") == (200, total)
    # What one server must not answer for all
    for path in (
        "/v2/%72epository/index",
        "/v2/loggin%67",
        "/v2/models/sums/stat%73",
        "/v2/system%73haredmemory/status",
    ):
        assert two_servers.status(path) == FROM_EVERYONE, path
    assert two_servers.status("/v2/%zz") == 400
    assert two_servers.status("/v2/drai%6e") == 400


def test_an_id_in_protobuf_is_read_as_a_server_reads_it(two_servers: Fronted) -> None:
    """An entry with its value first, one with another before it, and one after fields that nobody knows."""
    given = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="INT32", shape=[1, 1])
    rest = pb.ModelInferRequest(inputs=[given], raw_input_contents=[b"\x01\0\0\0"]).SerializeToString()
    entry = b"\x22\x14\x0a\x0bsequence_id\x12\x05\x1a\x03abc"
    ways = [
        entry,
        b"\x22\x14\x12\x05\x1a\x03abc\x0a\x0bsequence_id",
        b"\x22\x14\x0a\x0bsequence_id\x12\x05\x1a\x03xyz" + entry,
        b"\xa2\x06\x0bsequence_id\xa5\x06\0\0\0\0" + entry,
        b"\x22\x96\x00\x0a\x8b\x00sequence_id\x12\x85\x00\x1a\x03abc",
    ]
    start = pb.ModelInferRequest(model_name="sums")
    start.parameters["sequence_start"].bool_param = True
    with grpc.insecure_channel(f"127.0.0.1:{two_servers.addresses.grpc}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for total, way in enumerate((b"", *ways, *ways), 1):
            head = pb.ModelInferRequest(model_name="sums") if way else start
            answer = pb.ModelInferResponse.FromString(
                infer(head.SerializeToString() + (way or entry) + rest, timeout=30)
            )
            assert answer.raw_output_contents == [total.to_bytes(4, "little")]


def test_only_an_inference_that_is_allowed_takes_a_place(
    fronted: Fronted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence that is under way keeps its place; where there is none, the next sequence is refused."""
    monkeypatch.setattr(configuration, "_PLACES", 8)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    flags = (f"--auth-token-file={tokens}", "--auth-open-api=health")
    servers = [fronted.server(number, "sums", flags=flags)[1] for number in (1, 2)]
    fronted.show(*servers)
    allowed = {"authorization": f"Bearer {TOKEN}"}
    assert fronted.step("http", "sums", 1, 1, sequence_start=True, headers=allowed) == 1
    for id in range(100, 110):
        for path in ("/v2/health/ready", "/v2/models/sums", "/v2/models/sums/infer", "/"):
            url = f"http://127.0.0.1:{fronted.addresses.http}{path}"
            with contextlib.suppress(HTTPError):
                urllib.request.urlopen(urllib.request.Request(url, headers={"x-sequence-id": str(id), **allowed}))
        for kind in ("http", "grpc"):
            with pytest.raises(InferenceServerException, match="wants a token"):
                fronted.step(kind, "sums", id, 1, sequence_start=True)
            with pytest.raises(InferenceServerException, match="unknown model"):
                fronted.step(kind, "nobody", id, 1, sequence_start=True, headers=allowed)
    # Whatever the protocol, it is the same sequence.
    assert fronted.step("grpc", "sums", 1, 2, headers=allowed) == 3
    for id in range(2, 9):
        assert fronted.step("http", "sums", id, 1, sequence_start=True, headers=allowed) == 1
    for kind, text in (("http", "more sequences are under way"), ("grpc", "status: 503")):
        with pytest.raises(InferenceServerException, match=text):
            fronted.step(kind, "sums", 9, 1, sequence_start=True, headers=allowed)
    for id in range(2, 9):
        assert fronted.step("grpc", "sums", id, 1, headers=allowed) == 2
    assert fronted.step("http", "sums", 1, 3, sequence_end=True, headers=allowed) == 6


def test_each_group_has_its_models(fronted: Fronted) -> None:
    _, one = fronted.server(1, "a", "a b", group="one group", named=True)
    _, two = fronted.server(2, "b", "c", group="rest")
    fronted.show(one, two)
    for kind in ("http", "grpc"):
        for model in ("a", "b", "c", "a b"):
            assert fronted.step(kind, model, 7, 1, sequence_start=True, sequence_end=True) == 1
    for model in ("a", "b", "c", "a b"):
        assert fronted.grpc.is_model_ready(model)
        assert fronted.http.is_model_ready(model)
    assert fronted.status("/v2/models/nobody") == 404
    assert fronted.status("/v2/health/ready") == 200
    # Group two has nobody.
    fronted.show_groups({"one group": ("a", "a b"), "rest": ()}, one)
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
    wrong = ReplicaInfo("00000002", "all", (), "not an address", 1, 2, 3)
    with pytest.raises(RuntimeError, match=r"HAProxy does not take .*haproxy\.cfg"):
        fronted.show(wrong)


def test_haproxy_dies_with_its_front(tmp_path: Path) -> None:
    """Killed as Ray's actors are; nothing of it stays."""
    ports = free_ports(6)
    script = f"""
import pathlib, time
from stubserve.fleet import configuration
from stubserve.fleet.balancer import Balancer
from stubserve.fleet.configuration import Addresses
from stubserve.fleet.directory import Fleet, Front, ReplicaInfo
balancer = Balancer(pathlib.Path({str(tmp_path)!r}), Addresses("127.0.0.1", *{ports[:5]}))
server, front = ReplicaInfo("00000002", "all", (), "127.0.0.1", 1, 2, 3), Front("f", "127.0.0.1", {ports[5]})
balancer.show(Fleet(1, [server], [front], {{"all": ()}}), "f")
print(balancer._process.pid, flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as front:
        assert front.stdout is not None
        pid = int(front.stdout.readline())
        front.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text())

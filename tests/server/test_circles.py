"""What a request leaves behind in the server goes with its last reference, not when the garbage collector runs.

A region that a client has unregistered is told to be gone when nothing refers to it any more. What is in a circle is
kept until the collector runs, and a server that nobody asks any more may not run it for hours. So the collector of the
server under test does not run but when the test says so, and then nothing of a request may be for it to find.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.client_memory import SharedFile
from tests.real_server import PATIENCE_S, Serving, eventually, io_config, write_model
from tests.server.grpc_calls import connected

# Runs in the server's interpreter, and not in its stubs'. For each connection it collects, and tells what it has found
# that is a request's, or raised while one was handled, and how many of each kind are still referred to.
HOOK = """
import os

path = os.environ.pop("STUBSERVE_TEST_CIRCLES", "")
if path:
    import collections
    import gc
    import json
    import socket
    import threading

    gc.disable()
    gc.enable = lambda: None
    # What nothing refers to once a request is over; the others may be remembered, as answers are in the cache
    LIVING = {
        "ClientRegion", "RegionSpan", "Work", "Batch", "Trace", "HttpInferCall", "UnaryInferCall", "StreamedInferCall",
        "StepCall", "StubCall", "EnsembleRun", "ModelInfer", "ModelStreamInfer", "Stream", "LoggedRpc",
    }
    KINDS = LIVING | {"frame", "traceback", "Span", "Block", "Tensor", "Request", "Response", "Reply"}

    def kinds(found):
        counts = collections.Counter()
        for one in found:
            if isinstance(one, BaseException):
                counts[f"{type(one).__name__}: {one}"] += 1
            elif type(one).__name__ in KINDS:
                counts[getattr(getattr(one, "f_code", None), "co_qualname", type(one).__name__)] += 1
        return counts

    def census():
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        garbage = kinds(gc.garbage)
        gc.garbage.clear()
        gc.collect()
        living = collections.Counter(type(one).__name__ for one in gc.get_objects())
        return json.dumps({"garbage": garbage, "living": {kind: living[kind] for kind in LIVING if living[kind]}})

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve():
        census()  # what the imports have left
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(census().encode())

    threading.Thread(target=serve, daemon=True).start()
"""
# Does what the first number of its input says.
ACTS = """
    import os
    import time

    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = os.path.dirname(args["model_repository"])

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            x = request.inputs()[0].as_numpy()
            what = int(x.flat[0])
            if what == -1:
                raise ValueError("as it was asked")
            if what == -2:
                os._exit(1)
            if what == -3:
                open(os.path.join(self.folder, "waits"), "w").close()
                while not request.is_cancelled() and not os.path.exists(os.path.join(self.folder, "go")):
                    time.sleep(0.005)
            if what == -4:
                with open(os.path.join(self.folder, "cut")) as file:
                    os.truncate(file.read(), 0)
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x + 1)])
"""
STREAMS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for more in range(3):
                    tensor = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + more)
                    sender.send(pb_utils.InferenceResponse([tensor]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceRequest(
                    model_name="acts", inputs=request.inputs(), requested_output_names=["OUTPUT0"]
                ).exec()
                for request in requests
            ]
"""
TWICE = """
    platform: "ensemble"
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    ensemble_scheduling { step [
        { model_name: "%s" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
          output_map { key: "OUTPUT0" value: "a" } },
        { model_name: "echo" model_version: -1 input_map { key: "INPUT0" value: "a" }
          output_map { key: "OUTPUT0" value: "OUTPUT0" } }
    ] }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
TIMES_OUT = """
    dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1000 } }
"""
WAITS = -3.0
DIES = -2.0
# What it raises, and that its client's region is not there any more
FAILURES = {-1.0: "as it was asked", -4.0: "smaller"}
SMALL, LARGE = 16, 300_000
# More than gRPC takes of an answer that nobody reads
UNREAD = 2_000_000


class Watched:
    """A server whose garbage can be looked at."""

    def __init__(self, server: Serving, folder: Path, path: Path) -> None:
        self.server = server
        self.folder = folder
        self._path = path

    def nothing_is_left(self) -> None:
        """Waits until all of a request has gone; it must not be the collector that has it gone."""

        def has_gone() -> bool:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE_S)
                connection.connect(str(self._path))
                data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            found = json.loads(data)
            assert found["garbage"] == {}
            return not found["living"]

        eventually(has_gone)

    def register(self, name: str, file: SharedFile) -> None:
        body = json.dumps({"key": file.key, "byte_size": file.nbytes}).encode()
        assert self.server.request("POST", f"/v2/systemsharedmemory/region/{name}/register", body).status == 200

    def unregister(self) -> None:
        assert self.server.request("POST", "/v2/systemsharedmemory/unregister").status == 200


class Regions:
    """An input and an output, registered as "in" and "out"; what is asked for by name goes with the `with`."""

    def __init__(self, watched: Watched, what: float, count: int) -> None:
        self.watched = watched
        self.count = count
        self.given, self.wanted = SharedFile(np.full(count, what, np.float32)), SharedFile(4 * count)

    def __enter__(self) -> Regions:
        self.watched.register("in", self.given.__enter__())
        self.watched.register("out", self.wanted.__enter__())
        (self.watched.folder / "cut").write_text(self.wanted.path)
        return self

    def __exit__(self, *_: object) -> None:
        self.watched.unregister()
        self.given.__exit__(None, None, None)
        self.wanted.__exit__(None, None, None)
        for name in ("waits", "go"):
            (self.watched.folder / name).unlink(missing_ok=True)

    def document(self, **parameters: Any) -> dict[str, Any]:
        pieces = [{"shared_memory_region": name, "shared_memory_byte_size": 4 * self.count} for name in ("in", "out")]
        return {
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [self.count], "parameters": pieces[0]}],
            "outputs": [{"name": "OUTPUT0", "parameters": pieces[1]}],
            "parameters": parameters,
        }

    def message(self, model: str, **parameters: Any) -> Any:
        request = service_pb2.ModelInferRequest(model_name=model)
        given = request.inputs.add(name="INPUT0", datatype="FP32", shape=[self.count])
        for item, name in ((given, "in"), (request.outputs.add(name="OUTPUT0"), "out")):
            item.parameters["shared_memory_region"].string_param = name
            item.parameters["shared_memory_byte_size"].int64_param = 4 * self.count
        for key, value in parameters.items():
            if isinstance(value, bool):
                request.parameters[key].bool_param = value
            else:
                request.parameters[key].int64_param = value
        return request


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("circles")
    (folder / "sitecustomize.py").write_text(HOOK)
    repository = folder / "models"
    write_model(repository, "echo")
    write_model(repository, "acts", ACTS)
    write_model(repository, "streams", STREAMS, io_config(extra=DECOUPLED))
    write_model(repository, "calls", CALLS)
    write_model(repository, "impatient", ACTS, io_config("FP32", "-1", 0, TIMES_OUT))
    write_model(repository, "steps", config=io_config("FP32", "-1", 0, "sequence_batching { }"))
    write_model(repository, "cached", ACTS, io_config("FP32", "-1", 0, "response_cache { enable: true }"))
    for name, first in (("twice", "acts"), ("counted", "streams")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(TWICE % first + (DECOUPLED if first == "streams" else ""))
    path = folder / "socket"
    search = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": search, "STUBSERVE_TEST_CIRCLES": str(path)}
    flags = ("--allow-client-shm", "--access-log", "--cache-config=local,size=1M,coalesce=true")
    with Serving(repository, *flags, environment=environment) as server:
        server.wait_until_ready()
        found = Watched(server, repository, path)
        found.nothing_is_left()
        yield found


@pytest.fixture(autouse=True)
def all_serve(watched: Watched) -> Iterator[None]:
    yield
    watched.server.wait_until_ready()


def over_http(regions: Regions, model: str, **parameters: Any) -> str:
    body = json.dumps(regions.document(**parameters)).encode()
    answer = regions.watched.server.request("POST", f"/v2/models/{model}/infer", body)
    return "" if answer.status == 200 else answer.error


def over_grpc(regions: Regions, model: str, **parameters: Any) -> str:
    with connected(regions.watched.server) as client:
        try:
            client.infer(regions.message(model, **parameters))
        except grpc.RpcError as error:
            return str(error.details())
        return ""


def over_a_stream(regions: Regions, model: str, **parameters: Any) -> str:
    with connected(regions.watched.server) as client:
        return "".join(answer.error_message for answer in client.stream(regions.message(model, **parameters)))


# What is said of a request, empty where it succeeds
Way = Callable[..., str]
WAYS: list[Way] = [over_http, over_grpc, over_a_stream]


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("model", ["acts", "calls", "twice", "steps", "cached", "streams", "counted"])
@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_is_answered(watched: Watched, way: Way, model: str, count: int) -> None:
    if model in ("streams", "counted") and way is not over_a_stream:
        pytest.skip("is for streams")
    parameters = {"sequence_id": 7, "sequence_start": True, "sequence_end": True} if model == "steps" else {}
    with Regions(watched, 5, count) as regions:
        assert way(regions, model, **parameters) == ""
    watched.nothing_is_left()


def test_a_stream_that_is_read_when_its_request_is_over(watched: Watched) -> None:
    """The server has paused the request, since its client does not read, and its ensemble has ended it meanwhile."""

    def succeeded() -> int:
        statistics = json.loads(watched.server.get("/v2/models/counted/stats").body)["model_stats"][0]
        return int(statistics["inference_stats"]["success"]["count"])

    before = succeeded()
    message = service_pb2.ModelInferRequest(model_name="counted")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[UNREAD])
    message.raw_input_contents.append(bytes(4 * UNREAD))
    with connected(watched.server) as client:
        answers = client.stub.ModelStreamInfer(iter([message]))
        eventually(lambda: succeeded() == before + 1)
        assert [answer.error_message for answer in answers] == [""] * 3
    watched.nothing_is_left()


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("model", ["acts", "calls", "twice"])
@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_fails(watched: Watched, way: Way, model: str, what: float, count: int) -> None:
    with Regions(watched, what, count) as regions:
        assert FAILURES[what] in way(regions, model)
    watched.nothing_is_left()


@pytest.mark.parametrize("way", WAYS)
def test_a_stub_that_dies(watched: Watched, way: Way) -> None:
    with Regions(watched, DIES, LARGE) as regions:
        assert "acts" in way(regions, "twice")
    watched.nothing_is_left()
    watched.server.wait_until_ready()


@pytest.mark.parametrize("model", ["acts", "calls", "twice", "cached"])
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_client_that_goes(watched: Watched, count: int, model: str) -> None:
    """Its request is cancelled while it is executed, after its regions have been unregistered."""
    for way in ("http", "grpc", "stream"):
        with Regions(watched, WAITS, count) as regions, connected(watched.server) as client:
            message = regions.message(model)
            connection = watched.server.connect()
            if way == "http":
                connection.request("POST", f"/v2/models/{model}/infer", json.dumps(regions.document()).encode())
            elif way == "grpc":
                under_way = client.stub.ModelInfer.future(message)
            else:
                under_way = client.stub.ModelStreamInfer(iter([message]))
            eventually((watched.folder / "waits").exists)
            watched.unregister()
            if way == "http":
                connection.close()
            else:
                under_way.cancel()
            (watched.folder / "go").touch()
            watched.nothing_is_left()


def test_a_request_that_waits_too_long(watched: Watched) -> None:
    with Regions(watched, WAITS, SMALL) as regions, connected(watched.server) as client:
        asked = [client.stub.ModelInfer.future(regions.message("impatient"))]

        def is_executed() -> bool:
            # On a busy machine this one may wait too long, too.
            if asked[-1].done():
                asked.append(client.stub.ModelInfer.future(regions.message("impatient")))
            return (watched.folder / "waits").exists()

        eventually(is_executed)
        for way in WAYS:
            assert "timeout expired" in way(regions, "impatient")
        (watched.folder / "go").touch()
        assert [one.exception() is None for one in asked].count(True) == 1
    watched.nothing_is_left()


def test_equal_requests_that_wait_for_one(watched: Watched) -> None:
    """Without regions, as those are never answered from the cache; with each end that the one may have."""
    for what, fails in ((WAITS, False), (-1.0, True), (DIES, True)):
        with connected(watched.server) as client:
            message = service_pb2.ModelInferRequest(model_name="cached")
            message.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
            message.raw_input_contents.append(np.array([what], np.float32).tobytes())
            asked = [client.stub.ModelInfer.future(message) for _ in range(4)]
            asked.pop().cancel()
            (watched.folder / "go").touch()
            assert [one.exception() is not None for one in asked] == [fails] * 3
        (watched.folder / "go").unlink()
        watched.nothing_is_left()
        watched.server.wait_until_ready()


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_is_refused(watched: Watched, way: Way) -> None:
    with Regions(watched, 5, SMALL) as regions:
        assert "unknown model" in way(regions, "nobody")
        regions.wanted.shrink(0)
        assert "smaller" in way(regions, "echo")
    watched.nothing_is_left()


def test_a_body_that_is_refused_before_it_has_come(watched: Watched) -> None:
    connection = watched.server.connect()
    connection.putrequest("POST", "/v2/models/nobody/infer")
    connection.putheader("Content-Length", "1000")
    connection.endheaders()
    connection.send(bytes(10))
    watched.nothing_is_left()
    connection.send(bytes(990))
    assert connection.getresponse().status == 404
    watched.nothing_is_left()
    connection.close()

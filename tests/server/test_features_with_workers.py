"""What the server does for requests it does for those that come through workers: traces, cache, sequences, rules."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.client_memory import SharedFile
from tests.real_server import Answer, Serving, binary_output, binary_request, eventually, io_config, write_model
from tests.server.test_access import ADMIN, GUEST, TEXT_CONFIG, bearer
from tests.server.test_client_regions import floats, piece
from tests.server.test_http_workers import Ask, Way, binary, each_worker, json_request, workers
from tests.server.test_overload import BOUNDED, WAITING, busy
from tests.server.test_response_cache import COUNTS, ENABLED, counts
from tests.server.test_sequences import ADDER, config
from tests.server.test_tracing import CALLS, collector, spans_of, tracing

ONE = np.zeros((1, 4), np.float32)
VERSIONED = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + VERSION)])
                for request in requests
            ]
"""


class Collected(Serving):
    """A server that sends spans to `file`, by way of a collector, of requests that say so."""

    file: Path


def write_versioned(repository: Path, version: int) -> None:
    write_model(repository, "versioned", VERSIONED.replace("VERSION", str(version)), io_config(max_batch_size=4))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collected]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo", config=io_config(max_batch_size=4))
    write_model(repository, "strings", config=io_config("STRING"))
    write_model(repository, "calls", CALLS, io_config(max_batch_size=4))
    write_model(repository, "counts", COUNTS, io_config(extra=ENABLED))
    write_model(repository, "adder", ADDER, config(more="instance_group [ { count: 2 } ]", batch=1))
    write_model(repository, "waiting", WAITING, io_config(max_batch_size=1, extra=BOUNDED))
    write_versioned(repository, 1)
    file = tmp_path_factory.mktemp("spans") / "spans"
    with collector(file) as url:
        # Of 1,000,000 requests one is traced, and each that is a part of another's trace.
        settings = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1000000", f"opentelemetry,url={url}")
        with Collected(
            repository,
            "--http-workers=2",
            "--allow-client-shm",
            "--fair-queues=connection",
            "--cache-config=local,size=1048576",
            "--access-log",
            "--model-control-mode=explicit",
            "--load-model=*",
            *tracing(*settings, "opentelemetry,bsp_schedule_delay=50"),
        ) as serving:
            serving.file = file
            serving.wait_until_ready()
            yield serving


@contextlib.contextmanager
def knowing_workers(server: Serving, *requests: Ask) -> Iterator[list[Way]]:
    """Ways to ask each of two workers, both of which know the model of each of these requests by now."""
    with each_worker(server) as ways:
        for ask in ways:
            for request in requests * 2:
                ask(request)
        yield ways


def post(path: str, body: bytes = b"", **headers: str) -> Ask:
    return "POST", path, body, headers


def traced(request: Ask, trace: str) -> Ask:
    method, path, body, headers = request
    return method, path, body, {**headers, "traceparent": f"00-{trace}-{'b' * 16}-01"}


def test_spans_are_parts_of_their_clients_traces(server: Collected) -> None:
    """The context goes from a client through worker and owner to the model, and to the one that this calls."""
    request = binary("calls", ONE)
    ids = ["1" * 32, "2" * 32, "3" * 32]
    with knowing_workers(server, request) as ways:
        for ask, trace in zip(ways, ids, strict=False):
            assert ask(traced(request, trace)).status == 200
            server.wait_for(rf'context {{"traceparent":"00-{trace}-[0-9a-f]{{16}}-01"}}')
        known = post("/v2/models/echo/generate", b'{"INPUT0": [1.0, 2.0]}')
        assert [ways[0](traced(known, ids[2])).status for _ in range(2)] == [200, 200]
    spans = spans_of(server.file, lambda spans: len(spans) >= 2 * 5 + 2 * 3)
    for trace in ids[:2]:
        ours = {span.name: span for span in spans if span.trace == trace and span.name != "compute"}
        assert sorted(ours) == ["InferRequest", "calls", "echo"]
        assert ours["InferRequest"].parent == "b" * 16
        assert ours["InferRequest"].start <= ours["calls"].start <= ours["echo"].start
    generated = [span.name for span in spans if span.trace == ids[2]]
    assert sorted(generated) == ["InferRequest"] * 2 + ["compute"] * 2 + ["echo"] * 2
    assert len(spans) == 16


def test_a_cached_answer_is_there_for_every_worker(server: Serving) -> None:
    request = binary("counts", floats(4))
    before = counts(server)
    with each_worker(server) as ways:
        answers = [binary_output(ask(request)) for ask in ways * 4]
    assert all((answer == answers[0]).all() for answer in answers)
    hits, misses, executions = (now - then for now, then in zip(counts(server), before, strict=True))
    assert (hits, misses, executions) == (7, 1, 1)


def test_sequences_keep_their_instance_whichever_worker_their_requests_come_through(server: Serving) -> None:
    def step(sequence: str, value: int, flag: str = "") -> Ask:
        path, body, headers = binary_request("adder", np.array([[value]], np.int32), "INT32")
        text = json.dumps({
            "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [value]}],
            "parameters": {
                "sequence_id": sequence, "sequence_start": flag == "start", "sequence_end": flag == "end"
            },
        })  # fmt: skip
        return post(path, text.encode())

    def seen(answer: Answer) -> dict[str, Any]:
        assert answer.status == 200, answer
        found: dict[str, Any] = json.loads(answer.json()["outputs"][0]["data"][0])
        return found

    with each_worker(server) as ways:
        one, other = (seen(ask(step(name, 1, "start"))) for ask, name in zip(ways, "ab", strict=True))
        pids = {"a": one["pid"], "b": other["pid"]}
        assert len(set(pids.values())) == 2
        for number in range(2, 12):
            for name in "ab":
                found = seen(ways[number % 2](step(name, number)))
                assert (found["pid"], found["sum"]) == (pids[name], sum(range(1, number + 1)))
        assert [seen(ways[0](step(name, 0, "end")))["sum"] for name in "ab"] == [66, 66]


def successes(server: Serving, model: str) -> int:
    found = re.search(
        rf'nv_inference_request_success{{model="{model}",version="1"}} (\d+)', server.metrics().body.decode()
    )
    assert found is not None
    return int(found[1])


def test_every_request_is_counted_and_logged_once(server: Serving) -> None:
    request = binary("echo", ONE)
    before = successes(server, "echo")
    with each_worker(server) as ways:
        asked = [(ask, request) for ask in ways * 6] + [(ask, ("GET", "/v2/models/echo", None, {})) for ask in ways]
        assert [ask(one).status for ask, one in asked] == [200] * len(asked)
    for way in ways:
        for line, times in (("POST /v2/models/echo/infer", 6), ("GET /v2/models/echo", 1)):
            server.wait_for_all(rf"127.0.0.1:{way.port} - \"{line} HTTP/1.1\" 200", times)
    assert successes(server, "echo") - before == 12
    # What the server is asked itself is logged, too.
    server.wait_for(r"GET /metrics HTTP/1\.1")
    assert server.statistics("echo")["inference_stats"]["success"]["count"] == successes(server, "echo")


def test_requests_go_on_while_their_model_is_loaded_anew(server: Serving) -> None:
    repository = Path(server.command[4])
    path, body, headers = binary_request("versioned", ONE)
    over = threading.Event()
    found: list[set[float]] = []

    def client() -> None:
        connection = server.connect()
        values = set()
        while not over.is_set():
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            answer = Answer(response.status, dict(response.getheaders()), response.read())
            values |= set(binary_output(answer).ravel().tolist())
        connection.close()
        found.append(values)

    threads = [threading.Thread(target=client) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for version in (2, 3):
            write_versioned(repository, version)
            assert server.request("POST", "/v2/repository/models/versioned/load").status == 200
            # Whoever asks after the answer meets the new one, through either worker.
            with each_worker(server) as ways:
                assert [binary_output(ask(binary("versioned", ONE)))[0, 0] for ask in ways * 2] == [version] * 4
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert len(found) == 2
    for values in found:
        assert {3} < values <= {1, 2, 3}


def test_workers_answer_by_themselves_what_is_wrong_with_a_request(server: Serving) -> None:
    """And do not need the server for it, which is halted meanwhile."""
    generate = post("/v2/models/echo/generate", b'{"INPUT0": "one"}')
    infer = json_request("echo", "FP32", [1, 2], [1])
    with knowing_workers(server, generate, infer) as ways:
        psutil.Process(server.process.pid).suspend()
        try:
            for ask in ways:
                assert "non-number" in ask(generate).error
                assert "does not match true shape" in ask(infer).error
        finally:
            psutil.Process(server.process.pid).resume()


def test_a_full_queue_says_when_to_come_again(server: Serving) -> None:
    """Also to `generate`, whose other errors are all 400."""
    folder = Path(server.command[4]) / "waiting"
    good = post("/v2/models/waiting/generate", b'{"INPUT0": 1.0}')
    wrong = post("/v2/models/waiting/generate", b'{"INPUT0": "x"}')
    statuses: list[int] = []
    with knowing_workers(server, wrong) as ways:

        def ask() -> None:
            statuses.append(server.request(*good).status)

        threads = []

        def full() -> bool:
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
            return 'pending_request_count{model="waiting",version="1"} 2' in server.metrics().body.decode()

        # One runs, one is ahead of time, two wait.
        eventually(full)
        for way in ways:
            refused = way(good)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.error.endswith("Exceeds maximum queue size")
        (folder / "go").touch()
        for thread in threads:
            thread.join(60)
    assert statuses.count(200) >= 3
    assert set(statuses) <= {200, 503}


# Clients' shared memory


def register(name: str, file: SharedFile) -> Ask:
    body = json.dumps({"key": file.key, "byte_size": file.nbytes}).encode()
    return post(f"/v2/systemsharedmemory/region/{name}/register", body)


def unregister(name: str) -> Ask:
    return post(f"/v2/systemsharedmemory/region/{name}/unregister")


def by_region(count: int, model: str = "echo", datatype: str = "FP32", shape: tuple[int, ...] = (1, -1)) -> Ask:
    """A request with its tensors in the regions `in` and `out`."""
    tensor = {
        "name": "INPUT0", "datatype": datatype, "shape": [count if size < 0 else size for size in shape],
        "parameters": piece("in", 4 * count),
    }  # fmt: skip
    outputs = [{"name": "OUTPUT0", "parameters": piece("out", 4 * count)}]
    return post(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor], "outputs": outputs}).encode())


@pytest.mark.parametrize("count", [4, 3000, 1 << 18])
def test_a_region_is_known_to_every_worker_as_soon_as_it_is_registered(server: Serving, count: int) -> None:
    with knowing_workers(server, binary("echo", ONE)) as ways:
        for number in range(12):
            one, other = ways[number % 2], ways[1 - number % 2]
            with SharedFile(floats(count, number)) as given, SharedFile(4 * count) as wanted:
                assert one(register("in", given)).status == one(register("out", wanted)).status == 200
                for ask in (other, one):
                    wanted.put(np.zeros(count, np.float32))
                    answer = ask(by_region(count))
                    assert answer.status == 200, answer
                    assert answer.json()["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, count]}]
                    assert (wanted.array() == floats(count, number)).all()
                    # Only the input; the answer is sent, out of the region, for the model gives back what it was given.
                    path, body = by_region(count)[1:3]
                    assert body is not None
                    sent = json.loads(body)
                    sent["outputs"][0]["parameters"] = {"binary_data": True}
                    assert (binary_output(ask(post(path, json.dumps(sent).encode())))[0] == floats(count, number)).all()
                assert other(unregister("in")).status == one(unregister("out")).status == 200
                for ask in (one, other):
                    assert ask(by_region(count)).error == "Unable to find shared memory region: 'in'"


def test_what_is_wrong_with_a_region_is_told(server: Serving) -> None:
    strings = np.frombuffer(b"\3\0\0\0one" * 7, np.uint8)
    with (
        knowing_workers(server, binary("echo", ONE), json_request("strings", "BYTES", [1], ["a"])) as ways,
        SharedFile(floats(4)) as given,
        SharedFile(4 * 4) as wanted,
        SharedFile(strings) as texts,
        SharedFile(64) as spoken,
    ):
        for name, file in (("in", given), ("out", wanted)):
            assert ways[0](register(name, file)).status == 200
        for ask in ways:
            assert "Invalid offset + byte size" in ask(by_region(5)).error
        given.shrink(0)
        for ask in ways:
            assert "is smaller than when it was registered" in ask(by_region(4)).error
        for name, file in (("in", texts), ("out", spoken)):
            ways[0](unregister(name))
            assert ways[1](register(name, file)).status == 200
        for ask in ways:
            tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [7], "parameters": piece("in", 49)}
            outputs = [{"name": "OUTPUT0", "parameters": piece("out", 64)}]
            body = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
            assert ask(post("/v2/models/strings/infer", body)).status == 200
            assert spoken.array(np.uint8)[:49].tobytes() == strings.tobytes()
            spoken.put(np.zeros(64, np.uint8))
        ways[0](post("/v2/systemsharedmemory/unregister"))


def test_a_worker_that_starts_anew_knows_the_regions(server: Serving) -> None:
    with SharedFile(floats(3000)) as given, SharedFile(12000) as wanted:
        for name, file in (("in", given), ("out", wanted)):
            assert server.request(*register(name, file)).status == 200
        before = workers(server)
        os.kill(before[0].pid, signal.SIGKILL)
        eventually(lambda: len(found := workers(server)) == 2 and before[0] not in found)

        def shared_out() -> bool:
            """Whether connections are, for a worker that starts takes none yet."""
            with each_worker(server) as ways:
                for ask in ways:
                    ask(("GET", "/v2/health/live", None, {}))
                return all(one.net_connections("tcp") for one in workers(server))

        eventually(shared_out)
        with each_worker(server) as ways:
            for ask in ways * 3:
                assert ask(by_region(3000)).status == 200
                assert (wanted.array() == floats(3000)).all()
                wanted.put(np.zeros(3000, np.float32))
        server.request("POST", "/v2/systemsharedmemory/unregister")


def test_a_worker_that_is_halted_hears_of_all_regions_later(server: Serving) -> None:
    """More news than its socket holds; it takes them in before it looks at the next request."""
    # With connections of before the next two might both be one worker's.
    eventually(lambda: not any(one.net_connections("tcp") for one in workers(server)))
    with each_worker(server) as ways, SharedFile(floats(4)) as given, SharedFile(16) as wanted:
        for ask in ways:
            assert ask(binary("echo", ONE)).status == ask(binary("echo", ONE)).status == 200
        ports = {way.port: way for way in ways}
        halted = workers(server)[0]
        its = next(one.raddr.port for one in halted.net_connections("tcp") if one.raddr and one.raddr.port in ports)
        (other,) = [port for port in ports if port != its]
        halted.suspend()
        try:
            for _ in range(200):
                assert ports[other](register("in", given)).status == 200
                assert ports[other](unregister("in")).status == 200
            assert ports[other](register("in", given)).status == ports[other](register("out", wanted)).status == 200
        finally:
            halted.resume()
        assert ports[its](by_region(4)).status == 200
        assert (wanted.array() == floats(4)).all()
        ports[other](post("/v2/systemsharedmemory/unregister"))


# Rules


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("guarded")
    write_model(folder / "models", "echo", config=io_config(max_batch_size=4))
    write_model(folder / "models", "text", config=TEXT_CONFIG)
    (folder / "tokens").write_text(f"{GUEST} inference,health\n{ADMIN}\n")
    with Serving(
        folder / "models",
        "--http-workers=2",
        f"--auth-token-file={folder / 'tokens'}",
        "--http-restricted-api=statistics:X-Key=sesame",
        "--http-max-input-size=65536",
        "--max-connections=8",
    ) as serving:
        yield serving


def test_tokens_and_restricted_apis(guarded: Serving) -> None:
    def as_(request: Ask, headers: dict[str, str]) -> Ask:
        method, path, body, own = request
        return method, path, body, {**own, **headers}

    infer = binary("echo", ONE)
    generate = post("/v2/models/text/generate", b'{"text_INPUT": "a"}')
    index = post("/v2/repository/index")
    stats: Ask = "GET", "/v2/models/echo/stats", None, {}
    with each_worker(guarded) as ways:
        for ask in ways:
            for request in (infer, generate):
                for _ in range(3):  # passed on at first; read by the worker; and known to it
                    assert ask(as_(request, bearer(GUEST))).status == 200
                    refused = ask(request)
                    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
                    assert ask(as_(request, bearer("somebody-else-0123"))).status == 401
            assert ask(as_(index, bearer(GUEST))).status == 403
            assert ask(as_(index, bearer(ADMIN))).status == 200
            assert ask(as_(stats, bearer(ADMIN))).status == 403
            assert ask(as_(stats, {**bearer(ADMIN), "X-Key": "sesame"})).status == 200
    assert GUEST not in guarded.output


def test_limits(guarded: Serving) -> None:
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 20000], "data": [0] * 20000}]})
    infer = post("/v2/models/echo/infer", body.encode() + b" " * 65536, **bearer(ADMIN))
    generate = post("/v2/models/echo/generate", b'{"INPUT0": [1.0]' + b" " * 65536 + b"}", **bearer(ADMIN))
    with each_worker(guarded) as ways:
        for ask in ways * 2:
            for request in (infer, generate):
                refused = ask(request)
                assert refused.status == 400
                assert "exceeds the maximum allowed input size of 65536 bytes" in refused.error
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(busy(guarded.port, "echo", f"Authorization: Bearer {GUEST}"))
        # Each of them has its part of --max-connections, and nobody in it gives way.
        eventually(lambda: guarded.get("/v2/health/live").status == 503)
    eventually(lambda: guarded.request("GET", "/v2/health/live", headers=bearer(GUEST)).status == 200)

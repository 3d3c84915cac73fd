"""Batching as clients see it: what runs together, what waits, what is refused, what is dropped."""

from __future__ import annotations

import contextlib
import http.client
import re
import resource
import select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stubserve.schedulers.depth import MOST_AHEAD, QUICK_IN_A_ROW
from tests.real_server import Answer, Serving, binary_output, binary_request, io_config, write_model

# Answers each request with how many requests ran together. A negative input waits for the file "gate" to be there.
COUNTING = """
    import os
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_name"]
            self.gate = os.path.join(args["model_repository"], "gate")

        def execute(self, requests):
            values = [float(request.inputs()[0].as_numpy().flatten()[0]) for request in requests]
            print("executing", self.name, *values, flush=True)
            while min(values) < 0 and not os.path.exists(self.gate):
                time.sleep(0.005)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.full((1, 1), len(requests), np.float32))])
                for _ in requests
            ]
"""


@pytest.fixture(scope="module")
def repository_of_batchers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")

    def add(name: str, extra: str, max_batch_size: int = 8, dims: str = "1") -> None:
        write_model(repository, name, COUNTING, io_config("FP32", dims, max_batch_size, extra))

    add("batching", "dynamic_batching { max_queue_delay_microseconds: 10000000 preferred_batch_size: [ 4 ] }")
    add("patient", "dynamic_batching { max_queue_delay_microseconds: 1000 }")
    add("plain", "")
    add("ordered", "dynamic_batching { preserve_ordering: true } instance_group [ { count: 2 } ]", max_batch_size=1)
    add("bounded", "dynamic_batching { default_queue_policy { max_queue_size: 2 } }", max_batch_size=1)
    add(
        "expiring",
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000 } }",
        max_batch_size=1,
    )
    add("priorities", "dynamic_batching { priority_levels: 2 default_priority_level: 2 }", max_batch_size=1)
    # Where priorities hold, nothing is handed out ahead of time, so every request stays in the queue behind the gate.
    add("left", "dynamic_batching { priority_levels: 2 default_priority_level: 2 }")
    add("shapes", "dynamic_batching { }", dims="-1")
    add("several", "instance_group [ { count: 2 } ]")
    return repository


@pytest.fixture(scope="module")
def server(repository_of_batchers: Path) -> Iterator[Serving]:
    with Serving(repository_of_batchers) as running:
        yield running


class Pending:
    """A request on a connection of its own that has been sent and not yet read."""

    def __init__(self, server: Serving, model: str, value: float, width: int = 1, **more: object) -> None:
        self.connection: http.client.HTTPConnection = server.connect()
        # New connections come in when they have asked something. On one that is in, requests arrive as they are sent.
        self.connection.request("GET", "/v2/health/live")
        self.connection.getresponse().read()
        path, body, headers = binary_request(model, np.full((1, width), value, np.float32), **more)
        self.connection.request("POST", path, body, headers)

    def answered(self) -> bool:
        """Whether an answer is there to be read, now."""
        return bool(select.select([self.connection.sock], [], [], 0)[0])

    def answer(self) -> Answer:
        response = self.connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        self.connection.close()
        return answer


class Gate:
    """Keeps one request executing until it is opened, so that what happens in the queue does not depend on time."""

    def __init__(self, server: Serving, repository: Path, model: str) -> None:
        self._server = server
        self._file = repository / model / "gate"
        self._file.unlink(missing_ok=True)
        self.held = Pending(server, model, -1)
        server.wait_for(rf"executing {model} -1")

    def open(self) -> None:
        """Lets it go on, once the server has taken in everything that was sent to it."""
        for _ in range(3):
            self._server.get("/v2/health/live")
        self._file.touch()


def ask(server: Serving, model: str, value: float = 0, **more: object) -> Answer:
    return Pending(server, model, value, **more).answer()


def executions(server: Serving, model: str) -> list[str]:
    """What ran, in order: the values of each execution."""
    return re.findall(rf"executing {model} ([-0-9. ]+)\n", server.output)


def test_requests_that_come_together_run_together(server: Serving) -> None:
    pending = [Pending(server, "batching", 0) for _ in range(4)]
    assert [float(binary_output(one.answer()).flatten()[0]) for one in pending] == [4] * 4
    statistics = server.statistics("batching")
    assert (statistics["inference_count"], statistics["execution_count"]) == (4, 1)
    assert [(row["batch_size"], row["compute_infer"]["count"]) for row in statistics["batch_stats"]] == [(4, 1)]


def test_a_lonely_request_is_not_kept_for_ever(server: Serving) -> None:
    assert float(binary_output(ask(server, "patient")).flatten()[0]) == 1


def test_without_a_batcher_every_request_runs_alone(server: Serving, repository_of_batchers: Path) -> None:
    gate = Gate(server, repository_of_batchers, "plain")
    pending = [Pending(server, "plain", 0) for _ in range(6)]
    gate.open()
    assert [float(binary_output(one.answer()).flatten()[0]) for one in (gate.held, *pending)] == [1] * 7


def test_only_equal_shapes_share_a_batch(server: Serving, repository_of_batchers: Path) -> None:
    gate = Gate(server, repository_of_batchers, "shapes")
    pending = []
    for width in (1, 1, 1, 2, 2, 2):
        pending.append(Pending(server, "shapes", 0, width))
        server.get("/v2/health/live")  # so that they arrive in this order
    gate.open()
    assert [float(binary_output(one.answer()).flatten()[0]) for one in pending] == [3] * 6
    assert gate.held.answer().status == 200


def test_batches_that_are_handed_out_ahead_stay_whole(server: Serving, repository_of_batchers: Path) -> None:
    for _ in range(QUICK_IN_A_ROW + 1):
        assert ask(server, "shapes").status == 200
    before = server.statistics("shapes")
    gate = Gate(server, repository_of_batchers, "shapes")
    # Where the machine is quick enough, the next request goes ahead alone. Behind this one no machine does that.
    lonely = Pending(server, "shapes", 0, 100)
    server.get("/v2/health/live")  # so that they arrive in this order
    widths = [width for width in range(1, 2 * MOST_AHEAD) for _ in range(2)]
    pending = []
    for width in widths:
        pending.append(Pending(server, "shapes", width, width))
        server.get("/v2/health/live")
    gate.open()
    assert [float(binary_output(one.answer()).flatten()[0]) for one in pending] == [2] * len(widths)
    assert gate.held.answer().status == lonely.answer().status == 200
    pairs = [f"{width:.1f} {width:.1f}" for width in range(1, 2 * MOST_AHEAD)]
    server.wait_for(rf"executing shapes {re.escape(pairs[-1])}\n")
    assert executions(server, "shapes")[-len(pairs) :] == pairs
    after = server.statistics("shapes")
    counted = [after[name] - before[name] for name in ("inference_count", "execution_count")]
    assert counted == [2 + len(widths), 2 + len(pairs)]


def test_answers_keep_the_order_of_requests(server: Serving, repository_of_batchers: Path) -> None:
    gate = Gate(server, repository_of_batchers, "ordered")
    second = Pending(server, "ordered", 0)
    server.wait_for(r"executing ordered 0")
    assert not second.answered()
    gate.open()
    assert second.answer().status == 200
    # The first answer was written before the second, so by now it is there.
    assert gate.held.answered()
    assert gate.held.answer().status == 200


def test_a_full_queue_refuses(server: Serving, repository_of_batchers: Path) -> None:
    gate = Gate(server, repository_of_batchers, "bounded")
    pending = [Pending(server, "bounded", 0) for _ in range(3)]
    gate.open()
    answers = [one.answer() for one in pending]
    assert gate.held.answer().status == 200
    assert sorted(answer.status for answer in answers) == [200, 200, 503]
    (refused,) = [answer for answer in answers if answer.status == 503]
    assert refused.error == "[request id: <id_unknown>] Exceeds maximum queue size"


def test_an_old_request_expires_while_the_instance_is_busy(server: Serving, repository_of_batchers: Path) -> None:
    gate = Gate(server, repository_of_batchers, "expiring")
    answer = ask(server, "expiring")
    assert (answer.status, answer.error) == (503, "Request timeout expired")
    gate.open()
    assert gate.held.answer().status == 200


def test_urgent_requests_overtake(server: Serving, repository_of_batchers: Path) -> None:
    gate = Gate(server, repository_of_batchers, "priorities")
    calm = [Pending(server, "priorities", 2, parameters={"priority": 2}) for _ in range(3)]
    server.get("/v2/health/live")
    urgent = Pending(server, "priorities", 1, parameters={"priority": 1})
    gate.open()
    assert [one.answer().status for one in (*calm, urgent, gate.held)] == [200] * 5
    # What a stub prints and what it answers take different ways: the last line may still be on its own.
    server.wait_for(r"(?s)(executing priorities 2\.0\n.*){3}")
    assert executions(server, "priorities") == ["-1.0", "1.0", "2.0", "2.0", "2.0"]


def test_queued_requests_of_clients_that_left_are_dropped(server: Serving, repository_of_batchers: Path) -> None:
    before = server.statistics("left")
    gate = Gate(server, repository_of_batchers, "left")
    for _ in range(5):
        Pending(server, "left", 7).connection.close()
    gate.open()
    assert gate.held.answer().status == 200
    assert ask(server, "left").status == 200
    after = server.statistics("left")
    assert after["execution_count"] - before["execution_count"] == 2
    failures = [statistics["inference_stats"]["fail"]["count"] for statistics in (before, after)]
    assert failures[1] - failures[0] == 5
    assert "7.0" not in executions(server, "left")


def test_a_busy_instance_does_not_hold_up_the_other(server: Serving, repository_of_batchers: Path) -> None:
    gate = Gate(server, repository_of_batchers, "several")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(server, "several"), range(20)))
    assert [answer.status for answer in answers] == [200] * 20
    gate.open()
    assert gate.held.answer().status == 200


def test_a_delay_ends_where_there_is_no_descriptor_for_its_timer(tmp_path: Path) -> None:
    batching = "dynamic_batching { max_queue_delay_microseconds: 1000 }"
    write_model(tmp_path, "patient", config=io_config("FP32", "1", 8, batching))
    with Serving(tmp_path) as server, contextlib.closing(server.connect()) as connection:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, hard))
        path, body, headers = binary_request("patient", np.ones((1, 1), np.float32))
        connection.request("POST", path, body, headers)
        assert connection.getresponse().status == 200

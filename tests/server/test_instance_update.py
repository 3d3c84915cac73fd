"""Models that serve and get other instances, because only `instance_group` of their configuration has changed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.real_server import PATIENCE_S, Serving, eventually, write_model
from tests.server.test_lifecycle import wait_until_gone
from tests.server.test_model_control import EXPLICIT, Controlled

# Answers with the name of the instance; before that, or later from a thread, waits until somebody writes to a pipe.
NAMED = """
    import json
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]
            count = sum(group["count"] for group in json.loads(args["model_config"])["instance_group"])
            print("initialize", self.name, args["model_instance_kind"], "one of", count, flush=True)
            if self.name.startswith("bad"):
                raise ValueError("not this one")

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            command, _, pipe = request.inputs()[0].as_numpy().ravel()[0].decode().partition(" ")
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[self.name]], dtype=object))])
            if command == "later":
                threading.Thread(target=self.send, args=(request.get_response_sender(), answer, pipe)).start()
                return None
            if command == "wait":
                self.wait(pipe)
            return answer

        def send(self, sender, answer, pipe):
            self.wait(pipe)
            sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        def wait(self, pipe):
            print("waiting in", self.name, "for", pipe, flush=True)
            open(pipe).read()

        def finalize(self):
            print("finalize", self.name, flush=True)
"""

BATCHING = {"dynamic_batching": {}, "max_batch_size": 8}


def config(*groups: dict[str, Any], **more: Any) -> str:
    """JSON, which is a text protobuf's configuration for `load`."""
    tensor = {"data_type": "TYPE_STRING", "dims": [1]}
    return json.dumps(
        {
            "backend": "python",
            "max_batch_size": 1,
            "input": [{"name": "INPUT0", **tensor}],
            "output": [{"name": "OUTPUT0", **tensor}],
            "instance_group": list(groups),
            **more,
        }
    )


def cpu(count: int, name: str = "", **more: Any) -> dict[str, Any]:
    return {"count": count, "kind": "KIND_CPU", "name": name, **more}


class Updated(Controlled):
    """With models that say which instance answers."""

    def named(self, name: str, count: int, **more: Any) -> None:
        write_model(self.repository, name, NAMED)
        self.change(name, cpu(count), **more)

    def change(self, name: str, *groups: dict[str, Any], **more: Any) -> None:
        answer = self.load(name, config=config(*groups, **more))
        assert answer.status == 200, answer

    def changing(self, pool: ThreadPoolExecutor, name: str, *groups: dict[str, Any], **more: Any) -> Future[None]:
        """A change that takes instances away which still have something to do: it serves, and is not answered yet."""
        before = self.server.output.count(f"successfully loaded '{name}'")
        change = pool.submit(self.change, name, *groups, **more)
        self.server.wait_for(f"(?s)(successfully loaded '{name}'.*){{{before + 1}}}")
        return change

    def pipe(self, name: str) -> Path:
        pipe = self.repository.parent / name
        os.mkfifo(pipe)
        return pipe

    def ask(self, model: str, command: str = "") -> str:
        answer = self.server.infer_json(
            model, [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "data": [command]}]
        )
        assert answer.status == 200, answer
        text: str = answer.json()["outputs"][0]["data"][0]
        return text

    def names(self, model: str, requests: int = 4) -> set[str]:
        """Who answers requests that come one after the other: instances take turns."""
        return {self.ask(model) for _ in range(requests)}

    def waiting(self, pool: ThreadPoolExecutor, model: str, pipe: Path, command: str = "wait") -> Future[str]:
        """A request that is being executed until somebody writes to the pipe."""
        running = pool.submit(self.ask, model, f"{command} {pipe}")
        self.server.wait_for(f"waiting in [^ ]* for {pipe}\n")
        return running

    def groups(self, model: str) -> list[tuple[str, int]]:
        served = self.server.get(f"/v2/models/{model}/config").json()
        return [(group["name"], group["count"]) for group in served["instance_group"]]

    def count(self, model: str) -> int:
        count: int = self.server.statistics(model)["inference_count"]
        return count


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Updated]:
    repository = tmp_path_factory.mktemp("update") / "models"
    repository.mkdir()
    with Serving(repository, EXPLICIT, "--exit-timeout-secs=5") as server:
        yield Updated(server, repository)
        assert server.stop() == 0


def test_instances_come_and_go_and_the_rest_stays(updated: Updated) -> None:
    server = updated.server
    updated.named("grows", 1)
    assert updated.names("grows") == {"grows_0_0"}
    (first,) = server.stub_pids()
    updated.change("grows", cpu(3))
    assert updated.names("grows", 6) == {"grows_0_0", "grows_0_1", "grows_0_2"}
    server.wait_for("initialize grows_0_2 CPU one of 3")
    assert (updated.groups("grows"), updated.count("grows")) == ([("grows_0", 3)], 10)
    assert first in server.stub_pids()
    # The last stay, under the names that they have.
    updated.change("grows", cpu(2, "other"))
    assert updated.names("grows") == {"grows_0_2", "grows_0_1"}
    server.wait_for("finalize grows_0_0\n")
    wait_until_gone([first], 10)
    updated.change("grows", {"count": 1, "kind": "KIND_MODEL"}, cpu(1))
    assert updated.names("grows") == {"grows_0_0", "grows_0_2"} or updated.names("grows") == {"grows_0_0", "grows_0_1"}
    server.wait_for("initialize grows_0_0 MODEL one of 2")
    assert updated.count("grows") >= 18
    assert server.output.count("successfully unloaded 'grows'") == 0
    server.wait_for_all("initialize grows_0_1", 1)
    updated.drop("grows")
    assert server.stub_pids() == []


@pytest.mark.parametrize("more", [{}, BATCHING], ids=["alone", "batching"])
def test_an_instance_that_goes_finishes_what_it_executes(updated: Updated, more: dict[str, Any]) -> None:
    server = updated.server
    model = "shrinks_" + ("batching" if more else "alone")
    updated.named(model, 2, **more)
    pipes = [updated.pipe(f"{model}.{number}") for number in range(2)]
    with ThreadPoolExecutor(4) as pool:
        running = [updated.waiting(pool, model, pipe) for pipe in pipes]
        change = updated.changing(pool, model, cpu(1), **more)
        assert updated.groups(model) == [(f"{model}_0", 1)]
        assert updated.rows(model) == [{"name": model, "version": "1", "state": "READY"}]
        queued = pool.submit(updated.ask, model)
        assert not change.done()
        for pipe in pipes:
            pipe.write_text("go on")
        assert {one.result(PATIENCE_S) for one in running} == {f"{model}_0_0", f"{model}_0_1"}
        assert queued.result(PATIENCE_S) == f"{model}_0_1"
        change.result(PATIENCE_S)
        assert len(server.stub_pids()) == 1
    server.wait_for(f"finalize {model}_0_0\n")
    assert updated.names(model) == {f"{model}_0_1"}
    assert f"finalize {model}_0_1" not in server.output
    assert updated.count(model) == 7
    updated.drop(model)


def test_an_instance_that_goes_finishes_what_its_threads_will_answer(updated: Updated) -> None:
    updated.named("sends", 1)
    pipe = updated.pipe("sends.pipe")
    with ThreadPoolExecutor(2) as pool:
        running = updated.waiting(pool, "sends", pipe, "later")
        change = updated.changing(pool, "sends", {"count": 1, "kind": "KIND_MODEL", "name": "next"})
        assert updated.names("sends") == {"next_0"}
        assert "finalize sends_0_0" not in updated.server.output
        assert not change.done()
        pipe.write_text("go on")
        assert running.result(PATIENCE_S) == "sends_0_0"
        change.result(PATIENCE_S)
        assert len(updated.server.stub_pids()) == 1
    updated.server.wait_for("finalize sends_0_0\n")
    updated.drop("sends")


def test_new_instances_take_requests_while_old_ones_execute(updated: Updated) -> None:
    updated.named("helped", 1)
    pipe = updated.pipe("helped.pipe")
    with ThreadPoolExecutor(2) as pool:
        running = updated.waiting(pool, "helped", pipe)
        queued = pool.submit(updated.ask, "helped")
        updated.change("helped", cpu(2))
        assert queued.result(PATIENCE_S) == "helped_0_1"
        assert updated.names("helped") == {"helped_0_1"}
        pipe.write_text("go on")
        assert running.result(PATIENCE_S) == "helped_0_0"
    assert updated.names("helped") == {"helped_0_0", "helped_0_1"}
    updated.drop("helped")


def test_an_instance_that_goes_and_dies_fails_its_request_and_is_not_restarted(updated: Updated) -> None:
    server = updated.server
    updated.named("dies", 1)
    (stub,) = server.stub_pids()
    pipe = updated.pipe("dies.pipe")
    body = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "data": [f"wait {pipe}"]}]}
    ).encode()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.request, "POST", "/v2/models/dies/infer", body)
        server.wait_for(f"waiting in dies_0_0 for {pipe}\n")
        change = updated.changing(pool, "dies", {"count": 1, "kind": "KIND_MODEL"})
        os.kill(stub, signal.SIGKILL)
        answer = running.result(PATIENCE_S)
        change.result(PATIENCE_S)
    assert (answer.status, "Stub process 'dies_0_0' is not healthy" in answer.error) == (500, True)
    assert updated.names("dies") == {"dies_0_0"}
    assert len(server.stub_pids()) == 1
    assert "is restarted in" not in server.output
    assert server.get("/v2/models/dies/ready").status == 200
    updated.drop("dies")


def test_an_instance_that_does_not_start_changes_nothing(updated: Updated) -> None:
    server = updated.server
    updated.named("keeps", 2)
    assert updated.names("keeps") == {"keeps_0_0", "keeps_0_1"}
    before = server.stub_pids()
    answer = updated.load("keeps", config=config(cpu(2), cpu(1, "good"), cpu(1, "bad")))
    assert answer.status == 400
    assert answer.error.startswith(
        "load failed for model 'keeps': version 1 is at READY state: Internal: ValueError: not this one\n\nAt:\n"
    )
    assert answer.error.endswith(";\n")
    (row,) = updated.rows("keeps")
    assert (row["state"], row["reason"].startswith("Internal: ValueError: not this one")) == ("READY", True)
    assert server.get("/v2/models/keeps/ready").status == 200
    assert updated.names("keeps") == {"keeps_0_0", "keeps_0_1"}
    assert (updated.groups("keeps"), updated.count("keeps")) == ([("keeps_0", 2)], 8)
    assert server.stub_pids() == before
    updated.change("keeps", cpu(1))
    assert updated.rows("keeps") == [{"name": "keeps", "version": "1", "state": "READY"}]
    updated.drop("keeps")


def test_no_request_is_lost_while_instances_change(updated: Updated) -> None:
    updated.named("changes", 1)
    over = threading.Event()

    def client() -> int:
        count = 0
        while not over.is_set():
            updated.ask("changes")
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(client) for _ in range(3)]
        try:
            for count in (2, 1, 3, 1):
                updated.change("changes", cpu(count))
            updated.change("changes", {"count": 1, "kind": "KIND_MODEL"})
        finally:
            over.set()
        answered = sum(one.result(PATIENCE_S) for one in clients)
    assert updated.count("changes") == answered
    updated.drop("changes")


def test_an_unload_waits_for_instances_that_go(updated: Updated) -> None:
    updated.named("unloads", 2)
    pipes = [updated.pipe(f"unloads.{number}") for number in range(2)]
    with ThreadPoolExecutor(3) as pool:
        running = [updated.waiting(pool, "unloads", pipe) for pipe in pipes]
        change = updated.changing(pool, "unloads", cpu(1))
        updated.unload("unloads")  # which does not wait for the change
        assert updated.rows("unloads")[0]["state"] == "UNLOADING"
        for pipe in pipes:
            pipe.write_text("go on")
        assert {one.result(PATIENCE_S) for one in running} == {"unloads_0_0", "unloads_0_1"}
        change.result(PATIENCE_S)
    updated.wait_unloaded("unloads")
    updated.server.wait_for_all("finalize unloads_0_", 2)
    assert updated.server.stub_pids() == []


def test_a_server_that_stops_ends_instances_that_go(repository: Path) -> None:
    with Serving(repository, EXPLICIT, "--exit-timeout-secs=1") as server, ThreadPoolExecutor(2) as pool:
        updated = Updated(server, repository)
        updated.named("stuck", 1)
        updated.waiting(pool, "stuck", updated.pipe("stuck.pipe"))
        updated.changing(pool, "stuck", {"count": 1, "kind": "KIND_MODEL"})
        pids = server.stub_pids()
        assert len(pids) == 2
        assert server.stop(timeout=30) == 0
        wait_until_gone(pids, 5)


def test_a_model_that_takes_its_own_instance_away_does_not_wait_for_itself(updated: Updated) -> None:
    wanted = config({"count": 1, "kind": "KIND_MODEL"})
    source = NAMED.replace(
        'if command == "wait":', f'if command == "change":\n                pb_utils.load_model("lonely", {wanted!r})\n'
        '            if command == "wait":'
    )  # fmt: skip
    write_model(updated.repository, "lonely", source)
    updated.change("lonely", cpu(1))
    assert updated.ask("lonely", "change") == "lonely_0_0"
    updated.server.wait_for("finalize lonely_0_0")
    updated.drop("lonely")


# What makes it a full reload


def test_what_else_has_changed_decides(updated: Updated) -> None:
    folder = write_model(updated.repository, "decides", NAMED.replace("import json", "import json, helper", 1))
    helper = folder / "1" / "helper.py"
    helper.write_text("A = 1")

    def load(count: int, more: str = "") -> int:
        """How many requests the statistics know of after a load."""
        (folder / "config.pbtxt").write_text(
            'backend: "python" max_batch_size: 1 '
            'input { name: "INPUT0" data_type: TYPE_STRING dims: 1 } '
            'output { name: "OUTPUT0" data_type: TYPE_STRING dims: 1 } '
            f"instance_group {{ count: {count} kind: KIND_CPU }} {more}"
        )
        assert updated.load("decides").status == 200
        updated.ask("decides")
        return updated.count("decides") - 1

    assert load(1) == 0
    assert load(2) == 1  # what Python has written beside the helper counts for nothing
    assert load(2) == 2  # config.pbtxt is younger, and says the same
    assert load(2, "version_policy { all {} }") == 3
    helper.write_text("A = 10")
    assert load(1, "version_policy { all {} }") == 0
    (folder / "labels.txt").write_text("a")
    assert load(2, "version_policy { all {} }") == 0
    assert load(1, 'version_policy { all {} } parameters { key: "a" value { string_value: "b" } }') == 0
    updated.drop("decides")


def test_a_new_version_leaves_the_others_alone(updated: Updated) -> None:
    server = updated.server
    every = config(cpu(1), version_policy={"all": {}})
    write_model(updated.repository, "versions", NAMED)
    updated.load("versions", config=every)
    updated.ask("versions")
    (first,) = server.stub_pids()
    write_model(updated.repository, "versions", NAMED, version=2)
    updated.load("versions", config=every)
    counts = [row["inference_count"] for row in server.get("/v2/models/versions/stats").json()["model_stats"]]
    assert (counts, len(server.stub_pids())) == ([1, 0], 2)
    # One that fails to start leaves the instances of the others as they are, too.
    write_model(updated.repository, "versions", NAMED + "\n    raise ValueError('second')", version=2)
    answer = updated.load("versions", config=config(cpu(2), version_policy={"all": {}}))
    assert "version 2 is at UNAVAILABLE state: Internal: ValueError: second" in answer.error
    assert [row["state"] for row in updated.rows("versions")] == ["READY", "READY"]
    assert updated.groups("versions") == [("versions_0", 1)]
    updated.load("versions", config=config(cpu(1), version_policy={"specific": {"versions": ["1"]}}))
    updated.wait_unloaded("versions", 2)
    # The instance that version 1 had got before version 2 failed ends by itself.
    eventually(lambda: server.stub_pids() == [first])
    assert server.statistics("versions")["inference_count"] == 1
    updated.drop("versions")

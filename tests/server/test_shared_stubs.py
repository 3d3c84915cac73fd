"""Instances that share a stub: one process, one model, and each its own requests, states, end and name."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stubserve.checking.repository import check_repositories
from tests.packages import install
from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, eventually, write_model
from tests.server.test_model_control import EXPLICIT

IO = """
    max_batch_size: 4
    input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
"""
X = np.arange(4, dtype=np.float32).reshape(1, 4)
# Above what travels in a message
LARGE = np.arange(20_000, dtype=np.float32).reshape(1, 20_000)


def sharing(repository: Path, *flags: str, **more: Any) -> Serving:
    """A server in which the instances of a group share a stub, unless their model says otherwise."""
    shared = [f"--backend-config={backend},instances-per-stub=all" for backend in ("identity", "onnxruntime")]
    return Serving(repository, *shared, *flags, **more)


def parameter(name: str, value: Any) -> str:
    return f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}'


def identity(repository: Path, name: str, count: int, more: str = "", delay_ms: int = 0) -> str:
    """Writes a model of the backend identity; returns its configuration."""
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    config = f"""
    backend: "identity" {IO} {more} {parameter("execute_delay_ms", delay_ms)}
    instance_group {{ count: {count} kind: KIND_CPU }}
    """
    (folder.parent / "config.pbtxt").write_text(config)
    return config


def stubs_of(server: Serving, model: str) -> list[int]:
    """The process of each instance, as the status page has it."""
    rows = server.metrics("/status.json").json()["models"]
    return [one["pid"] for row in rows if row["name"] == model for one in row["instances"]]


def restarts(server: Serving) -> list[int]:
    found = re.findall(r"^stubserve_instance_restarts_total\{.*\} (\d+)$", server.metrics().body.decode(), re.M)
    return [int(one) for one in found]


def ask_side_by_side(server: Serving, model: str, requests: int) -> list[Answer]:
    with ThreadPoolExecutor(requests) as pool:
        return [one.result() for one in [pool.submit(server.infer_array, model, X) for _ in range(requests)]]


def test_the_instances_of_a_group_share_a_stub_where_that_is_said(repository: Path) -> None:
    identity(repository, "all", 3)
    identity(repository, "alone", 3, parameter("INSTANCES_PER_STUB", 1))
    identity(repository, "pairs", 5, parameter("INSTANCES_PER_STUB", 2))
    write_model(repository, "python", config=f'backend: "python" {IO} instance_group {{ count: 2 kind: KIND_CPU }}')
    with sharing(repository) as server:
        server.wait_until_ready()
        counts = {name: stubs_of(server, name) for name in ("all", "alone", "pairs", "python")}
        assert {name: len(set(pids)) for name, pids in counts.items()} == {
            "all": 1, "alone": 3, "pairs": 3, "python": 2,
        }  # fmt: skip
        assert len(server.stub_pids()) == 9
        assert f"the instances all_0, all_1, all_2 share a stub (pid {counts['all'][0]})" in server.output.replace(
            "_0_", "_"
        )
        for name in counts:
            for array in (X, LARGE):
                assert (binary_output(server.infer_array(name, array)) == array).all()


def test_a_setting_of_the_backend_says_how_many(repository: Path) -> None:
    identity(repository, "pairs", 4)
    identity(repository, "alone", 2, parameter("INSTANCES_PER_STUB", 1))
    with sharing(repository, "--backend-config=identity,instances-per-stub=2") as server:
        server.wait_until_ready()
        assert len(set(stubs_of(server, "pairs"))) == 2
        assert len(set(stubs_of(server, "alone"))) == 2


def test_refusals_say_why(repository: Path) -> None:
    refused = {
        "zero": ('backend: "identity"', "0", "must be 'all' or a number from 1 on. Got '0'"),
        "words": ('backend: "identity"', "some", "must be 'all' or a number from 1 on. Got 'some'"),
        "python": ('backend: "python"', "all", "each instance of the backend 'python' needs a stub of its own"),
    }
    for name, (backend, value, _) in refused.items():
        write_model(repository, name, config=f"{backend} {IO} {parameter('INSTANCES_PER_STUB', value)}")
    with sharing(repository, EXPLICIT) as server:
        for name, (_, value, reason) in refused.items():
            answer = server.request("POST", f"/v2/repository/models/{name}/load", b"{}")
            assert answer.status == 400
            assert f"parameter 'INSTANCES_PER_STUB' of model '{name}'" in answer.error
            assert reason in answer.error
            assert value in answer.error
    report = check_repositories([repository], repository)
    for name, (_, _, reason) in refused.items():
        assert any(reason in problem.text for problem in report.problems if problem.model == name)


class Load:
    """Clients that ask without an end, until `with` is left; `answers` has what they got."""

    def __init__(self, server: Serving, model: str, clients: int, ask: Callable[[int], Answer] | None = None) -> None:
        self.answers: list[Answer] = []
        self._ask = ask or (lambda number: server.infer_array(model, (LARGE if number % 2 else X) + number))
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            answer = self._ask(number)
            if answer.status == 200:
                array = binary_output(answer).ravel()
                assert array[0] == number
                assert array[-1] == number + array.size - 1
            self.answers.append(answer)

    def succeed(self, times: int) -> None:
        """Waits for so many further good answers."""
        before = len(self.good)
        eventually(lambda: len(self.good) >= before + times)

    @property
    def good(self) -> list[Answer]:
        return [one for one in self.answers if one.status == 200]

    @property
    def bad(self) -> list[Answer]:
        return [one for one in self.answers if one.status != 200]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_killed_stub_takes_only_what_its_instances_executed(repository: Path) -> None:
    """All of them die of one cause, and come back together; what they had not begun goes to the next stub."""
    identity(repository, "m", 3, "dynamic_batching { }", delay_ms=10)
    with sharing(repository) as server:
        server.wait_until_ready()
        pids = []
        with Load(server, "m", 12) as load:
            for _ in range(5):
                load.succeed(20)
                (pid,) = server.stub_pids()
                pids.append(pid)
                os.kill(pid, signal.SIGKILL)
                eventually(lambda pid=pid: server.stub_pids() not in ([], [pid]))
            load.succeed(20)
        for answer in load.bad:
            assert answer.status == 500
            died = re.search(r"Stub process 'm_0_[012]' is not healthy: (.*) \(pid (\d+)\)", answer.error)
            assert died is not None, answer
            assert died[1] == "it was killed by signal 9 (SIGKILL)"
            assert int(died[2]) in pids
        # At most what three instances execute at a time, in batches of four
        assert len(load.bad) <= 5 * 3 * 4
        assert restarts(server) == [5, 5, 5]
        for pid in pids:
            lines = re.findall(rf"Stub process 'm_0_(\d)' .* \(pid {pid}\)\. It is restarted in 0\.1 s", server.output)
            assert sorted(lines) == ["0", "1", "2"]
        eventually(lambda: server.get("/v2/models/m/ready").status == 200)
        assert len(set(stubs_of(server, "m"))) == 1


def test_other_counts_cost_no_request_and_no_process(repository: Path) -> None:
    identity(repository, "m", 1, delay_ms=2)
    with sharing(repository, EXPLICIT, "--load-model=m") as server:
        server.wait_until_ready()
        (pid,) = server.stub_pids()
        with Load(server, "m", 6) as load:
            for count in (4, 2, 1, 3, 2, 4):
                load.succeed(20)
                config = identity(repository, "m", count, delay_ms=2)
                assert server.request("POST", "/v2/repository/models/m/load", b"{}").status == 200, config
                assert stubs_of(server, "m") == [pid] * count
                load.succeed(20)
        assert load.bad == []
        assert server.stub_pids() == [pid]
        # What has left gave its memory back, and the others go on after a death.
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: server.get("/v2/models/m/ready").status == 200 and server.stub_pids() not in ([], [pid]))
        assert (binary_output(server.infer_array("m", LARGE)) == LARGE).all()


def test_instances_that_have_left_leave_nothing_in_their_stub(repository: Path) -> None:
    identity(repository, "m", 1)
    with sharing(repository, EXPLICIT, "--load-model=m") as server:
        server.wait_until_ready()
        (pid,) = server.stub_pids()

        def has() -> tuple[int, int]:
            return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

        before = has()
        for _ in range(3):
            for count in (3, 1):
                identity(repository, "m", count)
                assert server.request("POST", "/v2/repository/models/m/load", b"{}").status == 200
                assert (binary_output(server.infer_array("m", LARGE)) == LARGE).all()
        assert server.stub_pids() == [pid]
        # Each mapping of memory has a descriptor, and the main thread waits for the others once its instance has left.
        eventually(lambda: has()[0] <= before[0] + 3 and has()[1] <= before[1] + 1)


def test_an_instance_that_takes_too_long_ends_the_stub(repository: Path) -> None:
    # Instance 1 takes a hundred times as long.
    slow = parameter("instance_wise_delay_multiplier", 100) + parameter("EXECUTE_TIMEOUT_SECS", 1)
    identity(repository, "m", 2, slow, delay_ms=100)
    with sharing(repository) as server:
        server.wait_until_ready()
        (pid,) = server.stub_pids()
        quick, late = sorted(ask_side_by_side(server, "m", 2), key=lambda answer: answer.status)
        assert quick.status == 200
        assert late.status == 500
        assert "'m_0_1' is not healthy: the server has killed it, because it has been executing a batch" in late.error
        assert f"EXECUTE_TIMEOUT_SECS allows (pid {pid})" in late.error
        eventually(lambda: restarts(server) == [1, 1])


def test_it_sleeps_and_wakes_as_one(repository: Path) -> None:
    identity(repository, "m", 3)
    with sharing(repository, "--sleep-after-secs=1") as server:
        server.wait_for("sleeps until the next")
        eventually(lambda: server.stub_pids() == [])
        assert all(answer.status == 200 for answer in ask_side_by_side(server, "m", 6))
        assert len(server.stub_pids()) == 1


def test_nothing_is_left_of_a_load_that_fails_in_one_instance(repository: Path) -> None:
    wrong = IO.replace("OUTPUT0", "OUTPUT7")
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(
        f'backend: "identity" {wrong} instance_group {{ count: 3 kind: KIND_CPU }}'
    )
    with sharing(repository, EXPLICIT) as server:
        answer = server.request("POST", "/v2/repository/models/m/load", b"{}")
        assert answer.status == 400
        assert "expected input and output indices to match" in answer.error
        eventually(lambda: server.stub_pids() == [])


# A backend of a package, whose models are Python: `begin` and `end` get the name of the instance.
FOREST = """
import os
from stubserve_stub.backends.arrays import ArrayBackend
from stubserve_stub.backends.card import Card, ModelFile, TOGETHER

CARD = Card("forest", "forest:Forest", files=(ModelFile("model.forest"),), shares=TOGETHER)

class Forest(ArrayBackend):
    def instance_initialize(self, instance):
        self.name = instance.name
        super().instance_initialize(instance)

    def load(self, config, version_dir):
        self.model = {"begin": print, "end": print}
        with open(os.path.join(version_dir, "model.forest")) as file:
            exec(file.read(), self.model)
        self.model["begin"](self.name)

    def predict(self, inputs, outputs):
        return {"OUTPUT0": inputs["INPUT0"]}

    def instance_finalize(self):
        self.model["end"](self.name)
"""


class TestOneOfThemFails:
    @pytest.fixture
    def server(self, repository: Path, tmp_path: Path) -> Iterator[Serving]:
        install(tmp_path, "trees", "forest=forest:CARD", FOREST)
        flags = (EXPLICIT, "--exit-timeout-secs=1")
        with sharing(repository, *flags, environment={"PYTHONPATH": str(tmp_path)}) as server:
            yield server

    def load(self, server: Serving, repository: Path, count: int, source: str = "", more: str = "") -> Answer:
        """Loads a model "m"; without a `source` it is as before, but for the number of its instances."""
        (repository / "m" / "1").mkdir(parents=True, exist_ok=True)
        if source:
            (repository / "m" / "1" / "model.forest").write_text(textwrap.dedent(source))
        (repository / "m" / "config.pbtxt").write_text(
            f'backend: "forest" {IO} {more} instance_group {{ count: {count} kind: KIND_CPU }}'
        )
        return server.request("POST", "/v2/repository/models/m/load", b"{}")

    def unload(self, server: Serving) -> None:
        assert server.request("POST", "/v2/repository/models/m/unload", b"{}").status == 200
        eventually(lambda: server.stub_pids() == [])

    def test_a_start_that_is_given_up_leaves_no_instance_in_a_stub(self, server: Serving, repository: Path) -> None:
        """The third instance fails, in a stub of its own, while the second is being initialized beside the first."""
        begun, end = repository / "begun", repository / "end"
        source = f"""
            import os, time

            def begin(name):
                if name.endswith("1"):
                    open({str(begun)!r}, "w").close()
                    while not os.path.exists({str(end)!r}):
                        time.sleep(0.01)
                if name.endswith("2"):
                    while not os.path.exists({str(begun)!r}):
                        time.sleep(0.01)
                    raise RuntimeError("the third")
        """
        pairs = parameter("INSTANCES_PER_STUB", 2)
        assert self.load(server, repository, 1, source, pairs).status == 200
        pids = server.stub_pids()
        assert "the third" in self.load(server, repository, 3, more=pairs).error
        assert server.stub_pids() == pids
        end.touch()
        assert (binary_output(server.infer_array("m", X)) == X).all()
        self.unload(server)

    def test_what_has_not_stopped_ends_with_the_last_that_goes_on(self, server: Serving, repository: Path) -> None:
        source = f"""
            import os, time

            def end(name):
                if not os.path.exists({str(repository / "first")!r}):
                    open({str(repository / "first")!r}, "w").close()
                    time.sleep(1000)
        """
        assert self.load(server, repository, 2, source).status == 200
        pids = server.stub_pids()
        assert self.load(server, repository, 1).status == 200
        server.wait_for("did not finish within 1.0 s, and stays in its stub")
        assert server.stub_pids() == pids
        assert (binary_output(server.infer_array("m", X)) == X).all()
        self.unload(server)


def pss(pids: list[int]) -> int:
    """The memory of processes, in KiB, with their part of what they share."""
    total = 0
    for pid in pids:
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        assert found is not None
        total += int(found[1])
    return total


class TestOnnx:
    """Of a backend with weights, whose session several threads run."""

    @pytest.fixture(autouse=True)
    def packages(self) -> None:
        pytest.importorskip("onnxruntime")

    def weighty(self, repository: Path, name: str, count: int, more: str = "") -> None:
        """Y = X * W, of 2000 x 4000 floats, 32 MB."""
        from tests.onnx_models import helper, model, node, save

        weights = np.ones((2000, 4000), np.float32)
        made = helper.make_tensor("W", 1, weights.shape, weights.tobytes(), raw=True)
        nodes = [node("MatMul", "X W", "Y")]
        io = [("X", "FP32", ("batch", 2000))], [("Y", "FP32", ("batch", 4000))]
        save(model(nodes, *io, initializers=[made]), repository / name / "1")
        (repository / name / "config.pbtxt").write_text(
            f'backend: "onnxruntime" max_batch_size: 4 {more} instance_group {{ count: {count} kind: KIND_CPU }}'
        )

    def test_its_weights_are_there_once(self, repository: Path) -> None:
        self.weighty(repository, "one", 1)
        self.weighty(repository, "four", 4)
        self.weighty(repository, "apart", 4, parameter("INSTANCES_PER_STUB", 1))
        used = {}
        ask = np.ones((1, 2000), np.float32)
        with sharing(repository) as server:
            server.wait_until_ready()
            for name in ("one", "four", "apart"):

                def answers(name: str = name) -> Answer:
                    inputs = [{"name": "X", "datatype": "FP32", "shape": [1, 2000], "data": ask.ravel().tolist()}]
                    return server.infer_json(name, inputs)

                with ThreadPoolExecutor(8) as pool:
                    for answer in [one.result() for one in [pool.submit(answers) for _ in range(16)]]:
                        assert answer.json()["outputs"][0]["data"] == [2000.0] * 4000
                used[name] = pss(sorted(set(stubs_of(server, name))))
        assert used["four"] <= 1.2 * used["one"]
        assert used["apart"] > used["four"] + 3 * 32_000

    def test_sequences_keep_their_states_apart(self, repository: Path) -> None:
        """A state for each sequence, in the segment of its instance."""
        from tests.onnx_models import model, node, save

        io = (
            [("X", "FP32", (5000,)), ("SUM_IN", "FP32", (5000,))],
            [("Y", "FP32", (5000,)), ("SUM_OUT", "FP32", (5000,))],
        )
        save(model([node("Add", "X SUM_IN", "Y"), node("Add", "X SUM_IN", "SUM_OUT")], *io), repository / "m" / "1")
        (repository / "m" / "config.pbtxt").write_text("""
            backend: "onnxruntime"
            input { name: "X" data_type: TYPE_FP32 dims: 5000 } output { name: "Y" data_type: TYPE_FP32 dims: 5000 }
            sequence_batching {
              state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: 5000 }
            }
            instance_group { count: 3 kind: KIND_CPU }
        """)

        def follow(server: Serving, sequence: int) -> list[float]:
            sums = []
            for step in range(5):
                answer = server.infer_json(
                    "m",
                    [{"name": "X", "datatype": "FP32", "shape": [5000], "data": [float(sequence)] * 5000}],
                    parameters={"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 4},
                )
                assert answer.status == 200, answer
                (total,) = set(answer.json()["outputs"][0]["data"])
                sums.append(total)
            return sums

        with sharing(repository) as server:
            server.wait_until_ready()
            assert len(server.stub_pids()) == 1
            with ThreadPoolExecutor(9) as pool:
                found = {number: pool.submit(follow, server, number) for number in range(1, 10)}
                for number, sums in found.items():
                    assert sums.result() == [float(number * step) for step in range(1, 6)]
            # A death ends the sequences of all its instances, and says so.
            begin = {"sequence_id": 77, "sequence_start": True}
            inputs = [{"name": "X", "datatype": "FP32", "shape": [5000], "data": [1.0] * 5000}]
            assert server.infer_json("m", inputs, parameters=begin).status == 200
            os.kill(server.stub_pids()[0], signal.SIGKILL)
            server.wait_for("'m_0_0' is back")
            answer = server.infer_json("m", inputs, parameters={"sequence_id": 77})
            assert answer.status == 503, answer
            assert re.search(
                "sequence 77 of model 'm' has ended because its instance 'm_0_[012]' is gone", answer.error
            )


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torch_shares_weights_where_that_is_asked_for(repository: Path) -> None:
    torch = pytest.importorskip("torch")
    weights = parameter("ENABLE_WEIGHT_SHARING", "true")
    for name, more in {"shared": weights, "apart": "", "threads": parameter("INSTANCES_PER_STUB", "all")}.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        linear = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.eye_(linear.weight)
        torch.jit.script(linear).save(str(folder / "model.pt"))
        (folder.parent / "config.pbtxt").write_text(
            f'backend: "pytorch" {IO} {more} instance_group {{ count: 3 kind: KIND_CPU }}'
        )
    with sharing(repository) as server:
        server.wait_until_ready()
        found = {name: len(set(stubs_of(server, name))) for name in ("shared", "apart", "threads")}
        assert found == {"shared": 1, "apart": 3, "threads": 1}
        for name in found:
            with Load(server, name, 6, lambda number, name=name: server.infer_array(name, X + number)) as load:
                load.succeed(30)
            assert load.bad == []

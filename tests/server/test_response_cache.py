"""The response cache of a real server, by every way in, and in a Redis server of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import trustme

from stubserve.redis_store.store import PREFIX

from ..real_server import PATIENCE_S, Serving, binary_output, binary_request, eventually, io_config, write_model
from ..redis_server import redis_server

# Each execution gives another number, so an answer that is the same as before was not computed.
COUNTS = """
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        executed = 0

        def execute(self, requests):
            answers = []
            for request in requests:
                given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                if given.ravel()[0] == -2:
                    print("executing slowly", flush=True)
                    time.sleep(0.5)
                TritonPythonModel.executed += 1
                if given.ravel()[0] == -1:
                    answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one")))
                    continue
                output = np.full_like(given, self.executed)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output)]))
            return answers
"""
CALLER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                call = pb_utils.InferenceRequest(
                    model_name="counts", requested_output_names=["OUTPUT0"], inputs=request.inputs()
                )
                output = pb_utils.get_output_tensor_by_name(call.exec(), "OUTPUT0").as_numpy()
                output += 0.5  # what it was given is its own to write to
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output)]))
            return answers
"""
ENSEMBLE = """
    platform: "ensemble"
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    ensemble_scheduling { step [ { model_name: "counts" model_version: -1
        input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
"""
ENABLED = "response_cache { enable: true }"
SMALL, LARGE = np.arange(4, dtype=np.float32), np.arange(600_000, dtype=np.float32)


def _put(answers: Queue[Any], result: Any, error: Any) -> None:
    answers.put((result, error))


def write_counts(repository: Path, extra: str = ENABLED) -> Path:
    return write_model(repository, "counts", COUNTS, io_config(extra=extra))


def ask(server: Serving, model: str = "counts", array: np.ndarray = SMALL, **more: Any) -> float:
    """The number of the execution that the answer came from."""
    output = binary_output(server.infer_array(model, array, **more))
    assert output.shape == array.shape
    assert (output == output[0]).all()
    return float(output[0])


def counts(server: Serving, model: str = "counts") -> tuple[int, int, int]:
    """Hits, misses, executions."""
    stats = server.statistics(model)
    inside = stats["inference_stats"]
    return inside["cache_hit"]["count"], inside["cache_miss"]["count"], stats["execution_count"]


def test_every_way_in_finds_what_another_has_put_there(tmp_path: Path) -> None:
    write_counts(tmp_path)
    write_model(tmp_path, "caller", CALLER)
    (tmp_path / "flow" / "1").mkdir(parents=True)
    (tmp_path / "flow" / "config.pbtxt").write_text(ENSEMBLE)
    with Serving(tmp_path, "--cache-config=local,size=32M") as server:
        for array, number in ((SMALL, 1), (LARGE, 2)):
            assert ask(server, array=array) == number
            # A large answer is put there a moment after its client has it.
            eventually(lambda number=number: f"nv_cache_num_entries {number}\n" in server.metrics().body.decode())
            assert ask(server, array=array) == number
            as_json = server.infer_json(
                "counts",
                [{"name": "INPUT0", "datatype": "FP32", "shape": [len(array)], "data": array.tolist()}],
                id="mine",
            ).json()
            assert as_json["outputs"][0]["data"][0] == number
            assert as_json["id"] == "mine"
            assert ask(server, "flow", array) == number
            assert ask(server, "caller", array) == number + 0.5
            assert ask(server, "caller", array) == number + 0.5
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
                given = triton_grpc.InferInput("INPUT0", list(array.shape), "FP32")
                given.set_data_from_numpy(array)
                assert client.infer("counts", [given]).as_numpy("OUTPUT0")[0] == number
                answers: Queue[Any] = Queue()
                client.start_stream(partial(_put, answers))
                client.async_stream_infer("counts", [given], request_id="streamed")
                result, error = answers.get(timeout=PATIENCE_S)
                assert error is None
                assert result.as_numpy("OUTPUT0")[0] == number
                assert result.get_response().id == "streamed"
                client.stop_stream()
        assert server.statistics("counts")["execution_count"] == 2
        metrics = server.metrics().body.decode()
        hits, misses, _ = counts(server)
        assert f'nv_cache_num_hits_per_model{{model="counts",version="1"}} {hits}' in metrics
        assert f'nv_cache_num_misses_per_model{{model="counts",version="1"}} {misses}' in metrics
        assert "nv_cache_num_entries 2" in metrics


def test_a_hit_has_the_same_bytes_as_the_answer_before(tmp_path: Path) -> None:
    write_counts(tmp_path)
    with Serving(tmp_path, "--cache-config=local,size=1M") as server:
        miss, hit = server.infer_array("counts", SMALL), server.infer_array("counts", SMALL)
        assert (hit.status, hit.headers, hit.body) == (miss.status, miss.headers, miss.body)
        first = server.infer_array("counts", np.full(4, -1, np.float32))
        second = server.infer_array("counts", np.full(4, -1, np.float32))
        assert (first.status, first.error) == (second.status, second.error) == (500, "not this one")
        assert counts(server) == (1, 3, 3)
        assert ask(server, parameters={"binary_data_output": True, "mine": 1}) == 4
        assert ask(server, outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}]) == 1


def test_a_model_that_is_loaded_anew_does_not_say_what_it_said_before(tmp_path: Path) -> None:
    folder = write_counts(tmp_path)
    (tmp_path / "flow" / "1").mkdir(parents=True)
    (tmp_path / "flow" / "config.pbtxt").write_text(ENSEMBLE + ENABLED)
    flags = ("--cache-config=local,size=1M", "--model-control-mode=explicit", "--load-model=*")
    with Serving(tmp_path, *flags) as server:
        assert ask(server) == ask(server) == ask(server, "flow") == 1
        source = (folder / "1" / "model.py").read_text()
        (folder / "1" / "model.py").write_text(source.replace("executed = 0", "executed = 100"))
        assert server.request("POST", "/v2/repository/models/counts/load").status == 200
        assert ask(server) == ask(server) == 101
        assert ask(server, "flow") == 101
        assert server.request("POST", "/v2/repository/models/counts/unload").status == 200
        gone = eventually(lambda: (answer := server.infer_array("counts", SMALL)).status != 200 and answer)
        assert "counts" in gone.error


def test_hits_that_come_while_their_model_is_loaded_anew_and_unloaded(tmp_path: Path) -> None:
    folder = write_counts(tmp_path)
    over = threading.Event()
    path, body, headers = binary_request("counts", SMALL)

    def go_on(server: Serving, found: list[int]) -> str:
        """Asks the same on one connection until the answer is an error; `found` are the numbers, each once."""
        with contextlib.closing(server.connect()) as connection:
            while not over.is_set():
                connection.request("POST", path, body, headers)
                reply = connection.getresponse()
                content = reply.read()
                if reply.status != 200:
                    return content.decode()
                number = int(np.frombuffer(content[-SMALL.nbytes :], np.float32)[0])
                if not found or found[-1] != number:
                    found.append(number)
        return ""

    with (
        Serving(tmp_path, "--cache-config=local,size=1M", "--model-control-mode=explicit", "--load-model=*") as server,
        ThreadPoolExecutor(4) as pool,
    ):
        assert ask(server) == 1
        found: list[list[int]] = [[] for _ in range(4)]
        clients = [pool.submit(go_on, server, one) for one in found]
        try:
            source = (folder / "1" / "model.py").read_text()
            for first in (0, 100, 200):
                (folder / "1" / "model.py").write_text(source.replace("executed = 0", f"executed = {first}"))
                if first:
                    assert server.request("POST", "/v2/repository/models/counts/load").status == 200
                    assert ask(server) > first
                eventually(lambda first=first: all(one and one[-1] > first for one in found))
            assert server.request("POST", "/v2/repository/models/counts/unload").status == 200
            errors = [client.result(PATIENCE_S) for client in clients]
        finally:
            over.set()
    assert all("counts" in error for error in errors)
    # What one load has said is said no more when the next has been; several may compute their first answer.
    loads = [[number // 100 for number in one] for one in found]
    assert all(one == sorted(one) for one in loads)


def test_a_full_cache_goes_on(tmp_path: Path) -> None:
    write_counts(tmp_path)
    with Serving(tmp_path, "--cache-config=local,size=64K") as server:
        for value in range(60):
            ask(server, array=np.full(500, value, np.float32))
        assert ask(server, array=np.full(500, 59, np.float32)) == 60
        assert ask(server, array=np.full(500, 0, np.float32)) == 61
        assert ask(server, array=LARGE) == 62
        server.wait_for("an answer of model 'counts' takes .* such answers are not kept")
        metrics = server.metrics().body.decode()
        utilization = float(next(line for line in metrics.splitlines() if line.startswith("nv_cache_util ")).split()[1])
        assert 0.9 < utilization <= 1
        assert "nv_cache_num_evictions 0" not in metrics


def test_the_cache_gives_way_to_requests(tmp_path: Path) -> None:
    write_counts(tmp_path)
    with Serving(tmp_path, "--cache-config=local,size=1G", "--shm-limit=48M") as server:
        for value in range(40):  # 40 answers of 2.4 MB each
            array = np.full(600_000, value, np.float32)
            # A request waits 0.1 s for memory, and a busy machine may keep the stub that gives it from a processor.
            eventually(lambda array=array: server.infer_array("counts", array).status == 200)
        assert ask(server, array=SMALL) >= 41


def test_a_herd_is_computed_once(tmp_path: Path) -> None:
    write_counts(tmp_path, ENABLED + "instance_group [ { count: 2 kind: KIND_CPU } ]")
    with Serving(tmp_path, "--cache-config=local,size=1M,coalesce=true") as server, ThreadPoolExecutor(8) as pool:
        slow = np.full(4, -2, np.float32)
        assert set(pool.map(lambda _: ask(server, array=slow), range(8))) == {1.0}
        assert counts(server) == (7, 1, 1)


def test_a_client_that_is_gone_leaves_an_answer_for_others(tmp_path: Path) -> None:
    write_counts(tmp_path)
    with Serving(tmp_path, "--cache-config=local,size=1M") as server:
        slow = np.full(4, -2, np.float32)
        connection = server.connect()
        connection.request("POST", *binary_request("counts", slow))
        server.wait_for("executing slowly")
        connection.close()
        assert ask(server) == 2  # behind the first one
        assert ask(server, array=slow) == 1
        assert counts(server) == (1, 2, 2)


def test_a_model_that_wants_a_cache_is_told_that_there_is_none(tmp_path: Path) -> None:
    write_counts(tmp_path)
    with Serving(tmp_path) as server:
        server.wait_for("model 'counts': 'response_cache' has no effect without a cache")
        assert ask(server) == 1
        assert ask(server) == 2
        assert counts(server)[:2] == (0, 0)


# Redis


# On a machine with much else to do, Redis may be slow without being gone.
PATIENT = "connect_timeout=30000,socket_timeout=30000,wait_timeout=30000"


def test_redis_keeps_answers_for_other_servers_and_for_the_next_start(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    models, other = tmp_path / "models", tmp_path / "other"
    write_counts(models)
    with redis_server(tmp_path, "--requirepass", "a,b=c") as redis:
        flag = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT},password=a,b=c"
        with Serving(models, flag) as server, redis.client(password="a,b=c") as client:
            for array, number in ((SMALL, 1), (LARGE, 2)):
                assert ask(server, array=array) == number
                eventually(lambda number=number: client.dbsize() == number)
                assert ask(server, array=array) == number
            assert counts(server) == (2, 2, 2)
            assert all(key.startswith(PREFIX) for key in client.scan_iter())
        # Equal files elsewhere are the same model; other files are another.
        shutil.copytree(models, other)
        environment = {"TRITONCACHE_REDIS_PASSWORD": "a,b=c"}
        flag = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT}"
        with Serving(other, flag, environment=environment) as server:
            assert ask(server) == 1
            assert counts(server) == (1, 0, 0)
        source = other / "counts" / "1" / "model.py"
        source.write_text(source.read_text() + "# a change\n")
        with Serving(other, flag, environment=environment) as server:
            assert ask(server) == 1
            assert counts(server) == (0, 1, 1)


# Says its release; starts once there is a file of that name.
RELEASED = """
    import os
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            print("initializing RELEASE", flush=True)
            while not os.path.exists("GO/RELEASE"):
                time.sleep(0.01)

        def execute(self, requests):
            inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
            outputs = [pb_utils.Tensor("OUTPUT0", np.full_like(given, RELEASE)) for given in inputs]
            return [pb_utils.InferenceResponse([output]) for output in outputs]
"""


def test_a_member_that_is_newer_than_its_ensemble_writes_nothing_for_servers_with_the_old_one(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    new, old, go = tmp_path / "new", tmp_path / "old", tmp_path / "go"

    def write_release(name: str, release: int) -> None:
        write_model(new, name, RELEASED.replace("GO", str(go)).replace("RELEASE", str(release)), io_config())

    go.mkdir()
    write_release("counts", 1)
    (new / "flow" / "1").mkdir(parents=True)
    (new / "flow" / "config.pbtxt").write_text(ENSEMBLE + ENABLED)
    shutil.copytree(new, old)
    (go / "1").touch()
    with redis_server(tmp_path) as redis, ThreadPoolExecutor(2) as pool:
        flag = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT}"
        explicit = ("--model-control-mode=explicit", "--load-model=flow", "--model-load-thread-count=1")
        with Serving(new, flag, *explicit) as first, Serving(old, flag) as second:
            write_release("counts", 2)
            write_release("other", 3)
            load = partial(first.request, "POST")
            loads = [pool.submit(load, "/v2/repository/models/counts/load")]
            first.wait_for("initializing 2")
            # While this one starts, no ensemble can be loaded anew.
            loads.append(pool.submit(load, "/v2/repository/models/other/load"))
            index = partial(first.request, "POST", "/v2/repository/index")
            eventually(lambda: {"name": "other", "version": "1", "state": "LOADING"} in index().json())
            (go / "2").touch()
            first.wait_for("initializing 3")
            eventually(lambda: ask(first) == 2)
            assert ask(first, "flow") == 2
            (go / "3").touch()
            assert [one.result(PATIENCE_S).status for one in loads] == [200, 200]
            # Once it is loaded anew its answers are kept, as those of a model of its own.
            assert ask(first, "flow") == 2
            with redis.client() as client:
                eventually(client.dbsize)
                assert ask(second, "flow") == 1
                eventually(lambda: client.dbsize() == 2)
                assert (ask(first, "flow"), ask(second, "flow")) == (2, 1)


def test_a_stub_that_restarts_on_changed_files_writes_nothing_for_servers_with_the_old_ones(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    new, old, go = tmp_path / "new", tmp_path / "old", tmp_path / "go"

    def write_release(release: int) -> None:
        write_model(new, "counts", RELEASED.replace("GO", str(go)).replace("RELEASE", str(release)), io_config())

    go.mkdir()
    write_release(1)
    (new / "flow" / "1").mkdir(parents=True)
    (new / "flow" / "config.pbtxt").write_text(ENSEMBLE + ENABLED)
    (new / "counts" / "config.pbtxt").write_text(io_config() + ENABLED)
    shutil.copytree(new, old)
    for release in "12":
        (go / release).touch()
    with redis_server(tmp_path) as redis:
        flag = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT}"
        with Serving(new, flag) as first, Serving(old, flag) as second:
            write_model(new, "counts", RELEASED.replace("GO", str(go)).replace("RELEASE", "2"), io_config() + ENABLED)
            (stub,) = first.stub_pids()
            os.kill(stub, signal.SIGKILL)
            first.wait_for("instance 'counts_0' runs files that have changed since its model was loaded")
            assert (ask(first), ask(first, "flow")) == (2, 2)
            assert (ask(second), ask(second, "flow")) == (1, 1)


# Says its release while it is imported, and waits then until there is a file of that name.
IMPORTED = """
    import os
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    print("importing RELEASE", flush=True)
    while not os.path.exists("GO/RELEASE"):
        time.sleep(0.01)

    class TritonPythonModel:
        def execute(self, requests):
            inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
            outputs = [pb_utils.Tensor("OUTPUT0", np.full_like(given, RELEASE)) for given in inputs]
            return [pb_utils.InferenceResponse([output]) for output in outputs]
"""


def test_a_stub_that_was_imported_before_its_files_changed_writes_nothing_for_servers_with_the_new_ones(
    tmp_path: Path,
) -> None:
    pytest.importorskip("redis")
    models, go = tmp_path / "models", tmp_path / "go"

    def write_release(release: int) -> None:
        source = IMPORTED.replace("GO", str(go)).replace("RELEASE", str(release))
        write_model(models, "counts", source, io_config(extra=ENABLED))

    go.mkdir()
    write_release(1)
    with redis_server(tmp_path) as redis, ThreadPoolExecutor(1) as pool:
        flag = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT}"
        with Serving(models, flag, "--model-control-mode=explicit") as first:
            load = pool.submit(first.request, "POST", "/v2/repository/models/counts/load")
            first.wait_for("importing 1")
            write_release(2)
            for release in "12":
                (go / release).touch()
            assert load.result().status == 200
            assert ask(first) == 1
            with Serving(models, flag) as second:
                assert ask(second) == 2


def test_servers_with_other_programs_of_a_backend_share_no_answers(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    models = tmp_path / "models"
    (models / "counts" / "1").mkdir(parents=True)
    config = io_config(extra=ENABLED).replace('backend: "python"', 'backend: "released"')
    (models / "counts" / "config.pbtxt").write_text(config)
    (tmp_path / "go").mkdir()
    with redis_server(tmp_path) as redis:
        for release in "12":
            backend = tmp_path / f"backends_{release}" / "released"
            backend.mkdir(parents=True)
            source = IMPORTED.replace("GO", str(tmp_path / "go")).replace("RELEASE", release)
            (backend / "model.py").write_text(textwrap.dedent(source))
            (tmp_path / "go" / release).touch()
            cache = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT}"
            with Serving(models, cache, f"--backend-directory={backend.parent}") as server, redis.client() as client:
                assert ask(server) == int(release)
                eventually(lambda known=int(release): client.dbsize() == known)


def test_redis_may_go_and_come_back(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    write_counts(tmp_path / "models")
    with redis_server(tmp_path) as redis:
        flag = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT}"
        with Serving(tmp_path / "models", flag) as server:
            assert ask(server) == 1
            with redis.client() as client:
                eventually(client.dbsize)
            assert ask(server) == 1
            redis.stop()
            assert [ask(server) for _ in range(20)] == [float(one) for one in range(2, 22)]
            server.wait_for_all("cannot be used, and requests are computed until it can", 1)
            redis.start()
            eventually(lambda: ask(server) and "can be used again" in server.output)
            eventually(lambda: ask(server) == ask(server))


def test_entries_that_somebody_else_wrote_are_misses(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    write_counts(tmp_path / "models")
    with redis_server(tmp_path) as redis, redis.client() as client:
        flag = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT}"
        with Serving(tmp_path / "models", flag) as server:
            assert ask(server) == 1
            eventually(client.dbsize)
            (key,) = client.keys()
            good = client.get(key)
            for number, poison in enumerate((b"\x80\x04cos\nsystem\n", good[:-1], good[:-1] + b"\xff", b"x" * 200_000)):
                client.set(key, poison)
                assert ask(server) == number + 2
                # A good entry takes its place.
                eventually(lambda poison=poison: client.get(key) != poison)
            client.delete(key)
            client.lpush(key, "not a string")
            assert ask(server) == 6
            eventually(lambda: client.type(key) == b"string")
            assert ask(server) == 6
            server.wait_for("has an entry that is not used and will be replaced")
            assert "cannot be used" not in server.output


def test_a_slow_redis_delays_one_request_and_no_more(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    write_counts(tmp_path / "models")
    with socket.socket() as silent:  # takes connections, and never says anything
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        flag = f"--cache-config=redis,host=127.0.0.1,port={silent.getsockname()[1]},socket_timeout=300"
        with Serving(tmp_path / "models", flag) as server:
            began = time.monotonic()
            assert [ask(server) for _ in range(5)] == [1, 2, 3, 4, 5]
            assert time.monotonic() - began < 30
            server.wait_for("cannot be used, and requests are computed until it can")


def test_a_wrong_password_is_a_miss_and_told_of(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    write_counts(tmp_path / "models")
    with redis_server(tmp_path, "--requirepass", "right") as redis:
        flag = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT},password=wrong"
        with Serving(tmp_path / "models", flag) as server:
            assert [ask(server) for _ in range(3)] == [1, 2, 3]
            server.wait_for_all("cannot be used, and requests are computed until it can", 1)
            assert "password=" not in server.output


def test_redis_over_tls(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    write_counts(tmp_path / "models")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    options = (
        *("--tls-cert-file", str(tmp_path / "both.pem"), "--tls-key-file", str(tmp_path / "both.pem")),
        *("--tls-ca-cert-file", str(tmp_path / "ca.pem"), "--tls-auth-clients", "no", "--requirepass", "right"),
    )
    with redis_server(tmp_path, *options, tls=True) as redis:
        where = f"--cache-config=redis,host=127.0.0.1,port={redis.port},{PATIENT},password=right,tls_enabled=true"
        with Serving(tmp_path / "models", f"{where},cacert={tmp_path / 'ca.pem'}") as server:
            assert ask(server) == 1
            eventually(lambda: ask(server) == ask(server))
            assert "cannot be used" not in server.output
        # Nobody vouches for it here: it is not talked to.
        with Serving(tmp_path / "models", where) as server:
            assert ask(server) == 1
            server.wait_for("cannot be used, and requests are computed until it can.*certificate")

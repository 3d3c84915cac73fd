"""Starting and stopping: what is there when the server is ready, and what is left when it is gone."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from grpc import RpcError, StatusCode
from tritonclient.grpc import service_pb2

from tests.real_server import PATIENCE_S, WORK_S, Serving, binary_output, binary_request, write_model
from tests.server.grpc_calls import Grpc, connected, request
from tools.ports import free_ports

TALKATIVE = """
    import os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            print("initialized", args["model_instance_name"], os.getpid())

        def execute(self, requests):
            return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    for request in requests
                ]

        def finalize(self):
            print("finalized", os.getpid())
"""


@pytest.fixture
def left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """What servers of this test have left in their folder for temporary files, and under their name in /dev/shm.

    What other programs have there, which run beside the test, is none of theirs.
    """
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))

    def shared() -> set[Path]:
        return {path for path in Path("/dev/shm").glob("*stubserve*") if "chaos" not in path.name}

    before = shared()
    return lambda: [*folder.iterdir(), *(shared() - before)]


def wait_until_gone(pids: list[int], timeout: float) -> None:
    gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout)
    assert not alive, f"still there after {timeout} s: {alive}"


def test_a_served_model_answers_and_is_finalized_at_the_end(
    repository: Path, left_behind: Callable[[], list[Path]]
) -> None:
    write_model(repository, "echo", TALKATIVE)
    with Serving(repository) as server:
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 200
        assert server.get("/v2/models/echo/ready").status == 200
        array = np.arange(5, dtype=np.float32)
        np.testing.assert_array_equal(binary_output(server.infer_array("echo", array)), array)
        pids = server.stub_pids()
        assert len(pids) == 1
        assert server.stop() == 0
        server.wait_for(rf"initialized echo_0 {pids[0]}")
        server.wait_for(rf"finalized {pids[0]}")
    wait_until_gone(pids, 5)
    assert left_behind() == []


def test_sigint_ends_it_too_and_running_requests_are_answered(repository: Path) -> None:
    write_model(
        repository,
        "slow",
        """
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                print("executing", flush=True)
                time.sleep(1.0)
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    for request in requests
                ]
        """,
    )
    with Serving(repository) as server:
        connection = server.connect()
        connection.request(
            "POST",
            "/v2/models/slow/infer",
            b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[7]}]}',
        )
        server.wait_for("executing")
        server.process.send_signal(signal.SIGINT)
        response = connection.getresponse()
        assert response.status == 200
        assert b'"data":[7.0]' in response.read()
        connection.close()
        assert server.process.wait(PATIENCE_S) == 0


def test_stubs_end_when_the_server_is_killed(repository: Path, left_behind: Callable[[], list[Path]]) -> None:
    write_model(repository, "idle", TALKATIVE)
    write_model(
        repository,
        "busy",
        """
        import time

        class TritonPythonModel:
            def execute(self, requests):
                print("executing", flush=True)
                time.sleep(1000)
        """,
    )
    with Serving(repository) as server:
        connection = server.connect()
        connection.request(
            "POST",
            "/v2/models/busy/infer",
            b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[7]}]}',
        )
        server.wait_for("executing")
        pids = server.stub_pids()
        assert len(pids) == 2
        server.process.kill()
        wait_until_gone(pids, 5)
        connection.close()
    assert left_behind() == []


def test_a_port_in_use_is_said_and_ends_the_server(repository: Path) -> None:
    write_model(repository, "echo")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = Serving(repository, f"--http-port={port}")
        server.start()
        assert server.process.wait(PATIENCE_S) == 1
        server.wait_for(f"127.0.0.1:{port}' cannot be opened")


def started_by(program: str, server: Serving) -> Serving:
    """The same server, started by a Python program that ends with becoming it."""
    server.command = [
        sys.executable,
        "-c",
        f"import os, sys; {program}; os.execv(sys.argv[1], sys.argv[1:])",
        *server.command,
    ]
    return server


def test_too_little_address_space_is_said_and_ends_the_server(repository: Path) -> None:
    write_model(repository, "echo")
    little = "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))"
    server = started_by(little, Serving(repository, "--shm-limit=16G"))
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.wait_for("no address space for another 64 GiB of shared memory; lower --shm-limit")
    assert "Traceback" not in server.output


def test_how_stubs_end_is_known_where_children_are_ignored(repository: Path) -> None:
    source = """
        import os

        class TritonPythonModel:
            def execute(self, requests):
                os._exit(7)
    """
    write_model(repository, "mortal", source)
    ignoring = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    with started_by(ignoring, Serving(repository, "--stub-restart-limit=0")) as server:
        assert "it exited with code 7" in server.infer_array("mortal", np.zeros(1, np.float32)).error


@pytest.mark.parametrize("kind", ["missing", "file", "unreadable"])
def test_a_repository_that_cannot_be_read_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "repository"
    if kind == "file":
        path.write_text("")
    elif kind == "unreadable":
        if os.geteuid() == 0:
            pytest.skip("root can read everything")
        path.mkdir(mode=0)
    server = Serving(path)
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.wait_for(str(path))


@pytest.mark.parametrize("strict", ["true", "false"])
def test_with_exit_on_error_off_a_server_without_repository_stays_and_says_so(tmp_path: Path, strict: str) -> None:
    path = tmp_path / "nowhere"
    with Serving(path, "--exit-on-error=false", f"--strict-readiness={strict}") as server:
        server.wait_for(f"Internal: failed to stat file {path}")
        assert [server.get(f"/v2/health/{what}").status for what in ("live", "ready")] == [400, 400]
        assert server.get("/v2").json()["name"] == "triton"
        assert server.get("/v2/logging").status == 200
        assert server.metrics().status == 200
        for method, route in (
            ("GET", "models/x"),
            ("GET", "models/x/ready"),
            ("GET", "models/stats"),
            ("POST", "models/x/infer"),
            ("POST", "repository/index"),
            ("POST", "repository/models/x/load"),
            ("POST", "repository/models/x/unload"),
        ):
            answer = server.request(method, f"/v2/{route}", b"{}" if method == "POST" else None)
            assert (route, answer.status, answer.error) == (route, 503, "Server not ready")
        with connected(server) as grpc:
            assert not grpc.stub.ServerLive(service_pb2.ServerLiveRequest()).live
            assert not grpc.stub.ServerReady(service_pb2.ServerReadyRequest()).ready
            with pytest.raises(RpcError) as refused:
                grpc.stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
            assert (refused.value.code(), refused.value.details()) == (StatusCode.UNAVAILABLE, "Server not ready")
        assert server.stop() == 0


def test_a_model_that_does_not_load_stops_the_server(repository: Path) -> None:
    write_model(repository, "echo")
    write_model(repository, "broken", "import nowhere_to_be_found\n")
    server = Serving(repository)
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.wait_for("ModuleNotFoundError: No module named 'nowhere_to_be_found'")
    server.wait_for("failed to load all models")


@pytest.mark.parametrize("flag", ["--disable-auto-complete-config=true", "--disable-auto-complete-config=false"])
def test_a_folder_that_is_no_model_does_not_make_the_server_unready(repository: Path, flag: str) -> None:
    write_model(repository, "echo")
    (repository / "notes" / "drafts").mkdir(parents=True)
    with Serving(repository, "--exit-on-error=false", flag) as server:
        assert server.get("/v2/models/echo/ready").status == 200
        assert server.get("/v2/health/ready").status == 200
        (row,) = [row for row in server.request("POST", "/v2/repository/index").json() if row["name"] == "notes"]
        assert row["state"] == "UNAVAILABLE"


def test_with_exit_on_error_off_the_others_are_served(repository: Path) -> None:
    write_model(repository, "echo")
    write_model(repository, "broken", "import nowhere_to_be_found\n")
    with Serving(repository, "--exit-on-error=false") as server:
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 400
        assert server.get("/v2/models/echo/ready").status == 200
        answer = server.get("/v2/models/broken/ready")
        assert (answer.status, answer.error) == (
            404,
            "Request for unknown model: 'broken' has no available versions",
        )
        rows = {row["name"]: row for row in server.request("POST", "/v2/repository/index").json()}
        assert rows["echo"]["state"] == "READY"
        assert rows["broken"]["state"] == "UNAVAILABLE"
        assert "nowhere_to_be_found" in rows["broken"]["reason"]


def test_sigterm_while_a_model_hangs_in_import(repository: Path) -> None:
    write_model(repository, "hangs", "import time\nprint('hanging', flush=True)\ntime.sleep(1000)\n")
    server = Serving(repository)
    server.start()
    server.wait_for("hanging")
    pids = server.stub_pids()
    assert server.stop(20) == 0
    wait_until_gone(pids, 5)


def test_the_server_answers_while_a_model_never_finishes_initialize(repository: Path) -> None:
    write_model(
        repository,
        "hangs",
        """
        import time

        class TritonPythonModel:
            def initialize(self, args):
                print("hanging", flush=True)
                time.sleep(1000)

            def execute(self, requests):
                return []
        """,
    )
    (port,) = free_ports(1)
    server = Serving(repository, f"--http-port={port}")
    server.start()
    server.port = port
    server.wait_for("hanging")
    assert server.get("/v2/health/live").status == 200
    assert server.get("/v2/health/ready").status == 400
    assert server.request("POST", "/v2/repository/index").json() == [
        {"name": "hangs", "version": "1", "state": "LOADING"}
    ]
    assert server.stop(20) == 0


def test_an_idle_server_uses_no_cpu(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as server:
        server.infer_array("echo", np.zeros(4, np.float32))
        processes = [psutil.Process(server.process.pid), *map(psutil.Process, server.stub_pids())]

        def switches() -> int:
            return sum(process.num_ctx_switches().voluntary for process in processes)

        # Not a timed assertion: a process that does nothing is never switched in, however slow the machine is.
        settle = time.monotonic() + 1.0
        while time.monotonic() < settle:
            time.sleep(0.1)
        before = switches()
        time.sleep(2.0)
        assert switches() - before <= 4


def test_the_asgi_app_serves_the_same(repository: Path) -> None:
    write_model(repository, "echo")
    server = Serving(repository)
    server.command = [sys.executable, "-m", "uvicorn", "--factory", "stubserve.asgi:create_app", "--port", "0"]
    server.environment["STUBSERVE_ARGS"] = str(repository)
    server.start()
    try:
        server.port = int(server.wait_for(r"Uvicorn running on http://127\.0\.0\.1:(\d+)", WORK_S)[1])
        array = np.arange(300_000, dtype=np.float32)
        np.testing.assert_array_equal(binary_output(server.infer_array("echo", array)), array)
        assert server.get("/v2/models/echo").json()["name"] == "echo"
        assert server.infer_json("nobody", []).status == 404
    finally:
        server.stop()


def test_the_command_line_of_tritonserver_works(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as server:
        pass
    command = [
        sys.executable, "-m", "stubserve", f"--model-repository={repository}", "--http-port=0", "--grpc-port=0",
        "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--strict-readiness=true", "--log-verbose=1",
        "--allow-metrics=false", "--allow-gpu-metrics=false",
        "--backend-config=python,shm-default-byte-size=1048576", "--buffer-manager-thread-count=2",
    ]  # fmt: skip
    server = Serving(repository)
    server.command = command
    with server:
        assert server.get("/v2/health/ready").status == 200
        server.wait_for("--buffer-manager-thread-count has no effect: tensors are not copied")
        assert "Started Metrics Service" not in server.output


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--no-such-flag=1", "Unexpected argument: --no-such-flag=1"),
        ("--http-max-input-size=0", "--http-max-input-size must be greater than 0"),
        ("--exit-on-error=perhaps", "invalid value for bool option: perhaps"),
    ],
)
def test_flags_are_refused_by_name(repository: Path, flag: str, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stubserve", "serve", str(repository), flag],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert text in done.stderr


def test_an_open_connection_is_served_until_the_requests_under_way_are_answered(tmp_path: Path) -> None:
    go = tmp_path / "go"
    source = f"""
        import os, time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                print("executing", flush=True)
                while not os.path.exists({str(go)!r}):
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    write_model(tmp_path / "models", "held", source)
    write_model(tmp_path / "models", "echo")
    path, body, headers = binary_request("held", np.zeros(4, np.float32))
    with Serving(tmp_path / "models") as server:
        busy, idle = server.connect(), server.connect()
        idle.request("GET", "/v2/health/live")
        assert idle.getresponse().read() == b""
        busy.request("POST", path, body, headers)
        server.wait_for("executing")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Waiting for in-flight requests")
        assert asked(idle, "/v2/health/ready") == 400
        path, body, headers = binary_request("echo", np.zeros(4, np.float32))
        for _ in range(2):
            idle.request("POST", path, body, headers)
            assert idle.getresponse().read().endswith(bytes(16))
        go.touch()
        assert busy.getresponse().status == 200
        assert server.stop() == 0
        busy.close()
        idle.close()


def test_a_server_that_is_drained(tmp_path: Path) -> None:
    """By SIGUSR1, or by a request with rights: all is answered until SIGTERM, and connections are told to close."""
    write_model(tmp_path, "echo")
    rights = {"x-key": "sesame"}
    with Serving(tmp_path) as server:
        assert server.request("POST", "/v2/drain").status == 403
        assert server.get("/v2/health/ready").status == 200
        # As a service manager sends it, to all processes
        stubs = server.stub_pids()
        for process in (*stubs, server.process.pid):
            os.kill(process, signal.SIGUSR1)
        server.wait_for("all else goes on until SIGTERM")
        assert server.get("/v2/health/ready").status == 400
        assert server.infer_array("echo", np.zeros(4, np.float32)).status == 200
        assert server.stub_pids() == stubs
    flags = ("--http-restricted-api=model-repository:x-key=sesame", "--exit-delay-secs=3600")
    with Serving(tmp_path, *flags) as server, connected(server) as grpc:
        open_before = server.connect()
        assert asked(open_before, "/v2/health/ready") == 200
        assert len(grpc.infer(request()).raw_output_contents) == 1
        with socket.create_connection(("127.0.0.1", server.grpc_port), PATIENCE_S) as bare:
            bare.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            frames = bare.makefile("rb")
            assert server.request("GET", "/v2/drain").status == 403
            for _ in range(2):
                assert server.request("GET", "/v2/drain", headers=rights).status == 200
            kinds = []
            while not kinds or kinds[-1] != 7:
                head = frames.read(9)
                kinds.append(head[3])
                payload = frames.read(int.from_bytes(head[:3], "big"))
            # Whatever call it has begun is answered.
            assert payload == bytes((0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0))
        assert server.get("/v2/health/live").status == 200
        open_before.request("GET", "/v2/health/ready")
        answer = open_before.getresponse()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        for _ in range(3):
            assert len(grpc.infer(request()).raw_output_contents) == 1
        assert server.infer_array("echo", np.zeros(4, np.float32)).headers["connection"] == "close"
        # It has been drained, so nothing waits for --exit-delay-secs.
        assert server.stop() == 0
        open_before.close()


def asked(connection: http.client.HTTPConnection, path: str) -> int:
    """The status of a question on an open connection."""
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_readiness_goes_first_and_all_else_goes_on_for_a_while(tmp_path: Path) -> None:
    """With --exit-delay-secs load balancers see it; whoever presses ctrl-C does not wait for them."""
    write_model(tmp_path, "echo")

    def is_ready(grpc: Grpc) -> bool:
        return bool(grpc.stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=PATIENCE_S).ready)

    with Serving(tmp_path, "--exit-delay-secs=3600") as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == 0
    with Serving(tmp_path, "--exit-delay-secs=3600") as server, connected(server) as grpc:
        open_before = server.connect()
        assert asked(open_before, "/v2/health/ready") == 200
        assert is_ready(grpc)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("not ready any more; all else goes on for 3600 s")
        assert asked(open_before, "/v2/health/ready") == server.get("/v2/health/ready").status == 400
        assert not is_ready(grpc)
        assert server.get("/v2/health/live").status == 200
        with connected(server) as another:
            assert not is_ready(another)
            assert len(another.infer(request()).raw_output_contents) == 1
        # Connections are closed with their next answer, so that a balancer uses none when the server goes.
        answer = server.infer_array("echo", np.zeros(4, np.float32))
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        # Who is in a hurry now does not wait for it.
        time.sleep(0.4)  # the same ctrl-C may come twice
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == 128 + signal.SIGINT
        open_before.close()

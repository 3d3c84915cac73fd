"""The log settings, over both protocols, and the lines of models that obey them."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from grpc import RpcError
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.real_server import PATIENCE_S, Answer, Serving, binary_request, eventually, io_config, write_model
from tests.server.grpc_calls import connected
from tests.server.grpc_calls import request as grpc_request

TALKS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            pb_utils.Logger.log_verbose("verbose in initialize")

        def execute(self, requests):
            for request in requests:
                number = int(request.inputs()[0].as_numpy()[0])
                for name in ("info", "warn", "error", "verbose"):
                    getattr(pb_utils.Logger, "log_" + name)(f"{name} {number}")
                pb_utils.Logger.log(f"done {number}", pb_utils.Logger.ERROR)
            outputs = [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy()) for request in requests]
            return [pb_utils.InferenceResponse([output]) for output in outputs]
"""

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "talks", TALKS)
    with Serving(repository) as running:
        yield running


NOISY = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                for _ in range(int(request.inputs()[0].as_numpy()[0])):
                    os.write(2, b"x" * 65535 + b"\\n")
                    pb_utils.Logger.log_error("y" * 1000)
            outputs = [pb_utils.Tensor("OUTPUT0", np.zeros(1, np.float32)) for _ in requests]
            return [pb_utils.InferenceResponse([output]) for output in outputs]
"""


class UnreadServing(Serving):
    """A server whose stderr is a pipe that nobody reads."""

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self, timeout: float = 30.0) -> int:
        code = super().stop(timeout)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def test_a_log_that_nobody_reads_stops_no_model(tmp_path: Path) -> None:
    write_model(tmp_path, "noisy", NOISY)
    write_model(tmp_path, "echo")
    with UnreadServing(tmp_path) as server:
        # More than the pipes and all queues hold together
        assert server.infer_array("noisy", np.array([40], np.float32)).status == 200
        assert server.get("/v2/health/ready").status == 200
        assert server.infer_array("echo", np.zeros(10, np.float32)).status == 200
        assert server.stop() == 0


def test_a_log_that_is_read_late_says_what_is_missing(tmp_path: Path) -> None:
    write_model(tmp_path, "noisy", NOISY)
    with UnreadServing(tmp_path) as server:
        assert server.infer_array("noisy", np.array([40], np.float32)).status == 200
        assert server.process.stderr is not None
        lines = iter(server.process.stderr.readline, b"")
        assert any(re.search(rb"\d+ bytes that stub 'noisy_0' wrote were dropped", line) for line in lines)


def post(server: Serving, body: Any) -> Answer:
    return server.request("POST", "/v2/logging", body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.fixture(autouse=True)
def defaults(server: Serving) -> None:
    """Each test begins with the default settings."""
    assert post(server, {name: value for name, value in DEFAULTS.items() if name != "log_file"}).json() == DEFAULTS


class Talk:
    """Has the model log a line per level."""

    count = 0

    def __init__(self, server: Serving) -> None:
        Talk.count += 1
        self._server = server
        assert server.infer_array("talks", np.array([Talk.count], np.float32)).status == 200

    def names(self) -> list[str]:
        """The levels that reached the log."""
        output = self._server.output
        return [name for name in ("info", "warn", "error", "verbose", "done") if f'"{name} {Talk.count}"' in output]


def test_settings_are_as_upstreams(server: Serving) -> None:
    answer = server.get("/v2/logging")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.body == (
        b'{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,'
        b'"log_format":"default"}'
    )
    assert server.request("PUT", "/v2/logging").status == 405


def test_levels_change_while_the_server_runs(server: Serving) -> None:
    assert post(server, {"log_verbose_level": 1}).json() == {**DEFAULTS, "log_verbose_level": 1}
    talk = Talk(server)
    server.wait_for(f'"done {Talk.count}"')
    assert talk.names() == ["info", "warn", "error", "verbose", "done"]
    assert post(server, {"log_verbose_level": 0, "log_info": False, "log_warning": False}).status == 200
    talk = Talk(server)
    server.wait_for(f'"done {Talk.count}"')
    assert talk.names() == ["error", "done"]
    assert post(server, {"log_error": False, "log_info": True}).status == 200
    talk = Talk(server)
    server.wait_for(f'"info {Talk.count}"')
    post(server, {"log_error": True})
    quiet = Talk.count
    Talk(server)
    server.wait_for(f'"done {Talk.count}"')
    assert f'"done {quiet}"' not in server.output


def test_the_format_changes(server: Serving) -> None:
    assert post(server, {"log_format": "ISO8601"}).json()["log_format"] == "ISO8601"
    Talk(server)
    server.wait_for(rf'\n\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ E \d+ model.py:\d+\] "done {Talk.count}"')
    post(server, {"log_format": "default"})
    Talk(server)
    server.wait_for(rf'\nE\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} \d+ model.py:\d+\] "done {Talk.count}"')


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"log_info": "x"}, 500, "attempt to access JSON non-boolean as boolean"),
        ({"log_info": 1}, 500, "attempt to access JSON non-boolean as boolean"),
        ({"log_warning": False, "log_error": []}, 500, "attempt to access JSON non-boolean as boolean"),
        ({"log_verbose_level": "1"}, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": -1}, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": 1.5}, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": 2**32}, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_format": "iso"}, 503, "invalid argument for --log_format, got: iso"),
        ({"log_format": 1}, 500, "attempt to access JSON non-string as string"),
        ({"log_file": "x"}, 501, "log file location can not be updated through network protocol"),
        ({"log_file": ""}, 501, "log file location can not be updated through network protocol"),
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    ],
)
def test_what_is_refused_changes_nothing(server: Serving, body: Any, status: int, text: str) -> None:
    answer = post(server, body)
    assert (answer.status, answer.error) == (status, text)
    assert server.get("/v2/logging").json() == DEFAULTS


@pytest.mark.parametrize("body", [{}, {"unknown": 1}, {"log_info": None, "log_file": None}, [], 5, "x"])
def test_what_says_nothing_changes_nothing(server: Serving, body: Any) -> None:
    answer = post(server, body)
    assert (answer.status, answer.json()) == (200, DEFAULTS)


def test_grpc_has_the_same_settings(server: Serving) -> None:
    with connected(server) as grpc:

        def call(**settings: Any) -> dict[str, Any]:
            value = service_pb2.LogSettingsRequest.SettingValue
            request = service_pb2.LogSettingsRequest(settings={name: value(**one) for name, one in settings.items()})
            answer = grpc.stub.LogSettings(request)
            return {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in answer.settings.items()}

        assert call() == DEFAULTS
        changed = call(log_verbose_level={"uint32_param": 3}, log_info={"bool_param": False})
        assert changed == {**DEFAULTS, "log_verbose_level": 3, "log_info": False}
        assert server.get("/v2/logging").json() == changed
        for settings, code, text in (
            ({"log_info": {"string_param": "x"}}, "INVALID_ARGUMENT", "expect boolean for 'log_info'"),
            ({"log_verbose_level": {"bool_param": True}}, "INVALID_ARGUMENT", "expect int32 for 'log_verbose_level'"),
            ({"log_format": {"bool_param": True}}, "INVALID_ARGUMENT", "expect string for 'log_format'"),
            ({"log_format": {"string_param": "x"}}, "INVALID_ARGUMENT", "invalid argument for log_format, got: x"),
            (
                {"log_file": {"string_param": "x"}},
                "UNIMPLEMENTED",
                "log file location can not be updated through network protocol",
            ),
        ):
            with pytest.raises(Exception, match=text) as raised:
                call(**settings)
            assert raised.value.code().name == code  # type: ignore[attr-defined]
        assert call() == changed


def test_clients(server: Serving) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.get_log_settings() == DEFAULTS
        assert client.update_log_settings({"log_warning": False})["log_warning"] is False
        with pytest.raises(InferenceServerException, match="log file location can not be updated"):
            client.update_log_settings({"log_file": "x"})
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc_client:
        settings = grpc_client.get_log_settings(as_json=True)["settings"]
        assert settings["log_warning"] == {"bool_param": False}
        grpc_client.update_log_settings({"log_warning": True})
    assert server.get("/v2/logging").json() == DEFAULTS


def test_the_command_line_sets_them(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "talks", TALKS)
    log = tmp_path / "log"
    with Serving(repository, "--log-verbose=2", "--log-warning=false", "--log-format=ISO8601") as server:
        assert server.get("/v2/logging").json() == {
            **DEFAULTS,
            "log_verbose_level": 2,
            "log_warning": False,
            "log_format": "ISO8601",
        }
        server.wait_for("verbose in initialize")
        talk = Talk(server)
        server.wait_for(f'"done {Talk.count}"')
        assert talk.names() == ["info", "error", "verbose", "done"]
    os.mkdir(os.fsencode(repository) + b"/no\xfftext")
    server = Serving(repository, f"--log-file={log}")
    server.start()
    try:
        # Nothing is on stdout then.
        while "Started HTTPService" not in (log.read_text() if log.exists() else ""):
            assert server.process.poll() is None
        server.port = int(log.read_text().partition("Started HTTPService at 127.0.0.1:")[2].partition('"')[0])
        assert server.get("/v2/logging").json() == {**DEFAULTS, "log_file": str(log)}
        assert "no\\udcfftext" in log.read_text()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "Adding default backend config setting: default-max-batch-size,4"),
        (("--backend-config=default-max-batch-size=7",), "Found overwritten default setting: default-max-batch-size,7"),
    ],
)
def test_what_a_backend_is_told_of_batch_sizes_is_logged(repository: Path, flags: tuple[str, ...], text: str) -> None:
    write_model(repository, "echo")
    with Serving(repository, "--log-verbose=1", *flags) as server:
        server.wait_for(text)
        assert "has no effect" not in server.output


def test_each_request_has_a_line_at_the_first_verbose_level(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    path, body, headers = binary_request("echo", np.zeros(4, np.float32))
    with Serving(tmp_path) as server:
        connection = server.connect()

        def ask(method: str, path: str, body: bytes | None, headers: dict[str, str]) -> None:
            connection.request(method, path, body, headers)
            assert connection.getresponse().read() is not None

        for _ in range(3):  # the last ones are recognised without being read again
            ask("POST", path, body, headers)
        assert "HTTP request" not in server.output
        post(server, {"log_verbose_level": 1})
        for _ in range(3):
            ask("POST", path, body, headers)
        ask("GET", "/v2/health/live", None, {})
        server.wait_for('"HTTP request: GET /v2/health/live"')
        server.wait_for_all('"HTTP request: POST /v2/models/echo/infer"', 3)
        post(server, {"log_verbose_level": 0})
        ask("GET", "/v2/health/ready", None, {})
        assert "/v2/health/ready" not in server.output
        connection.close()


def test_a_cancellation_has_a_line_at_the_first_verbose_level(tmp_path: Path) -> None:
    source = """
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                print("executing", flush=True)
                while not requests[0].is_cancelled():
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    write_model(tmp_path, "waits", source)
    path, body, headers = binary_request("waits", np.zeros(4, np.float32))
    with Serving(tmp_path, "--log-verbose=1") as server:
        connection = server.connect()
        connection.request("POST", path, body, headers)
        server.wait_for("executing")
        connection.close()
        server.wait_for("cancelling a request to model 'waits': its client has closed the connection")


def test_each_answer_has_a_line_where_that_is_wanted(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    path, body, headers = binary_request("echo", np.zeros(4, np.float32))
    with Serving(tmp_path, "--access-log") as server:
        connection = server.connect()
        for _ in range(4):  # the last ones are recognised without being read again
            connection.request("POST", path, body, headers)
            assert connection.getresponse().read()
        connection.close()
        server.wait_for_all("\"POST /v2/models/echo/infer HTTP/1.1\" 200 model='echo', ".replace('"', '\\"'), 4)
        server.request("POST", "/v2/models/nobody/infer", body, headers)
        server.wait_for(r'127\.0\.0\.1:\d+ - \\"POST /v2/models/nobody/infer HTTP/1\.1\\" 404')
        server.get("/v2/health/ready?deep=1")
        server.wait_for(r'127\.0\.0\.1:\d+ - \\"GET /v2/health/ready\?deep=1 HTTP/1\.1\\" 200')
        server.metrics()
        server.wait_for(r'\\"GET /metrics HTTP/1\.1\\" 200')


def test_each_call_has_a_line_where_that_is_wanted(tmp_path: Path) -> None:
    source = """
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                print("executing", flush=True)
                while not requests[0].is_cancelled():
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    write_model(tmp_path, "echo")
    write_model(tmp_path, "waits", source)

    def line(method: str, rest: str) -> str:
        return rf'127\.0\.0\.1:\d+ - \\"/inference\.GRPCInferenceService/{method} HTTP/2\\" {rest}'

    with Serving(tmp_path, "--access-log") as server, connected(server) as grpc:
        message = grpc_request("echo")
        answer = grpc.infer(message)
        took = rf'\d+ µs, {message.ByteSize()} bytes in, {answer.ByteSize()} out"'
        server.wait_for(line("ModelInfer", f"OK model='echo', {took}"))
        grpc.refusal(grpc_request("no\nbody"))
        server.wait_for(line("ModelInfer", r"\w+ model='no\\+nbody', \d+ µs, \d+ bytes in, 0 out"))
        assert grpc.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=PATIENCE_S).live
        server.wait_for(line("ServerLive", r"OK, \d+ µs, 0 bytes in, 2 out"))
        assert len(grpc.stream(message, message, message)) == 3
        in_all = 3 * message.ByteSize()
        server.wait_for(line("ModelStreamInfer", rf"OK model='echo', \d+ µs, {in_all} bytes in, \d+ out"))
        call = grpc.stub.ModelInfer.future(grpc_request("waits"), timeout=PATIENCE_S)
        server.wait_for("executing")
        call.cancel()
        server.wait_for(line("ModelInfer", r"CANCELLED model='waits', \d+ µs, \d+ bytes in, 0 out"))
        with pytest.raises(RpcError):
            grpc.stub.ModelInfer(grpc_request("waits"), timeout=0.5)
        # The client says that it gives up when the server's clock has come as far; which is first is chance.
        ended = r"(DEADLINE_EXCEEDED|CANCELLED)( model='waits')?, \d{6,} µs, \d+ bytes in, 0 out"
        server.wait_for(line("ModelInfer", ended))


def test_a_log_file_that_cannot_be_opened_is_named_once(tmp_path: Path) -> None:
    server = Serving(tmp_path, f"--log-file={tmp_path}/nowhere/log")
    server.start()
    try:
        assert server.process.wait(PATIENCE_S) == 1
        text = f"error: creating server: --log-file={tmp_path}/nowhere/log: No such file or directory"
        server.wait_for(re.escape(text))
        assert server.output.count(text) == 1
    finally:
        server.stop()


def test_a_log_file_on_a_full_disk(tmp_path: Path) -> None:
    """Lines are lost and counted, and it is said where it can be; when there is room again the log goes on."""
    write_model(tmp_path / "models", "talks", TALKS)
    file = tmp_path / "log"
    file.touch()
    server = Serving(tmp_path / "models", f"--log-file={file}", "--access-log")
    server.start()
    try:
        found = eventually(lambda: re.search(r"Started Metrics Service at \S+:(\d+)", file.read_text()))
        http_port = re.search(r"Started HTTPService at \S+:(\d+)", file.read_text())
        assert http_port is not None
        server.port = int(http_port[1])
        metrics = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE_S)
        # Long enough for a part of a line
        full = file.stat().st_size + 10
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (full, most))
        for number in range(5):
            assert server.infer_array("talks", np.array([number], np.float32)).status == 200
        server.wait_for("cannot be written, its lines are lost until it can be: ")

        def lost() -> int:
            metrics.request("GET", "/metrics")
            text = metrics.getresponse().read().decode()
            return int(float(re.findall(r"^stubserve_log_lines_lost_total (\S+)$", text, re.M)[0]))

        assert eventually(lambda: lost() >= 5)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
        assert server.infer_array("talks", np.array([77], np.float32)).status == 200
        eventually(lambda: "warn 77" in file.read_text())
        metrics.close()
    finally:
        server.stop()
    lines = file.read_text().splitlines()
    assert len([line for line in lines if "lines of the log are missing here: " in line]) == 1
    # What was cut in two has a line of its own, and nothing else is amiss.
    assert len([line for line in lines if not line.endswith('"')]) <= 1
    assert server.output.count("cannot be written") == 1


def test_a_log_may_be_json(tmp_path: Path) -> None:
    write_model(tmp_path, "talks", TALKS)
    with Serving(tmp_path, "--log-format=json") as server:
        # The number is in the line, whose form is another one.
        started = server.wait_for(r'(?m)^\{.*"message": "Started Metrics Service at 127\.0\.0\.1:\d+"\}$')
        assert json.loads(started[0])["level"] == "info"
        assert server.get("/v2/logging").json()["log_format"] == "json"
        assert server.infer_array("talks", np.array([7], np.float32)).status == 200
        line = json.loads(server.wait_for(r'(?m)^.*"warn 7"\}$')[0])
        assert (line["level"], line["place"].partition(":")[0]) == ("warning", "model.py")


def test_each_answer_has_the_same_fields_over_all_protocols(tmp_path: Path) -> None:
    write_model(tmp_path, "echo", version=3)
    flags = ("--access-log", "--log-format=json")
    with Serving(tmp_path, *flags) as server, connected(server) as grpc:

        def fields(request: str) -> dict[str, Any]:
            line = server.wait_for(rf'(?m)^.*"request": "{re.escape(request)}".*$')[0]
            found: dict[str, Any] = json.loads(line)
            assert list(found) == [
                "time", "level", "pid", "place", "message",
                "client", "request", "status", "model", "version", "id", "us", "bytes_in", "bytes_out",
            ]  # fmt: skip
            assert re.fullmatch(r"127\.0\.0\.1:\d+", found["client"])
            assert found["us"] > 0
            return found

        def shown(request: str) -> list[Any]:
            found = fields(request)
            return [found[name] for name in ("status", "model", "version", "id", "bytes_in", "bytes_out")]

        path, body, headers = binary_request("echo", np.zeros(4, np.float32), id="one")
        path = path.replace("/infer", "/versions/3/infer")
        answer = server.request("POST", path, body, headers)
        assert shown(f"POST {path} HTTP/1.1") == [200, "echo", "3", "one", len(body), len(answer.body)]
        # What is refused by the model's signature, and has no model
        path, body, headers = binary_request("echo", np.zeros(4, np.int32), "INT32", id="two\nlines")
        answer = server.request("POST", path, body, headers)
        assert shown(f"POST {path} HTTP/1.1") == [400, "echo", "", "two\nlines", len(body), len(answer.body)]
        answer = server.request("POST", "/v2/models/nobody/infer", b"{}")
        refused = [answer.status, "nobody", "", "", 2, len(answer.body)]
        assert shown("POST /v2/models/nobody/infer HTTP/1.1") == refused
        # `generate`: of our own connection, and of the app
        body = json.dumps({"INPUT0": [1.0, 2.0], "id": "four"}).encode()
        for route in ("generate", "generate_stream"):
            answer = server.request("POST", f"/v2/models/echo/{route}?x=1", body)
            expected = [200, "echo", "", "four", len(body), len(answer.body)]
            assert shown(f"POST /v2/models/echo/{route}?x=1 HTTP/1.1") == expected
        answer = server.get("/v2/models/echo/versions/3")
        assert shown("GET /v2/models/echo/versions/3 HTTP/1.1") == [200, "echo", "3", "", 0, len(answer.body)]
        message = grpc_request("echo")
        message.id, message.model_version = "five", "3"
        reply = grpc.infer(message)
        expected = ["OK", "echo", "3", "five", message.ByteSize(), reply.ByteSize()]
        assert shown("/inference.GRPCInferenceService/ModelInfer HTTP/2") == expected


THREADED = """
    import threading
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            pb_utils.Logger.log_info(f"{len(requests)} in execute")
            thread = threading.Thread(target=pb_utils.Logger.log_info, args=(f"{len(requests)} in a thread",))
            thread.start()
            thread.join()
            outputs = [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy()) for request in requests]
            return [pb_utils.InferenceResponse([output]) for output in outputs]
"""


def test_a_models_line_has_the_id_of_its_only_request(tmp_path: Path) -> None:
    batching = "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }"
    write_model(tmp_path, "one", THREADED)
    write_model(tmp_path, "two", THREADED, io_config(max_batch_size=2, extra=batching))
    with Serving(tmp_path, "--log-format=json") as server:

        def line(text: str) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(server.wait_for(rf'(?m)^.*"message": "{text}".*$')[0])
            return found

        assert server.infer_array("one", np.zeros(4, np.float32), id="the one").status == 200
        assert line("1 in execute")["id"] == "the one"
        assert "id" not in line("1 in a thread")
        with ThreadPoolExecutor(2) as pool:
            answers = pool.map(lambda id: server.infer_array("two", np.zeros((1, 4), np.float32), id=id), "ab")
            assert [answer.status for answer in answers] == [200, 200]
        assert "id" not in line("2 in execute")


FORGED = 'I1122 00:00:00.000000 1 server.cc:1] "forged"'
QUOTES = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            text = requests[0].inputs()[0].as_numpy().reshape(-1)[0].decode()
            pb_utils.Logger.log_info(text)
            print(text, flush=True)
            raise ValueError(text)
"""


def test_clients_cannot_forge_records(tmp_path: Path) -> None:
    """Text of a client's is no line of the log by itself, whoever quotes it, and controls no terminal."""
    write_model(tmp_path, "quotes", QUOTES, io_config("STRING", "1"))
    text = f"x\n{FORGED}\r\n{FORGED}\x1b[2J\u2028{FORGED}"
    path = quote(text, safe="")
    configs = [{"name": text}, {"backend": text}]
    for flags in ((), ("--log-format=json",)):
        with Serving(tmp_path, "--log-verbose=2", "--model-control-mode=explicit", "--load-model=*", *flags) as server:
            server.wait_until_ready()
            for method, where in (
                ("GET", f"/v2/models/{path}"),
                ("POST", f"/v2/models/{path}/infer"),
                ("GET", f"/{path}"),
            ):
                assert server.request(method, where, b"{}" if method == "POST" else None).status >= 400
            for config in configs:
                load = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
                assert server.request("POST", "/v2/repository/models/quotes/load", load).status >= 400
            data = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [text]}
            assert server.infer_json("quotes", [data], id=text).status == 500
            server.wait_for("Failed to process the request")
        assert server.output.count("forged") > 10  # it is there, but
        # What models print is theirs, behind the instance's name.
        told = [line for line in server.output.split("\n") if not line.startswith("[quotes_0] ")]
        lines = told if flags else [line for one in told for line in one.splitlines()]
        assert not [line for line in lines if line.startswith("I1122 00:00")], server.output
        assert not [line for line in lines if "\x1b" in line]

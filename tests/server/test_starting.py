"""What a person sees of a server's start and end, and what clients are told meanwhile."""

from __future__ import annotations

import http.client
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil

from stubserve.http import connection
from tests.real_server import IDENTITY, PATIENCE_S, WORK_S, Serving, binary_request, eventually, io_config, write_model
from tests.server.terminal import Terminal

# Loads when a file appears beside it.
PATIENT = (
    IDENTITY
    + """
        def initialize(self, args):
            import os, time
            print("initializing")
            while not os.path.exists(args["model_repository"] + "/go"):
                time.sleep(0.01)
"""
)

# Finalizes when a file appears beside it.
LINGERING = (
    IDENTITY
    + """
        def initialize(self, args):
            self.file = args["model_repository"] + "/go"

        def finalize(self):
            import os, time
            print("finalizing")
            while not os.path.exists(self.file):
                time.sleep(0.01)
"""
)


def test_the_first_start_says_whether_it_is_not_compiled(repository: Path, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for flags, times in ((("--dev",), 0), ((), connection.__file__.endswith(".py")), ((), 0)):
        with Serving(repository, *flags, environment=cache) as server:
            pass
        assert server.output.count("stubserve is not compiled") == times


def test_a_model_that_is_still_loading_says_so(repository: Path) -> None:
    folder = write_model(repository, "patient", PATIENT)
    write_model(repository, "quick")
    server = Serving(repository)
    server.start()
    try:
        server.port = listening_port(server)
        server.wait_for("successfully loaded 'quick'")
        assert server.infer_array("quick", np.zeros(2, np.float32)).status == 200
        for path in ("/v2/models/patient", "/v2/models/patient/versions/1/ready"):
            answer = server.get(path)
            assert (answer.status, answer.error) == (503, "model 'patient' is loading")
        answer = server.infer_array("patient", np.zeros(2, np.float32))
        assert (answer.status, answer.error) == (503, "model 'patient' is loading")
        assert server.get("/v2/models/nobody").status == 404
        server.wait_for(r"loading models: 1/2, waiting for 'patient' after \d+ s")
        (folder / "go").touch()
        server.wait_for("Started HTTPService")
        assert server.infer_array("patient", np.zeros(2, np.float32)).status == 200
    finally:
        server.stop()


def listening_port(server: Serving) -> int:
    """The first port that a server listens on, which is that of HTTP: its number is logged at the end of the start."""
    ports = eventually(lambda: sorted(_ports(server.process.pid)))
    return next(port for port in ports if _speaks_http(server, port))


def _speaks_http(server: Serving, port: int) -> bool:
    server.port = port
    try:
        return b'"extensions"' in server.get("/v2").body
    except (OSError, http.client.HTTPException):  # the port of gRPC says in HTTP/2 that it is one
        return False


def _ports(pid: int) -> list[int]:
    return [one.laddr.port for one in psutil.Process(pid).net_connections("tcp") if one.status == "LISTEN"]


def test_on_a_terminal_the_start_ends_with_a_table(repository: Path) -> None:
    write_model(repository, "two", config=io_config(extra="instance_group [ { count: 2 kind: KIND_CPU } ]"))
    write_model(repository, "broken", "import nothing_of_that_name\n")
    server = Serving(repository, "--exit-on-error=false", environment={"COLUMNS": "140", "NO_COLOR": ""})
    with Terminal(server) as terminal:
        terminal.expect(r"\x1b\[1;31mE\d{4} .*\x1b\[31mfailed to load 'broken'")
        terminal.serving()
        terminal.expect(r"Model.*Version.*Instances.*State.*Reason")
        terminal.expect(r"broken +1 +\x1b\[1;31mUNAVAILABLE\x1b\[0m +Internal: ModuleNotFoundError: No module named")
        terminal.expect(r"two +1 +2 +\x1b\[32mREADY")
        terminal.expect(rf"HTTP +http://127\.0\.0\.1:{server.port}/v2/models/two/infer\r\n")
        ask = terminal.expect(r"Ask +(stubserve ask --url=http://127\.0\.0\.1:\d+ two INPUT0='\[1,2,3\]')\r\n")
        asked = subprocess.run(
            [sys.executable, "-m", *shlex.split(ask[1])], capture_output=True, text=True, timeout=WORK_S
        )
        assert asked.stdout == "OUTPUT0 FP32 [3]: [1., 2., 3.]\n", asked.stderr
        curl = terminal.expect(r"Curl +(curl -d '.*' http://127\.0\.0\.1:\d+/v2/models/two/infer)\r\n")
        asked = subprocess.run(["bash", "-c", curl[1]], capture_output=True, text=True, timeout=WORK_S)
        assert json.loads(asked.stdout)["outputs"][0]["data"] == [1.0, 2.0, 3.0], asked.stderr
        terminal.expect(r"gRPC +127\.0\.0\.1:\d+\r\n")
        terminal.expect(r"Metrics +http://127\.0\.0\.1:\d+/metrics\r\n")
        terminal.expect(r"Status +http://127\.0\.0\.1:\d+/\r\n")


def test_there_is_no_table_elsewhere_and_no_colour_for_who_wants_none(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as server:
        server.wait_for("Started Metrics Service")
        assert server.stop() == 0
        assert "Instances" not in server.output
    server = Serving(repository, environment={"NO_COLOR": "1"})
    with Terminal(server) as terminal:
        terminal.serving()
        terminal.type("\x03")
        assert terminal.end() == 0
        assert "READY" in terminal.text
        assert "\x1b[3" not in terminal.text


def test_ctrl_c_says_what_is_waited_for_and_a_second_one_does_not_wait(repository: Path) -> None:
    write_model(repository, "lingers", LINGERING)
    server = Serving(repository, "--exit-timeout-secs=60")
    with server:
        pids = server.stub_pids()
        server.process.send_signal(signal.SIGINT)
        server.wait_for(
            r"waiting for model 'lingers' to finalize, for 5\d s at most \(--exit-timeout-secs\); ctrl-C again"
        )
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == 130
        server.wait_for("ended at once")
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_requests_that_are_waited_for_are_counted(repository: Path) -> None:
    folder = write_model(
        repository,
        "slow",
        """
        import os, time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.file = args["model_repository"] + "/go"

            def execute(self, requests):
                print("executing")
                while not os.path.exists(self.file):
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([]) for _ in requests]
        """,
    )
    path, body, headers = binary_request("slow", np.zeros(2, np.float32))
    with Serving(repository) as server:
        connection = server.connect()
        connection.request("POST", path, body, headers)
        server.wait_for("executing")
        server.process.send_signal(signal.SIGINT)
        server.wait_for(r"waiting for model 'slow' \(1 request\), for \d+ s at most")
        (folder / "go").touch()
        assert connection.getresponse().status == 200
        connection.close()
        assert server.process.wait(PATIENCE_S) == 0


def test_ctrl_c_in_the_middle_of_the_start_says_how_far_it_was(repository: Path) -> None:
    write_model(repository, "patient", PATIENT)
    server = Serving(repository)
    server.start()
    server.wait_for("initializing")
    server.process.send_signal(signal.SIGINT)
    server.wait_for("the start is given up; loading models: 0/1, waiting for 'patient'")
    assert server.process.wait(PATIENCE_S) == 0
    server.stop()

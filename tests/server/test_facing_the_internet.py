"""The server that faces the internet in docs/guides/security.md: its command, and Triton's clients against it."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from stubserve_stub.runtime.confinement import NETWORK_VERSION, landlock_version

from tests.documentation.pages import DOCS, blocks, words_of
from tests.real_server import PATIENCE_S, Answer, Serving, eventually, write_model
from tests.server.test_tls import CONFIG, Certificates
from tools.bench.servers import ServerError, peers_environment

SECTION = (
    (DOCS / "guides" / "security.md").read_text().partition("## Checklist for the internet")[2].partition("\n## ")[0]
)
PAGE = blocks(SECTION)
[CLIENTS] = [block.text for block in PAGE if block.title == "clients.py"]
COMMANDS = [command for block in PAGE for command, _ in block.commands]
[TOKENS] = [block.text for block in PAGE if block.title == "tokens"]
FRONT, ADMIN = (line.split()[0] for line in TOKENS.splitlines())
SECRET = "0a1b2c3d4e5f"

pytestmark = pytest.mark.skipif(landlock_version() < NETWORK_VERSION, reason="--stub-sandbox=network needs Linux 6.7")


def command(program: str) -> list[list[str]]:
    """The commands of the page that start this program, as words."""
    return [words[1:] for words in map(words_of, COMMANDS) if words[0] == program]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class Facing:
    """The server, and the folder in which its command was typed."""

    def __init__(self, folder: Path, serving: Serving, certificates: Certificates) -> None:
        self.folder = folder
        self.serving = serving
        self.context = certificates.client()

    def ask(self, method: str, path: str, *headers: dict[str, str], port: int = 0, body: bytes | None = None) -> Answer:
        connection = http.client.HTTPSConnection(
            "localhost", port or self.serving.port, timeout=PATIENCE_S, context=self.context
        )
        connection.request(method, path, body, {name: value for one in headers for name, value in one.items()})
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return answer

    def here(self, text: str) -> str:
        """What the page says, with the ports that this server has got."""
        ports = {"8000": self.serving.port, "8001": self.serving.grpc_port}
        return re.sub(r"localhost:(8000|8001)", lambda found: f"localhost:{ports[found[1]]}", text)


@pytest.fixture(scope="module")
def facing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facing]:
    folder = tmp_path_factory.mktemp("facing")
    certificates = Certificates(folder)
    certificates.issue("localhost")
    for made, said in (certificates.certificate, "server.pem"), (certificates.key, "server.key"):
        shutil.copy(made, folder / said)
    shutil.copy(certificates.root, folder / "authority.pem")
    (folder / "tokens").write_text(TOKENS)
    write_model(folder / "models", "echo", config=CONFIG)
    [words] = command("stubserve")
    serving = Serving("")
    ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
    serving.command = [sys.executable, "-m", "stubserve", *words, *ports]
    before = os.getcwd()
    os.chdir(folder)
    try:
        serving.start()
    finally:
        os.chdir(before)
    try:
        serving.port = int(serving.wait_for(r"Started HTTPService at [^ \n]*:(\d+)")[1])
        one = Facing(folder, serving, certificates)
        eventually(lambda: one.ask("GET", "/v2/health/ready").status == 200)
        yield one
    finally:
        serving.stop()


def test_the_command_has_all_that_the_list_asks_for() -> None:
    [words] = command("stubserve")
    asked = {
        flag
        for item in re.findall(r"^\d\. .*(?:\n   .*)*", SECTION, re.MULTILINE)
        for flag in re.findall(r"`(--[a-z-]+)", item)
    }
    # The default, and what is said to be for another choice
    assert asked - {word.partition("=")[0] for word in words} == {"--model-control-mode", "--stub-user"}


def test_tritons_clients_get_in_with_their_token(facing: Facing) -> None:
    done = subprocess.run(
        [sys.executable, "-c", facing.here(CLIENTS)],
        cwd=facing.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("True") == 2
    assert done.stdout.count("echo") >= 2
    values = np.arange(100_000, dtype=np.float32)
    root = str(facing.folder / "authority.pem")
    over_http = triton_http.InferenceServerClient(
        facing.here("localhost:8000"), ssl=True, ssl_options={"ca_certs": root}
    )
    over_grpc = triton_grpc.InferenceServerClient(facing.here("localhost:8001"), ssl=True, root_certificates=root)
    for module, client in (triton_http, over_http), (triton_grpc, over_grpc):
        asked = module.InferInput("INPUT0", [len(values)], "FP32")
        asked.set_data_from_numpy(values)
        answer = client.infer("echo", [asked], headers=bearer(FRONT))
        assert (answer.as_numpy("OUTPUT0") == values).all()
        with pytest.raises(Exception, match="wants a token"):
            client.infer("echo", [asked])
        client.close()


def test_others_do_not_get_in(facing: Facing) -> None:
    port = facing.serving.port
    with pytest.raises((http.client.HTTPException, OSError)):
        facing.serving.get("/v2/health/live")
    with (
        socket.create_connection(("localhost", port), 60) as connection,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")
    with grpc.insecure_channel(facing.here("localhost:8001")) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=PATIENCE_S)
    assert facing.ask("GET", "/v2/health/live").status == 200
    admin = {"X-Admin": SECRET}
    for path, headers, status in (
        ("/v2/models/echo", (), 401),
        ("/v2/models/echo", (bearer(FRONT),), 200),
        ("/v2/repository/index", (bearer(FRONT), admin), 403),
        ("/v2/repository/index", (bearer(ADMIN),), 403),
        ("/v2/repository/index", (admin,), 401),
        ("/v2/repository/index", (bearer(ADMIN), admin), 200),
        ("/v2/repository/models/echo/unload", (bearer(ADMIN), admin), 503),
        ("/v2/repository/models/echo/load", (bearer(ADMIN), admin), 503),
    ):
        method = "POST" if "repository" in path else "GET"
        assert facing.ask(method, path, *headers).status == status, (path, headers)
    assert facing.ask("GET", "/v2/logging", bearer(ADMIN)).status == 403
    # Without --allow-client-shm nobody registers a region, whatever they have.
    region = json.dumps({"key": "/x", "byte_size": 64}).encode()
    path = "/v2/systemsharedmemory/region/x/register"
    assert facing.ask("POST", path, bearer(ADMIN), admin, body=region).status == 501


def test_metrics_are_for_this_machine(facing: Facing) -> None:
    service = facing.serving.wait_for(r"Started Metrics Service at (\S*):(\d+)")
    assert service[1].endswith("127.0.0.1")
    port = int(service[2])
    assert facing.ask("GET", "/metrics", port=port).status == 401
    assert facing.ask("GET", "/metrics", bearer(FRONT), port=port).status == 403
    assert b"nv_inference_request_success" in facing.ask("GET", "/metrics", bearer(ADMIN), port=port).body


def test_stubs_are_in_their_box(facing: Facing) -> None:
    [stub] = facing.serving.stub_pids()
    assert resource.prlimit(stub, resource.RLIMIT_DATA) == (8 << 30, 8 << 30)
    assert "NoNewPrivs:\t1" in Path(f"/proc/{stub}/status").read_text()


def test_perf_analyzer_gets_in_with_its_token(facing: Facing) -> None:
    try:
        peers = peers_environment()
    except ServerError as missing:
        pytest.skip(str(missing))
    for words in command("perf_analyzer"):
        few = ("--shape", "INPUT0:16", "--concurrency-range", "2", "--measurement-mode", "count_windows",
               "--measurement-request-count", "50", "-s", "1000")  # fmt: skip
        line = [peers["PERF_ANALYZER"], *map(facing.here, words), *few]
        variables = {**os.environ, "LD_LIBRARY_PATH": peers["PA_LIBS"]}
        done = subprocess.run(line, cwd=facing.folder, capture_output=True, text=True, timeout=150, env=variables)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Throughput: " in done.stdout

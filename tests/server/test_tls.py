"""HTTP over TLS: tensors of any size, clients' certificates, certificates that are exchanged, and bad handshakes."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.http as triton_http
import trustme
from cryptography.hazmat.primitives import serialization
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tools.bench.http2_client import PREFACE, SETTINGS, frame
from tools.bench.processes import rss_anon

from ..real_server import PATIENCE_S, Serving, binary_request, eventually, write_model

CONFIG = """
    backend: "identity"
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


class Certificates:
    """An authority, and the server's files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key, self.root = (folder / name for name in ("cert.pem", "key.pem", "root.pem"))
        self.authority.cert_pem.write_to_path(str(self.root))
        self.issue("127.0.0.1")

    def issue(self, *names: str) -> int:
        """Writes a new certificate and key, each in one step; the serial number."""
        ours = self.authority.issue_cert(*names)
        for path, content in (
            (self.key, ours.private_key_pem.bytes()),
            (self.certificate, b"".join(pem.bytes() for pem in ours.cert_chain_pems)),
        ):
            written = path.with_suffix(".new")
            written.write_bytes(content)
            os.replace(written, path)
        return int(ssl_serial(self.certificate), 16)

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--http-use-ssl", f"--http-server-cert={self.certificate}", f"--http-server-key={self.key}")

    @property
    def grpc_flags(self) -> tuple[str, ...]:
        return tuple(flag.replace("--http", "--grpc") for flag in self.flags)

    def client(self, known: bool = False) -> ssl.SSLContext:
        """A client's context, with a certificate of the authority where it is `known`."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if known:
            self.authority.issue_cert("client").configure_cert(context)
        return context


def ssl_serial(path: Path) -> str:
    return str(ssl._ssl._test_decode_cert(str(path))["serialNumber"])  # type: ignore[attr-defined]


def served_serial(port: int, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a new connection meets."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        return int(str(connection.getpeercert()["serialNumber"]), 16)  # type: ignore[index]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "echo", config=CONFIG)
    return folder


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def serving(repository: Path, certificates: Certificates) -> Iterator[Serving]:
    with Serving(repository, *certificates.flags) as serving:
        yield serving


@pytest.mark.parametrize("size", [1, 1000, 100_000, 8_000_000])
def test_tensors_arrive_whole(serving: Serving, certificates: Certificates, size: int) -> None:
    """Several on one connection: requests that repeat, and bodies that are received into the arena."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1", serving.port, context=certificates.client(), timeout=PATIENCE_S
    )
    for number in range(4):
        array = np.arange(number, number + size, dtype=np.float32)
        path, body, headers = binary_request("echo", array)
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content[:500]
        length = int(answer.headers["Inference-Header-Content-Length"])
        np.testing.assert_array_equal(np.frombuffer(content[length:], np.float32), array)
    connection.close()


def test_every_route_and_tritons_client(serving: Serving, certificates: Certificates) -> None:
    client = triton_http.InferenceServerClient(
        f"127.0.0.1:{serving.port}", ssl=True, ssl_context_factory=certificates.client
    )
    assert client.is_server_ready()
    assert client.get_model_metadata("echo")["name"] == "echo"
    tensor = triton_http.InferInput("INPUT0", [4], "FP32")
    tensor.set_data_from_numpy(np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(client.infer("echo", [tensor]).as_numpy("OUTPUT0"), np.arange(4, dtype=np.float32))
    client.close()
    metrics = http.client.HTTPSConnection(
        "127.0.0.1", serving.metrics_port, context=certificates.client(), timeout=PATIENCE_S
    )
    metrics.request("GET", "/metrics")
    assert b"nv_inference_count" in metrics.getresponse().read()
    metrics.close()


def test_requests_in_small_pieces_and_several_at_once(serving: Serving, certificates: Certificates) -> None:
    path, body, headers = binary_request("echo", np.arange(30_000, dtype=np.float32))
    lines = [f"POST {path} HTTP/1.1", "Host: a", *(f"{name}: {value}" for name, value in headers.items())]
    request = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
    small = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    plain = socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_S)
    with certificates.client().wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        for start in range(0, len(request), 7001):
            connection.sendall(request[start : start + 7001])
        connection.sendall(small * 3)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 4:
            piece = connection.recv(1 << 16)
            assert piece, received[-500:]
            received += piece
    assert body[-1000:] in received


def test_who_speaks_no_tls_is_turned_away(serving: Serving, certificates: Certificates) -> None:
    for nonsense in (b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x16"):
        with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_S) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
    assert served_serial(serving.port, certificates.client())
    assert "Traceback" not in serving.output


def test_clients_certificates(repository: Path, certificates: Certificates) -> None:
    flags = (*certificates.flags, "--http-use-ssl-mutual", f"--http-root-cert={certificates.root}")
    with Serving(repository, *flags) as serving:
        for port in (serving.port, serving.metrics_port):
            strangers = trustme.CA()
            stranger = certificates.client()
            strangers.issue_cert("client").configure_cert(stranger)
            for context in (certificates.client(), stranger):
                connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE_S)
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    _live(connection)
                connection.close()
            known = http.client.HTTPSConnection(
                "127.0.0.1", port, context=certificates.client(known=True), timeout=PATIENCE_S
            )
            assert _live(known) == 200
            known.close()


def _live(connection: http.client.HTTPSConnection) -> int:
    connection.request("GET", "/v2/health/live")
    return connection.getresponse().status


def test_certificates_are_exchanged(repository: Path, tmp_path: Path) -> None:
    """Over HTTP and gRPC, without a restart; a key that does not fit changes nothing."""
    certificates = Certificates(tmp_path)
    with Serving(repository, *certificates.flags, *certificates.grpc_flags) as serving:
        ports = (serving.port, serving.grpc_port, serving.metrics_port)
        context = certificates.client()
        context.set_alpn_protocols(["h2", "http/1.1"])
        first = int(ssl_serial(certificates.certificate), 16)
        assert [served_serial(port, context) for port in ports] == [first] * 3
        second = certificates.issue("127.0.0.1")
        eventually(lambda: [served_serial(port, context) for port in ports] == [second] * 3)
        certificates.key.write_text("no key")
        eventually(lambda: served_serial(serving.port, context) and "the certificate stays as it was" in serving.output)
        assert served_serial(serving.port, context) == second
        third = certificates.issue("127.0.0.1")
        eventually(lambda: served_serial(serving.port, context) == third)


def test_ask_names_what_makes_a_certificate_trusted(serving: Serving, certificates: Certificates) -> None:
    command = [sys.executable, "-m", "stubserve", "ask", f"--url=https://127.0.0.1:{serving.port}", "nosuch"]
    trusting = {**os.environ, "SSL_CERT_FILE": str(certificates.root)}
    told, known = (
        subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stderr
        for environment in ({**os.environ}, trusting)
    )
    assert "is not trusted" in told
    assert "SSL_CERT_FILE" in told
    assert "there is no model 'nosuch'" in known


def test_ask_tells_a_server_that_it_cannot_speak_with_from_none(
    serving: Serving, repository: Path, certificates: Certificates
) -> None:
    def told(url: str) -> str:
        command = [sys.executable, "-m", "stubserve", "ask", f"--url={url}", "nosuch"]
        environment = {**os.environ, "SSL_CERT_FILE": str(certificates.root)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stderr

    assert "--url has to name the server as its certificate does" in told(f"https://localhost:{serving.port}")
    assert "if it has TLS, its address begins with https://" in told(f"http://127.0.0.1:{serving.port}")
    with Serving(repository) as plain:
        assert "without TLS its address begins with http://" in told(f"https://127.0.0.1:{plain.port}")
    flags = (*certificates.flags, "--http-use-ssl-mutual", f"--http-root-cert={certificates.root}")
    with Serving(repository, *flags) as mutual:
        assert "certificate" in told(f"https://127.0.0.1:{mutual.port}")


def _encrypted(key: str) -> str:
    pem = serialization.load_pem_private_key(key.encode(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    return pem.decode()


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("cert missing", r"\d\] \"there is no TLS for http: /nosuch\.pem: No such file or directory\. The files"),
        ("key is a certificate", r"{root}: there is no private key in PEM\. The files for TLS are those of --http-"),
        ("certificate is a key", r"{key}: there is no certificate in PEM"),
        ("key of another", r"{certificate}: the certificate and the private key {other} cannot be used together"),
        ("encrypted key", r"{other}: the private key is encrypted"),
    ],
)
def test_files_that_cannot_be_used_end_the_start(
    repository: Path, certificates: Certificates, tmp_path: Path, broken: str, told: str
) -> None:
    other = tmp_path / "other.pem"
    if broken == "encrypted key":
        other.write_text(_encrypted(certificates.key.read_text()))
    elif broken == "key of another":
        Path(other).write_bytes(trustme.CA().issue_cert("127.0.0.1").private_key_pem.bytes())
    wrong = {
        "cert missing": "--http-server-cert=/nosuch.pem",
        "key is a certificate": f"--http-server-key={certificates.root}",
        "certificate is a key": f"--http-server-cert={certificates.key}",
        "key of another": f"--http-server-key={other}",
        "encrypted key": f"--http-server-key={other}",
    }[broken]
    server = Serving(repository, *certificates.flags, wrong)
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    places = {"root": certificates.root, "key": certificates.key, "certificate": certificates.certificate}
    server.wait_for(told.format(other=other, **places))
    assert "Waiting for in-flight requests" not in server.output
    server.stop()


def test_the_server_ends_while_a_handshake_hangs(repository: Path, certificates: Certificates) -> None:
    with Serving(repository, *certificates.flags) as serving, socket.socket() as connection:
        connection.connect(("127.0.0.1", serving.port))
        connection.sendall(b"\x16\x03\x01")
        assert served_serial(serving.port, certificates.client())
        assert serving.stop() == 0


def test_the_server_ends_while_clients_keep_their_connections(repository: Path, certificates: Certificates) -> None:
    """They read nothing, so none of them answers the last word of TLS, for which uvloop would wait 30 s."""
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    preface = PREFACE + frame(SETTINGS, 0, 0)
    with Serving(repository, *certificates.flags, *certificates.grpc_flags) as server, contextlib.ExitStack() as stack:
        for port, begins in ((server.port, request), (server.metrics_port, request), (server.grpc_port, preface)):
            context = certificates.client()
            if begins is preface:
                context.set_alpn_protocols(["h2"])
            plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            connection = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            connection.sendall(begins)
            assert connection.recv(1000)
        assert server.stop(timeout=25) == 0


def test_large_answers_keep_no_memory(repository: Path, certificates: Certificates) -> None:
    """Neither after they were taken, nor while nobody takes them; and they come whole, the last one before its end."""
    array = np.arange(8 << 20, dtype=np.float32)
    path, body, headers = binary_request("echo", array)
    with Serving(repository, "--shm-limit=512M", *certificates.flags) as server:
        connections = [
            http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_S, context=certificates.client())
            for _ in range(3)
        ]
        before = rss_anon(server.process.pid)
        for closes in (False, True):
            for connection in connections:
                connection.request("POST", path, body, {**headers, **({"Connection": "close"} if closes else {})})
            responses = [connection.getresponse() for connection in connections]
            assert rss_anon(server.process.pid) - before < array.nbytes
            for response in responses:
                assert response.read().endswith(array.tobytes())
            assert rss_anon(server.process.pid) - before < array.nbytes
        for connection in connections:
            connection.close()


def ask_over_http(server: Serving, certificates: Certificates, array: np.ndarray) -> Callable[[], None]:
    """Has an answer on a connection of its own. What is returned closes it."""
    path, body, headers = binary_request("echo", array)
    context = certificates.client()
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_S, context=context)
    connection.request("POST", path, body, headers)
    assert len(connection.getresponse().read()) > len(body) // 2
    return connection.close


def ask_over_grpc(server: Serving, certificates: Certificates, array: np.ndarray) -> Callable[[], None]:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    credentials = grpc.ssl_channel_credentials(certificates.root.read_bytes())
    channel = grpc.secure_channel(f"127.0.0.1:{server.grpc_port}", credentials, options)
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[array.tobytes()])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=array.shape)
    answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=PATIENCE_S)
    assert answer.raw_output_contents[0] == array.tobytes()
    return channel.close


@pytest.mark.slow
@pytest.mark.parametrize("ask", [ask_over_http, ask_over_grpc])
def test_connections_that_come_and_go_leave_no_memory(
    repository: Path, certificates: Certificates, tmp_path: Path, ask: Callable[..., Callable[[], None]]
) -> None:
    """Each has about a MiB of buffers. What the heap keeps of thirty is used again by the next thirty.

    Python's collector never runs here: what it has to find may wait for hours in a server that has little to do.
    """
    array = np.zeros(1 << 18, np.float32)
    (tmp_path / "sitecustomize.py").write_text("import gc\ngc.disable()\ngc.enable = gc.disable\n")
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}
    flags = (*certificates.flags, *certificates.grpc_flags)
    with Serving(repository, *flags, environment=environment) as server:
        parent = psutil.Process(server.process.pid)
        descriptors = parent.num_fds()
        afterwards = []
        for _ in range(6):
            for close in [ask(server, certificates, array) for _ in range(30)]:
                close()
            assert eventually(lambda: parent.num_fds() <= descriptors)
            afterwards.append(rss_anon(server.process.pid))
        # All 150 that have come since would keep 140 MiB.
        assert eventually(lambda: rss_anon(parent.pid) - afterwards[0] < 45 << 20), afterwards

"""Who may use which APIs: restricted ones, and tokens, over HTTP (the fast ways, too), gRPC, and for metrics."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from stubserve.api.access import OWNER
from stubserve.flags import parse_arguments
from stubserve.server.running import dangers

from ..real_server import PATIENCE_S, Answer, Serving, binary_output, binary_request, eventually, io_config, write_model

IDENTITY_CONFIG = """
    backend: "identity"
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
SEES_OWNER = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            seen = np.array(["STUBSERVE_OWNER" in os.environ], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", seen)]) for _ in requests]
"""
TEXT_CONFIG = """
    backend: "python"
    input [ { name: "text_INPUT" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "text_OUTPUT" data_type: TYPE_STRING dims: [ 1 ] } ]
    model_transaction_policy { decoupled: false }
"""
# One route of each kind: kind, method, path, status where it may be used
ROUTES = (
    ("health", "GET", "/v2/health/live", 200),
    ("health", "GET", "/v2/health/ready", 200),
    ("health", "GET", "/v2/models/echo/ready", 200),
    ("metadata", "GET", "/v2", 200),
    ("metadata", "GET", "/v2/models/echo", 200),
    ("model-config", "GET", "/v2/models/echo/config", 200),
    ("statistics", "GET", "/v2/models/stats", 200),
    ("statistics", "GET", "/v2/models/echo/stats", 200),
    ("logging", "GET", "/v2/logging", 200),
    ("model-repository", "POST", "/v2/repository/index", 200),
)
ALL = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
GUEST, ADMIN, NEW = "a-token-for-guests-1", "a-token-for-admins-2", "a-token-that-is-new-3"


def infer_bytes(size: int, headers: dict[str, str]) -> bytes:
    """A request to `echo` as it goes over a socket."""
    path, body, fields = binary_request("echo", np.arange(size, dtype=np.float32))
    lines = [f"POST {path} HTTP/1.1", "Host: a", *(f"{name}: {value}" for name, value in {**fields, **headers}.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def answer_on(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """The next answer: status, header fields, body."""
    with connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        fields = {}
        while line := file.readline().strip().decode():
            name, _, value = line.partition(": ")
            fields[name.lower()] = value
        return status, fields, file.read(int(fields["content-length"]))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "echo", config=IDENTITY_CONFIG)
    write_model(folder, "text", config=TEXT_CONFIG)
    return folder


# Restricted APIs


@pytest.fixture(scope="module")
def restricted(repository: Path) -> Iterator[Serving]:
    flags = (f"--http-restricted-api={ALL}:X-Key=sesame", "--model-control-mode=explicit", "--load-model=*")
    with Serving(repository, *flags) as serving:
        yield serving


@pytest.mark.parametrize("headers", [{}, {"X-Key": "wrong"}, {"X-Key": "sesam"}, {"X-Key": "Sesame"}, {"Y": "sesame"}])
@pytest.mark.parametrize(("kind", "method", "path", "status"), ROUTES)
def test_routes_want_their_header(
    restricted: Serving, kind: str, method: str, path: str, status: int, headers: dict[str, str]
) -> None:
    answer = restricted.request(method, path, headers=headers)
    assert (answer.status, answer.json()) == (403, {"error": "This API is restricted, expecting header 'X-Key'"})
    assert restricted.request(method, path, headers={"x-kEY": "sesame"}).status == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/v2/health/live"),
        ("GET", "/v2/repository/index"),
        ("GET", "/v2/models/echo/infer"),
        ("GET", "/v2/models/nosuch"),
        ("POST", "/v2/models/nosuch/infer"),
        ("POST", "/v2/models/echo/%69nfer"),
        ("POST", "/v2/%72epository/index"),
        ("POST", "/v2/models/nosuch/generate_stream"),
        ("POST", "/v2/repository/nosuch/models/echo/unload"),
        ("POST", "/v2/repository/models/nosuch/unload"),
        ("GET", "/v2/trace/setting"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/region/a/unregister"),
    ],
)
def test_the_restriction_comes_first(restricted: Serving, method: str, path: str) -> None:
    """Before the method, the model, and however a path is written."""
    answer = restricted.request(method, path, b"{}" if method == "POST" else None)
    assert (answer.status, answer.error) == (403, "This API is restricted, expecting header 'X-Key'")
    assert restricted.request(method, path, b"{", {"X-Key": "sesame"}).status != 403


@pytest.mark.parametrize("size", [4, 5, 1000, 100_000])
def test_inference_on_each_of_its_ways(restricted: Serving, size: int) -> None:
    """Requests that repeat and requests that do not, small bodies and bodies in the arena: on one connection."""
    right, wrong = (infer_bytes(size, {"X-Key": value}) for value in ("sesame", "simsim"))
    missing = infer_bytes(size, {})
    with socket.create_connection(("127.0.0.1", restricted.port), timeout=PATIENCE_S) as connection:
        for request, status in ((missing, 403), *[(right, 200)] * 4, *[(wrong, 403)] * 3, (right, 200), (missing, 403)):
            connection.sendall(request)
            got, fields, body = answer_on(connection)
            assert got == status, body
            if status == 200:
                answer = Answer(got, fields, body)
                np.testing.assert_array_equal(binary_output(answer), np.arange(size, dtype=np.float32))
            else:
                assert json.loads(body) == {"error": "This API is restricted, expecting header 'X-Key'"}
                assert fields["content-type"] == "application/json"


def test_generate(restricted: Serving) -> None:
    body = json.dumps({"text_INPUT": "hello"}).encode()
    for path in ("/v2/models/text/generate", "/v2/models/text/generate_stream"):
        for headers, status in (
            ({}, 403),
            ({"X-Key": "sesame"}, 200),
            ({"X-Key": "no"}, 403),
            ({"X-Key": "sesame"}, 200),
        ):
            assert restricted.request("POST", path, body, headers).status == status


def test_chunked_and_announced_bodies_are_refused_too(restricted: Serving) -> None:
    for framing, content in (
        ("Transfer-Encoding: chunked", b"3\r\n{}\n\r\n0\r\n\r\n"),
        ("Content-Length: 70000", b" " * 70_000),
    ):
        with socket.create_connection(("127.0.0.1", restricted.port), timeout=PATIENCE_S) as connection:
            head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n".encode()
            connection.sendall(head)
            connection.sendall(content)
            assert answer_on(connection)[0] == 403
            # The connection goes on where the body has ended
            connection.sendall(infer_bytes(4, {"X-Key": "sesame"}))
            assert answer_on(connection)[0] == 200
    with socket.create_connection(("127.0.0.1", restricted.port), timeout=PATIENCE_S) as connection:
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        connection.sendall(head)
        assert answer_on(connection)[0] == 403


def test_tritons_client_with_the_header(restricted: Serving) -> None:
    client = triton_http.InferenceServerClient(f"127.0.0.1:{restricted.port}")
    tensor = triton_http.InferInput("INPUT0", [4], "FP32")
    tensor.set_data_from_numpy(np.arange(4, dtype=np.float32))
    assert client.is_server_live(headers={"X-Key": "sesame"})
    answer = client.infer("echo", [tensor], headers={"X-Key": "sesame"})
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), np.arange(4, dtype=np.float32))
    with pytest.raises(triton_http.InferenceServerException, match="expecting header 'X-Key'"):
        client.infer("echo", [tensor])


def test_what_is_not_restricted_is_open(repository: Path) -> None:
    flags = ("--http-restricted-api=logging,trace:a=b", "--http-restricted-api=model-repository:c=d")
    with Serving(repository, *flags) as serving:
        assert serving.get("/v2/health/live").status == 200
        assert serving.infer_array("echo", np.zeros(3, np.float32)).status == 200
        assert serving.request("GET", "/v2/logging", headers={"c": "d"}).error.endswith("expecting header 'a'")
        assert serving.request("POST", "/v2/repository/index", headers={"a": "b"}).error.endswith("header 'c'")
        assert serving.request("POST", "/v2/repository/index", headers={"c": "d"}).status == 200


def test_who_has_started_the_server_has_all_rights(tmp_path: Path) -> None:
    """With the secret of the server's environment, which no model sees."""
    write_model(tmp_path, "sees", SEES_OWNER, io_config())
    flags = (f"--http-restricted-api={ALL}:X-Key=sesame", f"--grpc-restricted-protocol={ALL}:key=sesame")
    with Serving(tmp_path, *flags, environment={OWNER: f"Bearer {ADMIN}"}) as serving:
        assert serving.get("/v2").status == 403
        for _, method, path, status in ROUTES:
            path = path.replace("echo", "sees")
            assert serving.request(method, path, headers=bearer(GUEST)).status == 403
            assert serving.request(method, path, headers=bearer(ADMIN)).status == status
        rpc = "/inference.GRPCInferenceService/RepositoryIndex"
        assert rpc_code(serving, rpc, GUEST) is grpc.StatusCode.UNAVAILABLE
        assert rpc_code(serving, rpc, ADMIN) is grpc.StatusCode.OK
        path, body, fields = binary_request("sees", np.zeros(1, np.float32))
        assert serving.request("POST", path, body, fields).status == 403
        answer = serving.request("POST", path, body, {**fields, **bearer(ADMIN)})
        assert binary_output(answer).tolist() == [0]


# Tokens


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    digest = hashlib.sha256(ADMIN.encode()).hexdigest()
    path.write_text(f"# who may ask\n\n{GUEST} inference,health\nsha256:{digest}\n")
    return path


@pytest.fixture
def with_tokens(repository: Path, token_file: Path) -> Iterator[Serving]:
    with Serving(repository, f"--auth-token-file={token_file}") as serving:
        yield serving


def rpc_code(serving: Serving, path: str, token: str | None) -> Any:
    """The status of an empty unary RPC."""
    with grpc.insecure_channel(f"127.0.0.1:{serving.grpc_port}") as channel:
        metadata = [("authorization", f"Bearer {token}")] if token else []
        try:
            channel.unary_unary(path)(b"", metadata=metadata, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_tokens(with_tokens: Serving) -> None:
    for headers in ({}, bearer("nosuch"), {"Authorization": f"Basic {GUEST}"}, {"Authorization": GUEST}, bearer("")):
        for method, path in (("GET", "/v2/health/live"), ("GET", "/v2"), ("POST", "/v2/models/echo/infer")):
            answer = with_tokens.request(method, path, headers=headers)
            assert answer.status == 401, answer
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"] == "application/json"
            assert "wants a token" in answer.error
    for token in (GUEST, ADMIN):
        assert with_tokens.request("GET", "/v2/health/live", headers=bearer(token)).status == 200
        for size in (4, 4, 4, 5, 100_000):
            path, body, fields = binary_request("echo", np.zeros(size, np.float32))
            assert with_tokens.request("POST", path, body, {**fields, **bearer(token)}).status == 200
    refused = with_tokens.request("POST", "/v2/repository/index", headers=bearer(GUEST))
    assert (refused.status, refused.error) == (403, "The token is not good for the API 'model-repository'")
    assert with_tokens.request("POST", "/v2/repository/index", headers=bearer(ADMIN)).status == 200
    # Neither do the log nor the errors have a token in them.
    assert GUEST not in with_tokens.output
    assert ADMIN not in with_tokens.output


def test_tokens_in_heads_that_differ(with_tokens: Serving) -> None:
    """Each head is another one than those before, of lines that are known and of some that are not."""
    good, bad = f"Authorization: Bearer {GUEST}", "Authorization: Bearer a-token-that-nobody-has"
    with socket.create_connection(("127.0.0.1", with_tokens.port), timeout=PATIENCE_S) as connection:
        for number, (lines, status) in enumerate(
            [
                *[([good], 200)] * 3,
                *[([bad], 401)] * 2,
                *[([good, bad], 401), ([bad, good], 401), ([good, good], 401), ([], 401)] * 2,
                ([f"AUTHORIZATION:{good.partition(':')[2]}"], 200),
                ([f"authorization:  bearer {GUEST}"], 200),
                ([f"authorization: {GUEST}"], 401),
                ([f"X-Authorization: Bearer {GUEST}"], 401),
                ([good], 200),
            ]
        ):
            request = infer_bytes(4, {"X-Number": str(number)})
            first, _, rest = request.partition(b"\r\n")
            connection.sendall(b"\r\n".join([first, *(line.encode() for line in lines), rest]))
            assert answer_on(connection)[0] == status, (number, lines)


def test_tokens_over_grpc(with_tokens: Serving) -> None:
    code = grpc.StatusCode
    live, index = (f"/inference.GRPCInferenceService/{name}" for name in ("ServerLive", "RepositoryIndex"))
    for path in (live, index, "/inference.GRPCInferenceService/ModelInfer", "/grpc.health.v1.Health/Check"):
        assert rpc_code(with_tokens, path, None) is code.UNAUTHENTICATED
        assert rpc_code(with_tokens, path, "nosuch") is code.UNAUTHENTICATED
    assert rpc_code(with_tokens, live, GUEST) is code.OK
    assert rpc_code(with_tokens, index, GUEST) is code.PERMISSION_DENIED
    assert rpc_code(with_tokens, index, ADMIN) is code.OK
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{with_tokens.grpc_port}")
    tensor = triton_grpc.InferInput("INPUT0", [2], "FP32")
    tensor.set_data_from_numpy(np.ones(2, np.float32))
    answer = client.infer("echo", [tensor], headers={"authorization": f"Bearer {GUEST}"})
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), np.ones(2, np.float32))
    with pytest.raises(triton_grpc.InferenceServerException, match="UNAUTHENTICATED"):
        client.infer("echo", [tensor])
    with grpc.insecure_channel(f"127.0.0.1:{with_tokens.grpc_port}") as channel:
        reflection = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            next(reflection(iter([b""])))


def test_metrics_want_a_token_that_is_good_for_them(with_tokens: Serving) -> None:
    answers = [with_tokens.metrics(headers=headers).status for headers in ({}, bearer(GUEST), bearer(ADMIN))]
    assert answers == [401, 403, 200]


def test_apis_that_are_open(repository: Path, token_file: Path) -> None:
    flags = (
        f"--auth-token-file={token_file}",
        "--auth-open-api=health,metrics",
        "--http-restricted-api=statistics:k=v",
    )
    with Serving(repository, *flags) as serving:
        serving.wait_until_ready()
        assert serving.metrics().status == 200
        assert rpc_code(serving, "/inference.GRPCInferenceService/ServerLive", None) is grpc.StatusCode.OK
        assert serving.get("/v2").status == 401
        # Both a token and the header
        answers = [
            serving.request("GET", "/v2/models/stats", headers=headers).status
            for headers in ({"k": "v"}, bearer(ADMIN), {**bearer(ADMIN), "k": "v"})
        ]
        assert answers == [401, 403, 200]


def test_the_file_is_read_again(with_tokens: Serving, token_file: Path) -> None:
    """A repeated request notices, too; a file with a mistake changes nothing."""
    old, new = (infer_bytes(4, bearer(token)) for token in (GUEST, NEW))
    with socket.create_connection(("127.0.0.1", with_tokens.port), timeout=PATIENCE_S) as connection:

        def status(request: bytes) -> int:
            connection.sendall(request)
            return answer_on(connection)[0]

        assert [status(old) for _ in range(4)] == [200] * 4
        assert status(new) == 401
        written = token_file.with_suffix(".new")
        written.write_text(f"{NEW} inference\n")
        os.replace(written, token_file)
        eventually(lambda: status(old) == 401)
        assert [status(new) for _ in range(4)] == [200] * 4
        token_file.write_text("short\n")
        eventually(lambda: status(new) and "the tokens stay as they were" in with_tokens.output)
        assert "line 1: a token has 16 characters at least" in with_tokens.output
        assert [status(new), status(old)] == [200, 401]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no token in it"),
        ("short", "line 1: a token has 16 characters at least"),
        ("# a\nsha256:12", "line 2: a token has 16 characters at least"),
        (
            f"{GUEST} inferense",
            "line 1: unknown API 'inferense'; there are health, inference, logging, metadata, metrics",
        ),
        (f"{GUEST}\n{GUEST} health", "line 2: the same token stands in a line above"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_with_a_mistake_ends_the_start(repository: Path, tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        path.write_text(text)
    server = Serving(repository, f"--auth-token-file={path}")
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.wait_for(f"--auth-token-file={path}.*{said}")
    server.stop()


LOADS, SHARES = "--model-control-mode=explicit", "--allow-client-shm"
HTTP_TLS, GRPC_TLS = (f"--{name}-use-ssl --{name}-server-cert=c --{name}-server-key=k" for name in ("http", "grpc"))


@pytest.mark.parametrize(
    ("words", "warnings"),
    [
        ("", 0),
        (LOADS, 1),
        (f"{LOADS} {SHARES}", 2),
        (f"{LOADS} {SHARES} --host=127.0.0.1", 0),
        (f"{LOADS} --http-address=localhost", 1),  # gRPC is open
        (f"{LOADS} --http-address=localhost --allow-grpc=false", 0),
        (f"{SHARES} --auth-token-file=tokens", 0),
        (f"{LOADS} --http-restricted-api=model-repository:a=b --grpc-restricted-protocol=model-repository:a=b", 0),
        (f"{SHARES} --http-restricted-api=model-repository:a=b --grpc-restricted-protocol=model-repository:a=b", 1),
        (HTTP_TLS, 1),  # and gRPC without it
        (GRPC_TLS, 1),
        (f"{HTTP_TLS} {GRPC_TLS}", 0),
        (f"{HTTP_TLS} --grpc-address=127.0.0.1", 0),
        (f"{HTTP_TLS} --allow-grpc=false", 0),
    ],
)
def test_what_is_dangerous_is_said_where_nobody_needs_a_token(words: str, warnings: int) -> None:
    assert len(list(dangers(parse_arguments(["m", *words.split()]).with_addresses()))) == warnings


def test_a_server_that_is_open_to_all_says_so_once(repository: Path) -> None:
    with Serving(repository, LOADS, "--http-address=0.0.0.0", "--metrics-address=127.0.0.1") as server:
        said = "every client that reaches HTTP at 0.0.0.0 can load models, and so run code. --host=127.0.0.1 lets "
        assert server.output.count(said) == 1

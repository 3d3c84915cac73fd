"""SageMaker's and Vertex AI's routes, in a model's whole life; the answers are those of real Triton 2.51."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_server import IDENTITY, PATIENCE_S, Answer, Serving, binary_request, eventually, io_config, write_model

BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
ANSWER = {
    "model_name": "a",
    "model_version": "1",
    "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}],
}
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
VERTEX = {"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/predict"}


class Port:
    """One port of a server."""

    def __init__(self, server: Serving, service: str) -> None:
        self.port = int(server.wait_for(rf"Started {service} at [^ \n]*:(\d+)")[1])

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("platforms")
    write_model(home / "models", "a")
    # As SageMaker has it: the configuration names the model by another name than the one it is loaded under.
    write_model(home / "elsewhere", "inner", IDENTITY, io_config(extra='name: "inner"'))
    write_model(home / "broken", "inner", "raise RuntimeError('CUDA out of memory')")
    (home / "empty").mkdir()
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    flags = ("--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0")
    environment = {**VERTEX, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "a"}
    explicit = ("--model-control-mode=explicit", "--load-model=a")
    with Serving(home / "models", *flags, *explicit, environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def sagemaker(server: Serving) -> Port:
    return Port(server, "Sagemaker HTTPService")


@pytest.fixture(scope="module")
def vertex(server: Serving) -> Port:
    return Port(server, "Vertex AI HTTPService")


def outcome(answer: Answer) -> tuple[int, Any]:
    return answer.status, json.loads(answer.body) if answer.body else ""


NOT_ALLOWED = (405, {"error": "Method Not Allowed"})


def test_sagemaker_asks_the_default_model(sagemaker: Port) -> None:
    assert outcome(sagemaker.ask("GET", "/ping")) == (200, "")
    assert outcome(sagemaker.ask("POST", "/ping")) == NOT_ALLOWED
    assert outcome(sagemaker.ask("GET", "/invocations")) == NOT_ALLOWED
    assert outcome(sagemaker.ask("POST", "/invocations", BODY)) == (200, ANSWER)
    assert outcome(sagemaker.ask("GET", "/v2")) == (400, "")
    assert outcome(sagemaker.ask("GET", "/nope")) == (400, "")


@pytest.mark.parametrize(("name", "path"), [("sagemaker", "/invocations"), ("vertex", "/predict")])
def test_binary_tensors(name: str, path: str, request: pytest.FixtureRequest) -> None:
    port = request.getfixturevalue(name)
    kind = {"sagemaker": "sagemaker-triton", "vertex": "vertex-ai-triton"}[name]
    mime = f"application/vnd.{kind}.binary+json;json-header-size="
    array = np.arange(1000, dtype=np.float32)
    _, body, headers = binary_request("a", array)
    length = headers["Inference-Header-Content-Length"]
    answer = port.ask("POST", path, body, {"Content-Type": mime + length})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(mime)
    assert "inference-header-content-length" not in answer.headers
    head = int(answer.headers["content-type"][len(mime) :])
    assert np.array_equal(np.frombuffer(answer.body[head:], np.float32), array)
    wrong = port.ask("POST", path, BODY, {"Content-Type": mime + "10"})
    assert (wrong.status, "failed to parse the request JSON buffer" in wrong.error) == (500, True)


def test_sagemaker_loads_models_from_anywhere(sagemaker: Port, home: Path) -> None:
    url = str(home / "elsewhere")
    load = json.dumps({"model_name": "x1", "url": url}).encode()
    assert outcome(sagemaker.ask("GET", "/models")) == (200, {"models": []})
    assert outcome(sagemaker.ask("POST", "/models/x1/invoke", BODY)) == (404, "")
    assert outcome(sagemaker.ask("POST", "/models", load)) == (200, "")
    told = {"modelName": "x1", "modelUrl": url}
    assert outcome(sagemaker.ask("GET", "/models/x1")) == (200, told)
    assert outcome(sagemaker.ask("GET", "/models")) == (200, {"models": [told]})
    assert outcome(sagemaker.ask("POST", "/models/x1/invoke", BODY)) == (200, {**ANSWER, "model_name": "x1"})
    target = sagemaker.ask("POST", "/models/x1/invoke", BODY, {"X-Amzn-SageMaker-Target-Model": "a"})
    assert outcome(target) == (200, ANSWER)
    assert outcome(sagemaker.ask("POST", "/models", load)) == (
        409,
        {"error": f"model repository '{url}' has already been registered"},
    )
    assert outcome(sagemaker.ask("DELETE", "/models/x1")) == (200, "")
    assert outcome(sagemaker.ask("DELETE", "/models/x1")) == (404, "")
    assert outcome(sagemaker.ask("GET", "/models/x1")) == (404, "")
    assert outcome(sagemaker.ask("PUT", "/models/x1")) == NOT_ALLOWED
    assert outcome(sagemaker.ask("POST", "/models", load)) == (200, "")
    assert outcome(sagemaker.ask("DELETE", "/models/x1")) == (200, "")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ('{"model_name":"x"}', 400, "failed to register '', repository not found"),
        ('{"model_name":"x","url":"HOME/nowhere"}', 400, "failed to register 'HOME/nowhere', repository not found"),
        ('{"model_name":"x","url":"elsewhere"}', 400, "failed to register 'elsewhere', repository not found"),
        ('{"model_name":"x","url":"HOME/empty"}', 400, "there is no model in it"),
        ('{"model_name":"../x","url":"HOME/elsewhere"}', 400, "must not contain path traversal characters"),
        ('{"model_name":"x","url":5}', 400, "'url' must be a string"),
        ('{"url":"HOME/elsewhere"}', 400, "'model_name' must be given"),
        ("{", 500, "failed to parse the request JSON buffer"),
        ('{"model_name":"x","url":"HOME/broken"}', 507, "CUDA out of memory"),
    ],
)
def test_what_sagemaker_cannot_load(sagemaker: Port, home: Path, body: str, status: int, text: str) -> None:
    answer = sagemaker.ask("POST", "/models", body.replace("HOME", str(home)).encode())
    assert (answer.status, text.replace("HOME", str(home)) in answer.error) == (status, True), answer
    assert outcome(sagemaker.ask("GET", "/models")) == (200, {"models": []})


def test_vertex(vertex: Port) -> None:
    assert outcome(vertex.ask("GET", "/health")) == (200, "")
    assert outcome(vertex.ask("POST", "/health")) == NOT_ALLOWED
    assert outcome(vertex.ask("GET", "/predict")) == NOT_ALLOWED
    assert outcome(vertex.ask("POST", "/predict", BODY)) == (200, ANSWER)
    for path in ("/", "/v2", "/v2/models/a"):
        assert outcome(vertex.ask("GET", path)) == (400, "")


def test_vertex_redirects(vertex: Port) -> None:
    def ask(target: str, body: bytes = b"") -> Answer:
        return vertex.ask("POST", "/predict", body, {REDIRECT: target})

    assert outcome(ask("v2/models/a/infer", BODY)) == (200, ANSWER)
    assert ask("v2/models/a/config").json()["name"] == "a"
    assert outcome(ask("v2/health/ready")) == (200, "")
    assert ask("v2/models/stats", BODY).json()["model_stats"][0]["name"] == "a"
    assert [row["name"] for row in ask("v2/repository/index").json()] == ["a"]
    assert outcome(ask("v2/repository/models/a/load")) == (200, "")
    assert ask("v2/logging").json()["log_info"] is True
    assert ask("metrics").body.startswith(b"# HELP nv_inference_request_success")
    assert ask("v2/models/nosuch").status == 404
    for target in ("/v2/models/a/infer", "nope", "v2/nope", "v2x"):
        assert outcome(ask(target, BODY)) == (400, "")


def test_vertex_takes_its_place_from_the_environment(home: Path, tmp_path: Path) -> None:
    environment = {**VERTEX, "AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "0", "AIP_STORAGE_URI": str(home / "models")}
    server = Serving(home, environment=environment)
    server.command = [*server.command[:4], "--http-address=127.0.0.1", "--metrics-port=0"]
    server.start()
    try:
        vertex = Port(server, "Vertex AI HTTPService")
        assert outcome(vertex.ask("POST", "/predict", BODY)) == (200, ANSWER)
        assert "Started HTTPService" not in server.output
        assert "Started GRPCInferenceService" not in server.output
    finally:
        assert server.stop() == 0
    server = Serving(home / "models", "--allow-vertex-ai", "--vertex-ai-port=0")
    server.start()
    server.wait_for("creating server: Invalid argument - |AIP_PREDICT_ROUTE is not defined for Vertex AI endpoint")
    assert server.process.wait(PATIENCE_S) == 1
    server.stop()


def test_platforms_are_no_way_around_who_may_ask(home: Path, tmp_path: Path) -> None:
    """Tokens and restricted APIs hold for their paths, which are others than the usual ones."""
    guest, key = "a-token-for-guests-1", {"X-Key": "sesame"}
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{guest} inference\n")
    flags = ("--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0")
    environment = {**VERTEX, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "a"}
    explicit = ("--model-control-mode=explicit", "--load-model=a")
    load = json.dumps({"model_name": "x1", "url": str(home / "elsewhere")}).encode()
    asked = [
        ("Sagemaker HTTPService", "POST", "/invocations", BODY, {}),
        ("Sagemaker HTTPService", "GET", "/ping", None, {}),
        ("Sagemaker HTTPService", "GET", "/models", None, {}),
        ("Sagemaker HTTPService", "POST", "/models", load, {}),
        ("Vertex AI HTTPService", "POST", "/predict", BODY, {}),
        ("Vertex AI HTTPService", "GET", "/health", None, {}),
        ("Vertex AI HTTPService", "POST", "/predict", b"", {REDIRECT: "v2/repository/index"}),
    ]
    for flag, refused, allowed in (
        (f"--auth-token-file={tokens}", 401, {"Authorization": f"Bearer {guest}"}),
        ("--http-restricted-api=inference,health,model-repository:X-Key=sesame", 403, key),
    ):
        with Serving(home / "models", *flags, *explicit, flag, environment=environment) as server:
            sagemaker, vertex = Port(server, "Sagemaker HTTPService"), Port(server, "Vertex AI HTTPService")
            eventually(lambda: sagemaker.ask("POST", "/invocations", BODY, allowed).status == 200)  # noqa: B023
            for service, method, path, body, headers in asked:
                answer = Port(server, service).ask(method, path, body, headers)
                assert answer.status == refused, (flag, service, path, answer)
            assert vertex.ask("POST", "/predict", BODY, allowed).status == 200
            # A token that is good for inference is for nothing else.
            status = 200 if refused == 403 else 403
            assert sagemaker.ask("GET", "/models", None, allowed).status == status
            assert vertex.ask("POST", "/predict", b"", {REDIRECT: "v2/repository/index", **allowed}).status == status

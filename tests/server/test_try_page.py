"""What the server says of itself as OpenAPI, and the page to try models on, in a real browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from tests.real_server import WORK_S, Serving, write_model
from tools.browser import PROGRAM, Browser

IN_BROWSER = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium or Chrome on this machine")
EVIL = "<img src=x onerror=\"document.title='owned'\">"

GREET = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            texts = [pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy() for request in requests]
            made = [np.array([[b"Hello " + one for one in row] for row in text], object) for text in texts]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("GREETING", one)]) for one in made]
"""
GREET_CONFIG = """
    backend: "python"
    max_batch_size: 8
    input [{ name: "NAME" data_type: TYPE_STRING dims: [ 1 ] }]
    output [{ name: "GREETING" data_type: TYPE_STRING dims: [ 1 ] }]
"""
ADD = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                a, b = (pb_utils.get_input_tensor_by_name(request, name) for name in ("A", "B"))
                total = a.as_numpy() if b is None else a.as_numpy() + b.as_numpy()
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)]))
            return answers
"""
ADD_CONFIG = """
    backend: "python"
    input [
      { name: "A" data_type: TYPE_INT32 dims: [ 2, 2 ] },
      { name: "B" data_type: TYPE_INT32 dims: [ 2, 2 ] optional: true }
    ]
    output [{ name: "SUM" data_type: TYPE_INT32 dims: [ 2, 2 ] }]
"""
INVERT = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            images = [pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("INVERTED", 255 - image)]) for image in images]
"""
INVERT_CONFIG = """
    backend: "python"
    input [{ name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }]
    output [{ name: "INVERTED" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }]
"""
COUNT = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(int(pb_utils.get_input_tensor_by_name(request, "UNTIL").as_numpy()[0])):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([number], np.int32))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [{ name: "UNTIL" data_type: TYPE_INT32 dims: [ 1 ] }]
    output [{ name: "N" data_type: TYPE_INT32 dims: [ 1 ] }]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "greet", GREET, config=GREET_CONFIG)
    write_model(repository, "add", ADD, config=ADD_CONFIG)
    write_model(repository, "invert", INVERT, config=INVERT_CONFIG)
    write_model(repository, "count", COUNT, config=COUNT_CONFIG)
    with Serving(repository) as running:
        yield running


def api(server: Serving) -> Any:
    return server.request("GET", "/v2/openapi.json").json()


def test_the_document_is_openapi_and_has_the_ways_to_ask(server: Serving) -> None:
    said = api(server)
    validate(said)
    paths = set(said["paths"])
    assert {f"/v2/models/{name}/infer" for name in ("greet", "add", "invert")} < paths
    assert "/v2/models/count/generate_stream" in paths
    assert "/v2/models/count/infer" not in paths, "a model that streams is not asked over HTTP so"


def accepts(schema: Any, body: Any) -> bool:
    return bool(Draft202012Validator(schema).is_valid(body))


@pytest.mark.parametrize(
    ("inputs", "good"),
    [
        ([{"name": "A", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]}], True),
        ([{"name": "A", "datatype": "INT32", "shape": [2, 2], "data": [[1, 2], [3, 4]]}], True),
        ([{"name": "A", "datatype": "INT32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}], False),
        ([{"name": "A", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}], False),
        ([{"name": "C", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]}], False),
        ([], False),
    ],
)
def test_a_schema_takes_what_the_server_takes(server: Serving, inputs: list[Any], good: bool) -> None:
    body = {"inputs": inputs}
    post = api(server)["paths"]["/v2/models/add/infer"]["post"]
    assert accepts(post["requestBody"]["content"]["application/json"]["schema"], body) is good
    answer = server.request("POST", "/v2/models/add/infer", json.dumps(body).encode())
    assert (answer.status == 200) is good
    if good:
        assert accepts(post["responses"]["200"]["content"]["application/json"]["schema"], answer.json())


@pytest.mark.parametrize(
    ("flags", "tries", "describes"),
    [
        (("--http-address=0.0.0.0",), False, False),
        (("--http-address=0.0.0.0", "--try-page"), True, True),
        (("--try-page=false",), False, False),
        (("--try-page=false", "--openapi"), False, True),
        (("--openapi=false",), True, False),
    ],
)
def test_only_where_it_is_wanted(repository: Path, flags: tuple[str, ...], tries: bool, describes: bool) -> None:
    write_model(repository, "add", ADD, config=ADD_CONFIG)
    with Serving(repository, *flags) as running:
        for path, there in (("/try", tries), ("/v2/openapi.json", describes)):
            assert running.request("GET", path).status == (200 if there else 404)
        assert ("--openapi" in running.request("GET", "/docs").body.decode()) is not describes


def test_the_page_with_swagger_ui_is_there_with_its_package(server: Serving) -> None:
    page = server.request("GET", "/docs")
    if find_spec("swagger_ui") is None:
        assert (page.status, "pip install swagger-ui-py" in page.error) == (404, True)
        return
    assert page.status == 200
    links = re.findall(r'(?:src|href)="(.*?)"', page.body.decode())
    kinds = {server.request("GET", link).headers["content-type"].partition(";")[0] for link in links}
    assert kinds == {"text/javascript", "text/css"}
    assert server.request("GET", "/docs/LICENSE").status == 404
    assert b"openapi" in server.request("GET", "/docs/swagger-ui-bundle.js").body


@pytest.mark.long
def test_a_generated_client_asks(server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openapi_python_client")
    (tmp_path / "openapi.json").write_bytes(server.request("GET", "/v2/openapi.json").body)
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta=none", "--path=openapi.json"]
    (tmp_path / "config.json").write_text('{"post_hooks": []}')
    command += ["--output-path=made", "--config=config.json", "--fail-on-warning"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=WORK_S)
    monkeypatch.syspath_prepend(tmp_path)
    made = {name: import_module(f"made.{name}") for name in ("client", "models", "api.add", "api.greet")}
    body = made["models"].PostV2ModelsGreetGenerateBody.from_dict({"NAME": "Ada"})
    tensor = {"name": "A", "datatype": "INT32", "shape": [2, 2], "data": [[1, 2], [3, 4]]}
    tensors = made["models"].PostV2ModelsAddInferBody.from_dict({"inputs": [tensor]})
    with made["client"].Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        answer = import_module("made.api.greet.post_v2_models_greet_generate").sync(client=client, body=body)
        assert answer.to_dict()["GREETING"] == "Hello Ada"
        answer = import_module("made.api.add.post_v2_models_add_infer").sync(client=client, body=tensors)
        assert answer.to_dict()["outputs"][0]["data"] == [1, 2, 3, 4]


@pytest.mark.long
def test_generated_types_read_questions_and_answers(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datamodel_code_generator")
    (tmp_path / "openapi.json").write_bytes(server.request("GET", "/v2/openapi.json").body)
    command = [sys.executable, "-W", "ignore", "-m", "datamodel_code_generator", "--input=openapi.json"]
    command += ["--input-file-type=openapi", "--openapi-scopes", "paths", "schemas", "--output=made_types.py"]
    subprocess.run([*command, "--output-model-type=pydantic_v2.BaseModel"], cwd=tmp_path, check=True, timeout=WORK_S)
    monkeypatch.syspath_prepend(tmp_path)
    types = import_module("made_types")
    asked = types.V2ModelsAddGeneratePostRequest(A=[[1, 2], [3, 4]])
    answer = server.request("POST", "/v2/models/add/generate", asked.model_dump_json(exclude_none=True).encode())
    assert types.V2ModelsAddGeneratePostResponse.model_validate_json(answer.body).SUM == [1, 2, 3, 4]


def test_the_document_wants_a_token_and_the_page_asks_for_it(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "add", ADD, config=ADD_CONFIG)
    (tmp_path / "tokens").write_text("0123456789abcdef\n")
    with Serving(repository, f"--auth-token-file={tmp_path / 'tokens'}") as running:
        assert running.request("GET", "/v2/openapi.json").status == 401
        answer = running.request("GET", "/v2/openapi.json", headers={"Authorization": "Bearer 0123456789abcdef"})
        assert answer.json()["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
        assert running.request("GET", "/try").status == 200
        if PROGRAM is not None:
            with Browser(tmp_path / "profile") as browser:
                browser.open(f"http://127.0.0.1:{running.port}/try")
                browser.until("document.getElementById('access')?.open")
                browser.run("at('token').value = '0123456789abcdef'; at('token').dispatchEvent(new Event('change'))")
                browser.until("document.querySelector('textarea[name=A]')")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


def shown(browser: Browser, server: Serving, model: str, **values: str) -> None:
    """Opens the page for a model, and writes into its fields."""
    browser.open("about:blank")
    browser.until("location.href === 'about:blank'")
    browser.open(f"http://127.0.0.1:{server.port}/try#{model}")
    browser.until("document.querySelector('#inputs textarea')")
    for name, value in values.items():
        browser.run(f"document.querySelector('textarea[name={name}]').value = {json.dumps(value)}")


def asked(browser: Browser) -> str:
    """Presses the button; what the page shows as the answer."""
    browser.run("at('ask').click()")
    browser.until("document.body.dataset.answered")
    answer: str = browser.run("at('answer').innerText")
    return answer


@IN_BROWSER
@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        ("greet", {"NAME": "Ada"}, "Hello Ada"),
        ("greet", {"NAME": '[["Ada"], ["Bo"]]'}, "Hello Ada, Hello Bo"),
        ("greet", {"NAME": EVIL}, f"Hello {EVIL}"),
        ("add", {"A": "[[1,2],[3,4]]", "B": "[[10,20],[30,40]]"}, "11, 22, 33, 44"),
        ("add", {"A": "[[1,2],[3,4]]", "B": ""}, "1, 2, 3, 4"),
        ("add", {"A": "[[1,2]"}, "A: "),
        ("add", {"A": "[1]"}, "unexpected shape for input 'A'"),
        ("count", {"UNTIL": "[3]"}, '{"N":0}\n{"N":1}\n{"N":2}'),
    ],
)
def test_a_model_is_asked(browser: Browser, server: Serving, model: str, values: dict[str, str], expected: str) -> None:
    shown(browser, server, model, **values)
    assert expected in asked(browser)
    assert browser.run("document.title") == "Try a model"


@IN_BROWSER
def test_what_the_page_proposes_is_taken(browser: Browser, server: Serving) -> None:
    shown(browser, server, "add", B="")
    assert "1, 2, 3, 4" in asked(browser)


def png(width: int, height: int, color: tuple[int, int, int]) -> bytes:
    """A picture of one color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    rows = (b"\0" + bytes(color) * width) * height
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@IN_BROWSER
def test_a_picture_goes_up_and_comes_back(browser: Browser, server: Serving, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(png(5, 4, (255, 0, 10)))
    shown(browser, server, "invert")
    browser.choose_file("#inputs input[type=file]", tmp_path / "red.png")
    assert "INVERTED · UINT8 [4, 5, 3]" in asked(browser)
    pixel = "Array.from(document.querySelector('#answer canvas').getContext('2d').getImageData(1, 1, 1, 1).data)"
    assert browser.run(pixel) == [0, 255, 245, 255]

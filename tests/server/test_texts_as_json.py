"""Any strings that a model answers are written as JSON, and any that come as JSON are read."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from stubserve_stub.wire.layout import INLINE_BYTES

from stubserve.http.json import text as json_text
from tests.real_server import Answer, Serving, io_config, write_model

# Answers twice what it is asked for: as objects that are not all bytes, and as the tensor that came in.
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request.inputs()[0], request) for request in requests]

    def answer(self, given, request):
        assert request.flags() == 0, request.flags()
        texts = given.as_numpy()
        made = np.empty(texts.shape, np.object_)
        made[:] = [self.other(text) for text in texts]
        output = pb_utils.Tensor("OUTPUT0", made)
        made[:] = b"written to afterwards"
        return pb_utils.InferenceResponse([output, pb_utils.Tensor("SAME", texts)])

    def other(self, text):
        try:
            return text.decode()
        except UnicodeDecodeError:
            return text
"""
# Passes on what came in to a model that answers twice.
ASKING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(request) for request in requests]

    def ask(self, request):
        names = ["OUTPUT0", "SAME"]
        asked = pb_utils.InferenceRequest(model_name="texts", requested_output_names=names, inputs=request.inputs())
        return pb_utils.InferenceResponse(asked.exec().output_tensors())
"""
SAME = 'output [ { name: "SAME" data_type: TYPE_STRING dims: [ -1 ] } ]'
CACHED = "response_cache { enable: true }"
BYTES = ["", "a", '"quoted"', "back\\slash", "\x00", "\n\r\t\b\f\x1f\x7f", "\u00e9\u20ac\U0001f680", "/", "%d %b"]
ANSWERS: list[list[bytes]] = [
    *([text.encode()] for text in BYTES),
    [text.encode() for text in BYTES],
    [b"\xff\xfe"],
    [b"a", b"\xff"],
    [b"x" * 1500, b"\n"],
    [],
    # About what fits into a message
    *([b"x" * (INLINE_BYTES + more)] for more in (-20, -5, -4, -3, 0, 1)),
    *([b'"' * (INLINE_BYTES // 2 + more)] for more in (-3, -2, -1, 0)),
    [b"y"] * 3000,
    [b"z" * 500] * 500,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "texts", MODEL, io_config("STRING", extra=SAME))
    write_model(repository, "cached", MODEL, io_config("STRING", extra=SAME + CACHED))
    write_model(repository, "asks", ASKING, io_config("STRING", extra=SAME))
    write_model(repository, "native", "", io_config("STRING").replace('"python"', '"identity"'))
    with Serving(repository, "--cache-config=local,size=10000000") as running:
        yield running


def infer(server: Serving, elements: list[bytes], model: str = "texts", headers: Any = (), **more: Any) -> Answer:
    """Sends strings in binary."""
    raw = b"".join(struct.pack("<I", len(one)) + one for one in elements)
    parameters = {"binary_data_size": len(raw)}
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [len(elements)], "parameters": parameters}
    head = json.dumps({"inputs": [tensor], **more}).encode()
    fields = {"Inference-Header-Content-Length": str(len(head)), **dict(headers)}
    return server.request("POST", f"/v2/models/{model}/infer", head + raw, fields)


def expected(elements: list[bytes], *names: str) -> bytes:
    data = json_text.strings(elements)
    outputs = [
        b'{"name":"%b","datatype":"BYTES","shape":[%d],"data":%b}' % (name.encode(), len(elements), data)
        for name in names
    ]
    return b'"outputs":[%b]}' % b",".join(outputs)


@pytest.mark.parametrize("elements", ANSWERS, ids=lambda elements: f"{len(elements)}x{sum(map(len, elements))}")
def test_any_strings(server: Serving, elements: list[bytes]) -> None:
    for _ in range(2):
        for model in ("texts", "cached"):
            answer = infer(server, elements, model)
            assert answer.status == 200
            assert answer.body.endswith(expected(elements, "OUTPUT0", "SAME"))
    answer = infer(server, elements, outputs=[{"name": "SAME"}])
    assert answer.body.endswith(expected(elements, "SAME"))


@pytest.mark.parametrize("elements", ANSWERS, ids=lambda elements: f"{len(elements)}x{sum(map(len, elements))}")
def test_any_strings_that_come_as_json(server: Serving, elements: list[bytes]) -> None:
    try:
        data = [element.decode() for element in elements]
    except UnicodeDecodeError:
        return
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [len(data)], "data": data}
    for escaped in (False, True):
        body = json.dumps({"inputs": [tensor], "id": "colons: ]"}, ensure_ascii=escaped).encode()
        for model in ("texts", "cached", "asks"):
            answer = server.request("POST", f"/v2/models/{model}/infer", body)
            assert answer.body.endswith(expected(elements, "OUTPUT0", "SAME"))
        answer = server.request("POST", "/v2/models/native/infer", body)
        assert [output["data"] for output in answer.json()["outputs"]] == [data]


def test_outputs_in_different_ways(server: Serving) -> None:
    wanted = [{"name": "OUTPUT0"}, {"name": "SAME", "parameters": {"binary_data": True}}]
    answer = infer(server, [b'"', b"b"], outputs=wanted)
    length = int(answer.headers["inference-header-content-length"])
    first, second = json.loads(answer.body[:length])["outputs"]
    assert first["data"] == ['"', "b"]
    assert second["parameters"] == {"binary_data_size": 10}
    assert answer.body[length:] == b'\1\0\0\0"\1\0\0\0b'


def test_in_gzip(server: Serving) -> None:
    answer = infer(server, [b"a"] * 200, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.body).endswith(expected([b"a"] * 200, "OUTPUT0", "SAME"))


def test_generate(server: Serving) -> None:
    for text in BYTES[1:]:
        answer = server.request("POST", "/v2/models/texts/generate", json.dumps({"INPUT0": text}).encode())
        written = json_text.quoted(text.encode())
        assert b'"OUTPUT0":%b,"SAME":%b' % (written, written) in answer.body
        assert answer.json()["OUTPUT0"] == text
    answer = server.request("POST", "/v2/models/texts/generate", b'{"INPUT0":["a","b"]}')
    assert answer.json()["SAME"] == ["a", "b"]

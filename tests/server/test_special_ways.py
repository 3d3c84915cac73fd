"""The same tensors, sent in every way that there is, in all sizes: a model is given the same, and answers the same.

A request may take a shorter way because its text is plain, its tensors are small, or its answer is kept. A scheduler
adds to what the client has asked. The model writes into what it is given, so that nobody else may have it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from stubserve_stub.wire import strings
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.real_server import Serving, io_config, write_model

MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        told = {"id": request.correlation_id(), "flags": request.flags()}
        for tensor in request.inputs():
            array = tensor.as_numpy()
            if tensor.name() == "INPUT0":
                same = array.copy()
                if array.dtype == object:
                    array[...] = np.array([one + b"!" for one in array.ravel()], object).reshape(array.shape)
                elif array.dtype == bool:
                    array ^= True
                else:
                    array += 1
                changed = array
            else:
                told[tensor.name()] = array.ravel().tolist()
        outputs = {"SAME": same, "OUTPUT0": changed, "TOLD": np.array([[json.dumps(told, sort_keys=True)]], object)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
"""
OUTPUTS = """
output {{ name: "SAME" data_type: TYPE_{0} dims: [ -1 ] }}
output {{ name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] }}
"""
CONTROLS = """
max_sequence_idle_microseconds: 3600000000
control_input [
  {{ name: "START" control [ {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} ] }},
  {{ name: "CORRID" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} ] }}
]
{0}
"""
SCHEDULERS = {
    "dynamic": "dynamic_batching { }",
    "cached": "dynamic_batching { }\nresponse_cache { enable: true }",
    "direct": "sequence_batching {" + CONTROLS.format("direct { }") + "}",
    "oldest": "sequence_batching {" + CONTROLS.format("oldest { max_candidate_sequences: 4 }") + "}",
    "iterative": "sequence_batching { iterative_sequence: true " + CONTROLS.format("") + "}",
}
SERVED = [("dynamic", kind) for kind in ("FP32", "INT64", "BOOL", "STRING")] + [
    (scheduler, kind) for scheduler in ("cached", "direct", "oldest", "iterative") for kind in ("FP32", "STRING")
]
DTYPES: dict[str, Any] = {"FP32": np.float32, "INT64": np.int64, "BOOL": np.bool_}
CONTENTS = {"FP32": "fp32_contents", "INT64": "int64_contents", "BOOL": "bool_contents", "STRING": "bytes_contents"}
WORDS = ["", "a", "größe", "東京 🚀", '"quoted"', "back\\slash", "\n\t", "\x01", "\0", "]: [", "x" * 255, "y" * 300]
# About so many bytes has a tensor: what lies inside a message ends at 8 KiB, what is copied at 32.
SIZES = [1, 40, 255, 257, 1020, 1024, 1032, 8184, 8192, 8200, 32760, 32768, 32776, 50_000]

Sequence = dict[str, Any]
Outputs = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    for scheduler, kind in SERVED:
        config = io_config(kind, max_batch_size=4, extra=OUTPUTS.format(kind) + SCHEDULERS[scheduler])
        write_model(repository, f"{scheduler}_{kind.lower()}", MODEL, config)
    with Serving(repository, "--cache-config=local,size=100000000") as running:
        yield running


def tensor(chance: random.Random, kind: str) -> list[Any]:
    """The elements of a tensor, one row."""
    size = chance.choice(SIZES)
    if kind == "STRING":
        elements: list[Any] = []
        words = chance.sample(WORDS, chance.randint(1, len(WORDS)))
        while size > 0:
            elements.append(chance.choice(words))
            size -= len(elements[-1].encode()) + 4
        return elements
    count = max(1, size // np.dtype(DTYPES[kind]).itemsize)
    if kind == "BOOL":
        return chance.choices([False, True], k=count)
    if kind == "INT64":
        return [chance.randrange(-(2**60), 2**60) for _ in range(count)]
    return [chance.randrange(-(10**6), 10**6) / chance.choice([1, 2, 1024]) for _ in range(count)]


def raw(kind: str, elements: list[Any]) -> bytes:
    if kind == "STRING":
        return strings.join([one.encode() for one in elements])
    return np.array(elements, DTYPES[kind]).tobytes()


def read(kind: str, data: bytes) -> list[Any]:
    """The elements in the bytes of a tensor."""
    if kind != "STRING":
        found: list[Any] = np.frombuffer(data, DTYPES[kind]).tolist()
        return found
    elements = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        elements.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return elements


def changed(kind: str, elements: list[Any]) -> list[Any]:
    if kind == "STRING":
        return [one + "!" for one in elements]
    array = np.array(elements, DTYPES[kind])
    made: list[Any] = (array ^ True if kind == "BOOL" else array + DTYPES[kind](1)).tolist()
    return made


def post(server: Serving, path: str, lines: list[str], body: bytes, pieces: int) -> tuple[dict[str, str], bytes]:
    """Sends a request in so many pieces."""
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *lines, "", ""])
    whole = head.encode() + body
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        step = -(-len(whole) // pieces)
        for at in range(0, len(whole), step):
            connection.sendall(whole[at : at + step])
        response = http.client.HTTPResponse(connection)
        response.begin()
        answer = response.read()
    assert response.status == 200, answer[:500]
    return {name.lower(): value for name, value in response.getheaders()}, answer


def over_http(
    server: Serving, model: str, kind: str, elements: list[Any], sequence: Sequence, chance: random.Random, form: str
) -> Outputs:
    given: dict[str, Any] = {"name": "INPUT0", "datatype": "BYTES" if kind == "STRING" else kind}
    given["shape"] = [1, len(elements)]
    tail = b""
    if form == "binary":
        tail = raw(kind, elements)
        given["parameters"] = {"binary_data_size": len(tail)}
    else:
        given["data"] = elements
    as_binary = chance.random() < 0.5
    document = {"inputs": [given], "parameters": {**sequence, "binary_data_output": as_binary}}
    text = json.dumps(document, ensure_ascii=chance.random() < 0.5).encode()
    if form == "odd":
        # Means the same, and is no usual spelling.
        text = text.replace(b'"data"', b'"d\\u0061ta"')
    lines = [f"Inference-Header-Content-Length: {len(text)}"] if tail else []
    headers, answer = post(server, f"/v2/models/{model}/infer", lines, text + tail, chance.choice([1, 1, 3]))
    length = int(headers.get("inference-header-content-length", len(answer)))
    found = {}
    at = length
    for output in json.loads(answer[:length])["outputs"]:
        own = "STRING" if output["name"] == "TOLD" else kind
        if as_binary:
            nbytes = output["parameters"]["binary_data_size"]
            found[output["name"]] = read(own, answer[at : at + nbytes])
            at += nbytes
        else:
            found[output["name"]] = output["data"]
    assert at == len(answer)
    return found


def over_generate(server: Serving, model: str, elements: list[Any], chance: random.Random) -> Outputs:
    body = json.dumps({"INPUT0": elements}).encode()
    answer = json.loads(post(server, f"/v2/models/{model}/generate", [], body, chance.choice([1, 2]))[1])
    outputs = {name: answer[name] for name in ("SAME", "OUTPUT0", "TOLD")}
    return {name: value if isinstance(value, list) else [value] for name, value in outputs.items()}


def over_grpc(
    stub: Any, model: str, kind: str, elements: list[Any], sequence: Sequence, chance: random.Random, form: str
) -> Outputs:
    request = service_pb2.ModelInferRequest(model_name=model)
    given = request.inputs.add(name="INPUT0", datatype="BYTES" if kind == "STRING" else kind, shape=[1, len(elements)])
    if form == "raw":
        request.raw_input_contents.append(raw(kind, elements))
    else:
        typed = [one.encode() for one in elements] if kind == "STRING" else elements
        getattr(given.contents, CONTENTS[kind]).extend(typed)
    for name, value in sequence.items():
        request.parameters[name].CopyFrom(
            service_pb2.InferParameter(**{"bool_param" if isinstance(value, bool) else "int64_param": value})
        )
    for name in chance.choice([[], ["SAME", "OUTPUT0", "TOLD"]]):
        request.outputs.add(name=name)
    answer = stub.ModelInfer(request)
    return {
        output.name: read("STRING" if output.name == "TOLD" else kind, data)
        for output, data in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def told(model: str, sequence: Sequence, number: int) -> dict[str, Any]:
    """What a model hears beside its input, the scheduler's part with it."""
    start, end = bool(sequence.get("sequence_start")), bool(sequence.get("sequence_end"))
    said = {"id": sequence.get("sequence_id", 0), "flags": start + 2 * end}
    if model.startswith("iterative"):
        # One that has no id is given the next one, and is a sequence of its own.
        said = {"id": number, "flags": 1}
        start = True
    if model.startswith(("dynamic", "cached")):
        return said
    return {**said, "START": [int(start)], "CORRID": [said["id"]]}


@pytest.mark.parametrize(("scheduler", "kind"), SERVED)
def test_every_way_gives_the_model_the_same(server: Serving, scheduler: str, kind: str) -> None:
    chance = random.Random(f"{scheduler} {kind}")
    model = f"{scheduler}_{kind.lower()}"
    numbers = itertools.count(1)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        ways: list[Callable[[list[Any], Sequence], Outputs]] = [
            *(
                lambda elements, sequence, form=form: over_http(server, model, kind, elements, sequence, chance, form)
                for form in ("binary", "plain", "odd")
            ),
            *(
                lambda elements, sequence, form=form: over_grpc(stub, model, kind, elements, sequence, chance, form)
                for form in ("raw", "typed")
            ),
        ]
        if scheduler not in ("direct", "oldest"):
            ways.append(lambda elements, _: over_generate(server, model, elements, chance))
        for _ in range(12):
            elements = tensor(chance, kind)
            expected = {"SAME": elements, "OUTPUT0": changed(kind, elements)}
            sequences: list[Sequence] = [{}]
            if scheduler in ("direct", "oldest"):
                id_ = chance.randrange(1, 2**62)
                sequences = [
                    {"sequence_id": id_, "sequence_start": first, "sequence_end": last}
                    for first, last in ((True, False), (False, False), (False, True))
                ]
            chance.shuffle(ways)
            for way, sequence in zip(ways, itertools.cycle(sequences), strict=False):
                outputs = way(elements, sequence)
                said = json.loads(outputs.pop("TOLD")[0])
                assert outputs == expected
                assert said == told(model, sequence, next(numbers))
            if len(ways) % len(sequences):
                way(elements, sequences[-1])

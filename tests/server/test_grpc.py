"""gRPC as clients see it beyond inference that works: refusals, streams that fail, cancellation, TLS, reflection."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme
from google.protobuf import descriptor_pb2
from tritonclient.grpc import service_pb2

from stubserve.grpc.wellknown import reflection
from tests.real_server import IDENTITY, PATIENCE_S, Serving, binary_request, io_config, write_model
from tests.server.grpc_calls import SERVICE, Grpc, connected, request, typed

FAILING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(error=pb_utils.TritonError("no thanks", pb_utils.TritonError.NOT_FOUND))
                for request in requests
            ]
"""

PATIENT = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            id = requests[0].request_id()
            pb_utils.Logger.log_info(f"executing {id}")
            deadline = time.monotonic() + 60
            while not requests[0].is_cancelled():
                assert time.monotonic() < deadline
                time.sleep(0.005)
            pb_utils.Logger.log_info(f"saw the cancellation of {id}")
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", requests[0].inputs()[0].as_numpy())])]
"""

PARAMETERS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([r.parameters()], np.object_))])
                for r in requests
            ]
"""

PARAMETERS_CONFIG = """
    backend: "python"
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
"""

COUNTER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                count, size = request.inputs()[0].as_numpy().astype(int)
                for number in range(count):
                    array = np.full(size, number, np.float32)
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
                    if size > 1000:
                        pb_utils.Logger.log_info(f"sent {number}")
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    write_model(repository, "batched", IDENTITY, io_config("FP32", "-1", 8))
    write_model(repository, "failing", FAILING)
    write_model(repository, "patient", PATIENT)
    write_model(repository, "words", IDENTITY, io_config("STRING"))
    for kind in ("BOOL", "INT8", "UINT16", "INT32", "INT64", "UINT64", "FP64", "FP16"):
        write_model(repository, kind, IDENTITY, io_config(kind))
    write_model(repository, "parameters", PARAMETERS, PARAMETERS_CONFIG)
    write_model(repository, "decoupled", COUNTER, io_config(extra="model_transaction_policy { decoupled: true }"))
    flags = ("--grpc-header-forward-pattern=^x-|^seq", "--grpc-restricted-protocol=statistics:admin=sesame")
    with Serving(repository, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def triton(server: Serving) -> Iterator[Grpc]:
    with connected(server) as calls:
        yield calls


# Inference


@pytest.mark.parametrize(
    ("kind", "member", "values", "expected"),
    [
        ("BOOL", "bool_contents", [True, False, True], b"\1\0\1"),
        ("INT8", "int_contents", [1, -1, 300], b"\x01\xff\x2c"),
        ("UINT16", "uint_contents", [1, 70000], struct.pack("<2H", 1, 70000 - 65536)),
        ("INT32", "int_contents", [0, -(2**31), 2**31 - 1, 128], struct.pack("<4i", 0, -(2**31), 2**31 - 1, 128)),
        ("INT64", "int64_contents", [-1, 2**63 - 1, -(2**63)], struct.pack("<3q", -1, 2**63 - 1, -(2**63))),
        ("UINT64", "uint64_contents", [2**64 - 1, 0], struct.pack("<2Q", 2**64 - 1, 0)),
        ("echo", "fp32_contents", [1.5, -2.0], struct.pack("<2f", 1.5, -2)),
        ("FP64", "fp64_contents", [0.1], struct.pack("<d", 0.1)),
        ("words", "bytes_contents", [b"a", b"", b"xyz"], b"\1\0\0\0a\0\0\0\0\3\0\0\0xyz"),
    ],
)
def test_typed_contents(triton: Grpc, kind: str, member: str, values: list, expected: bytes) -> None:  # type: ignore[type-arg]
    datatype = {"echo": "FP32", "words": "BYTES"}.get(kind, kind)
    answer = triton.infer(typed(kind, datatype, member, values))
    assert answer.raw_output_contents[0] == expected


def test_many_typed_numbers(triton: Grpc) -> None:
    values = np.random.default_rng(3).integers(-(2**31), 2**31, 300_000, dtype=np.int64)
    answer = triton.infer(typed("INT32", "INT32", "int_contents", values.tolist()))
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.int32), values)


def test_the_wrong_contents(triton: Grpc) -> None:
    unexpected = "unexpected explicit tensor data for input tensor 'INPUT0' for model"
    assert triton.refusal(typed("echo", "FP32", "int_contents", [1])) == (
        "INVALID_ARGUMENT",
        f"{unexpected} 'echo' of type 'INT32', expected datatype 'FP32'",
    )
    assert triton.refusal(typed("FP16", "FP16", "uint_contents", [1])) == (
        "INVALID_ARGUMENT",
        f"{unexpected} 'FP16' of type 'UINT32', expected datatype 'FP16'",
    )
    two = typed("echo", "FP32", "fp32_contents", [1.0])
    two.inputs[0].contents.fp64_contents.append(1.0)
    assert triton.refusal(two) == ("INVALID_ARGUMENT", f"{unexpected} 'echo', binary data was already supplied.")
    both = typed("echo", "FP32", "fp32_contents", [1.0])
    both.raw_input_contents.append(b"1234")
    assert triton.refusal(both)[1] == (
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'echo'"
    )
    assert triton.refusal(request(raw=[]))[1] == (
        "unable to find data for input tensor 'INPUT0' for model 'echo' in request."
    )


def test_the_same_description_with_other_bytes(triton: Grpc) -> None:
    """The second and third request go by the plan of the first; what differs is still looked at."""
    for number in range(3):
        answer = triton.infer(request(values=[number, 1], id=str(number)))
        assert (answer.id, answer.raw_output_contents[0]) == (str(number), struct.pack("<2f", number, 1))
    assert triton.refusal(request(raw=[b"123"], shape=[2]))[1] == (
        "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'echo'. Expected 8, got 3"
    )
    words = [b"\1\0\0\0a\1\0\0\0b", b"\2\0\0\0ab\0\0\0\0", b"\\9\0\0\0a\1\0\0\0b"]
    for raw in words[:2]:
        answer = triton.infer(request("words", raw=[raw], datatype="BYTES", shape=[2]))
        assert answer.raw_output_contents[0] == raw
    assert "INPUT0" in triton.refusal(request("words", raw=[words[2]], datatype="BYTES", shape=[2]))[1]


def test_outputs_and_classification(triton: Grpc) -> None:
    message = request(values=[1.0, 3.0, 2.0])
    message.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    answer = triton.infer(message)
    assert answer.outputs[0].shape == [2]
    assert answer.raw_output_contents[0] == b"\x0a\0\0\0003.000000:1\x0a\0\0\0002.000000:2"
    message.outputs[0].parameters["classification"].int64_param = 0
    assert triton.refusal(message)[1] == "invalid value for 'classification' parameter, expected >= 0"
    message.outputs[0].name = "OTHER"
    del message.outputs[0].parameters["classification"]
    assert triton.refusal(message)[1] == "unexpected inference output 'OTHER' for model 'echo'"


def test_classes_of_whole_numbers(triton: Grpc) -> None:
    """Whole numbers have no point, also where compiled code might take them for floats."""
    message = typed("INT32", "INT32", "int_contents", [7, -1, 300])
    message.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    assert triton.infer(message).raw_output_contents[0] == b"\5\0\0\000300:2\3\0\0\0007:0"


def test_metadata_becomes_parameters(triton: Grpc) -> None:
    message = request("parameters")
    message.parameters["own"].int64_param = 5
    answer = triton.infer(message, metadata=(("x-tenant", "blue"), ("y-tenant", "red")))
    assert answer.raw_output_contents[0][4:] == b'{"own":5,"x-tenant":"blue"}'
    assert triton.refusal(message, metadata=(("sequence_id", "1"),)) == (
        "INVALID_ARGUMENT",
        "Header 'sequence_id' is reserved for Triton usage and cannot be forwarded.",
    )


def test_headers_become_parameters(repository: Path) -> None:
    write_model(repository, "parameters", PARAMETERS, PARAMETERS_CONFIG)
    path, body, headers = binary_request("parameters", np.zeros(2, np.float32))
    with Serving(repository, "--http-header-forward-pattern=x-|priority") as server:
        for tenant in ("blue", "red", "red"):
            answer = server.request("POST", path, body, {**headers, "X-Tenant": tenant})
            assert answer.body.endswith(b'{"X-Tenant":"%b"}' % tenant.encode())
        answer = server.request("POST", path, body, {**headers, "Priority": "1"})
        assert answer.status == 400
        assert answer.error == "Header 'priority' is reserved for Triton usage and cannot be forwarded."


def test_parameters_of_the_wrong_type(triton: Grpc) -> None:
    for key, member, value, text in (
        ("sequence_id", "bool_param", True, "parameter, expected int64_param or string_param."),
        ("sequence_start", "int64_param", 1, "parameter, expected bool_param."),
        ("priority", "int64_param", -1, "'priority', expected value >= 0."),
        ("timeout", "string_param", "1", "parameter, expected int64_param."),
        ("own", "uint64_param", 1, "parameter, expected int64_param, bool_param, or string_param."),
        ("triton_own", "int64_param", 1, "keys starting with 'triton_' are reserved"),
    ):
        message = request()
        setattr(message.parameters[key], member, value)
        status, said = triton.refusal(message)
        assert status == "INVALID_ARGUMENT"
        assert text in said


def test_negative_dimensions_are_refused(triton: Grpc) -> None:
    for shape in ([-1, 0], [-1, 2], [1, -2]):
        assert "All input dimensions should be specified" in triton.refusal(request("batched", shape=shape))[1]
    assert triton.refusal(request(shape=[2**62, 2**62]))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "message", [b"\xff\xff\xff", b"\x0a\x7fabc", b"\x0a\x02\xff\xfe", b"\x0a\x04echo\x2a\x02\xff\xff"]
)
def test_messages_that_are_none(triton: Grpc, message: bytes) -> None:
    for name in ("ModelInfer", "ModelConfig"):
        with pytest.raises(grpc.RpcError) as error:
            triton.raw(f"{SERVICE}/{name}", message if name == "ModelInfer" else b"\xff\xff")
        assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INTERNAL, "Unable to parse request")
    stream = triton.channel.stream_stream(f"{SERVICE}/ModelStreamInfer")(iter([message]), timeout=PATIENCE_S)
    with pytest.raises(grpc.RpcError) as error:
        list(stream)
    assert error.value.code() is grpc.StatusCode.INTERNAL
    assert triton.infer(request()).outputs


def test_unary_inference_of_decoupled_models_is_refused(triton: Grpc) -> None:
    assert triton.refusal(request("decoupled")) == (
        "UNIMPLEMENTED",
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )


# Streams


def test_errors_in_a_stream_end_nothing(triton: Grpc) -> None:
    answers = triton.stream(
        request("nobody", id="1"), request("failing", id="2"), request(raw=[], id="3"), request(id="4")
    )
    assert [answer.infer_response.id for answer in answers] == ["1", "2", "3", "4"]
    assert [answer.error_message for answer in answers] == [
        "Request for unknown model: 'nobody' is not found",
        "no thanks",
        "unable to find data for input tensor 'INPUT0' for model 'echo' in request.",
        "",
    ]
    executed = answers[1].infer_response
    assert (executed.model_name, executed.model_version) == ("failing", "")
    assert executed.parameters["triton_final_response"].bool_param
    assert not answers[0].infer_response.model_name


def test_a_decoupled_model(triton: Grpc) -> None:
    plain, informed = request("decoupled", [3, 1], id="a"), request("decoupled", [0, 1], id="b")
    informed.parameters["triton_enable_empty_final_response"].bool_param = True
    silent = request("decoupled", [0, 1], id="c")
    answers = [answer.infer_response for answer in triton.stream(plain, informed, silent)]
    values = [struct.unpack("<f", one.raw_output_contents[0])[0] for one in answers if one.id == "a"]
    assert values == [0, 1, 2]
    assert all(one.parameters["triton_final_response"].bool_param == (one.id == "b") for one in answers)
    (last,) = [one for one in answers if one.id != "a"]
    assert (last.id, last.model_name, list(last.outputs)) == ("b", "decoupled", [])


def test_a_decoupled_model_waits_for_a_slow_reader(triton: Grpc, server: Serving) -> None:
    stream = triton.stub.ModelStreamInfer(iter([request("decoupled", [300, 1 << 16])]), timeout=PATIENCE_S)
    next(stream)
    # While nobody reads, another model is served, and this one does not get far.
    for _ in range(200):
        assert triton.infer(request()).outputs
    assert "sent 200" not in server.output
    assert sum(1 for _ in stream) == 299


def test_strict_errors_end_the_stream(triton: Grpc) -> None:
    metadata = (("triton_grpc_error", "true"),)
    answers = triton.stub.ModelStreamInfer(
        iter([request("nobody", id="1"), request("failing", id="2"), request("patient", id="3")]),
        metadata=metadata,
        timeout=PATIENCE_S,
    )
    assert next(answers).error_message
    with pytest.raises(grpc.RpcError) as error:
        next(answers)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.NOT_FOUND, "no thanks")


def test_an_empty_stream(triton: Grpc) -> None:
    assert triton.stream() == []


def test_a_stream_whose_answers_nobody_reads_is_not_read_either(triton: Grpc, server: Serving) -> None:
    """The server holds a bounded part of what a client wants but does not take; others are served."""
    accepted = threading.Semaphore(0)
    stop = threading.Event()

    def requests() -> Iterator[object]:
        message = request(raw=[bytes(1 << 20)], shape=[1 << 18])
        for _ in range(400):
            if stop.is_set():
                return
            yield message
            accepted.release()

    stream = triton.stub.ModelStreamInfer(requests())
    try:
        count = 0
        while accepted.acquire(timeout=3):
            count += 1
        assert count < 300, "the server took everything"
        assert triton.infer(request()).outputs
        received = sum(1 for _ in zip(range(count), stream, strict=False))
        assert received == count
    finally:
        stop.set()
        stream.cancel()


# Cancellation


@pytest.mark.parametrize("kind", ["unary", "stream", "deadline", "connection"])
def test_the_model_sees_that_its_client_is_gone(server: Serving, kind: str) -> None:
    message = request("patient", id=kind)
    with connected(server) as own:
        if kind == "stream":
            call = own.stub.ModelStreamInfer(iter([message]))
        else:
            call = own.stub.ModelInfer.future(message, timeout=1.0 if kind == "deadline" else None)
        server.wait_for(f"executing {kind}")
        if kind in ("unary", "stream"):
            call.cancel()
        elif kind == "deadline":
            assert call.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server.wait_for(f"saw the cancellation of {kind}")


# Other services


def test_health(triton: Grpc) -> None:
    assert triton.raw("/grpc.health.v1.Health/Check", b"") == b"\x08\x01"
    assert triton.raw("/grpc.health.v1.Health/Check", b"\x0a\x01x") == b"\x08\x01"
    watch = triton.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=PATIENCE_S)
    assert next(watch) == b"\x08\x01"
    watch.cancel()


@pytest.mark.parametrize("package", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
def test_reflection(triton: Grpc, package: str) -> None:
    ask = reflection[package].ServerReflectionRequest
    call = triton.channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        ask.SerializeToString,
        reflection[package].ServerReflectionResponse.FromString,
    )
    listed, described, health, missing = call(
        iter(
            [
                ask(list_services=""),
                ask(file_containing_symbol="inference.GRPCInferenceService"),
                ask(file_by_filename="grpc/health/v1/health.proto"),
                ask(file_containing_symbol="no.such.Thing"),
            ]
        ),
        timeout=PATIENCE_S,
    )
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {"inference.GRPCInferenceService", "grpc.health.v1.Health", f"{package}.ServerReflection"}
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(file)
        for file in described.file_descriptor_response.file_descriptor_proto
    ]
    assert {file.name for file in files} == {"grpc_service.proto", "model_config.proto"}
    served = [method.name for file in files for service in file.service for method in service.method]
    assert "ModelStreamInfer" in served
    assert health.file_descriptor_response.file_descriptor_proto
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_every_rpc_answers(triton: Grpc) -> None:
    """What is not offered says so; nothing is unknown."""
    for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        if method.client_streaming:
            continue
        call = triton.channel.unary_unary(f"{SERVICE}/{method.name}").future(b"", timeout=PATIENCE_S)
        assert call.code() is grpc.StatusCode.OK or call.details(), method.name
    with pytest.raises(grpc.RpcError) as unknown:
        triton.raw(f"{SERVICE}/Nothing", b"")
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(("name", "version"), [("nobody", ""), ("", ""), ("echo", "7")])
def test_a_model_that_is_not_there_is_not_ready(triton: Grpc, name: str, version: str) -> None:
    """An answer, not an error; of a version that is no number it is an error."""
    ask = service_pb2.ModelReadyRequest(name=name, version=version)
    assert not triton.stub.ModelReady(ask).ready
    with pytest.raises(grpc.RpcError) as error:
        triton.stub.ModelReady(service_pb2.ModelReadyRequest(name="echo", version="one"))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_restricted_rpcs_need_their_key(triton: Grpc) -> None:
    ask = service_pb2.ModelStatisticsRequest(name="echo")
    with pytest.raises(grpc.RpcError) as error:
        triton.stub.ModelStatistics(ask)
    assert (error.value.code(), error.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'",
    )
    metadata = (("triton-grpc-protocol-admin", "sesame"),)
    assert triton.stub.ModelStatistics(ask, metadata=metadata).model_stats[0].name == "echo"


# Servers of their own


def test_spaces_around_metadata_are_part_of_it(repository: Path) -> None:
    """grpcio sends them as they are, and takes them so."""
    write_model(repository, "parameters", PARAMETERS, PARAMETERS_CONFIG)
    with Serving(repository, "--grpc-header-forward-pattern=^x-") as server, connected(server) as calls:
        answer = calls.infer(request("parameters"), metadata=(("x-tenant", " blue "),))
    assert answer.raw_output_contents[0][4:] == b'{"x-tenant":" blue "}'


def test_each_request_and_cancellation_is_a_line_when_verbose(repository: Path) -> None:
    write_model(repository, "echo")
    write_model(repository, "patient", PATIENT)
    with Serving(repository, "--log-verbose=1") as server, connected(server) as calls:
        calls.infer(request())
        calls.stub.ServerLive(service_pb2.ServerLiveRequest())
        waiting = calls.stub.ModelInfer.future(request("patient"))
        server.wait_for("executing")
        waiting.cancel()
        server.wait_for("Cancellation notification received for /inference.GRPCInferenceService/ModelInfer")
        calls.stub.LogSettings(service_pb2.LogSettingsRequest(settings={"log_verbose_level": {"uint32_param": 0}}))
        calls.infer(request())
        server.wait_for("gRPC request: /inference.GRPCInferenceService/LogSettings")
        assert server.output.count("Cancellation notification received for") == 1
        lines = re.findall(r"gRPC request: /inference.GRPCInferenceService/(\w+)", server.output)
        assert lines == ["ModelInfer", "ServerLive", "ModelInfer", "LogSettings"]


@pytest.mark.parametrize("level", ["low", "high"])
def test_compressed_answers(repository: Path, level: str) -> None:
    write_model(repository, "echo")
    with Serving(repository, f"--grpc-infer-response-compression-level={level}") as server, connected(server) as calls:
        values = [float(number % 7) for number in range(50_000)]
        for answer in (calls.infer(request(values=values)), calls.stream(request(values=values))[0].infer_response):
            assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == values


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(repository: Path, tmp_path: Path, mutual: bool) -> None:
    write_model(repository, "echo")
    authority = trustme.CA()
    ours = authority.issue_cert("localhost")
    ours.private_key_pem.write_to_path(tmp_path / "key")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    authority.cert_pem.write_to_path(tmp_path / "root")
    flags = [
        "--grpc-use-ssl",
        f"--grpc-server-cert={tmp_path / 'cert'}", f"--grpc-server-key={tmp_path / 'key'}",
        f"--grpc-root-cert={tmp_path / 'root'}", *(["--grpc-use-ssl-mutual"] if mutual else []),
    ]  # fmt: skip
    theirs = authority.issue_cert("client")
    known = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), theirs.private_key_pem.bytes(), theirs.cert_chain_pems[0].bytes()
    )
    unknown = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with Serving(repository, *flags) as server:
        with connected(server, known) as calls:
            assert calls.infer(request()).outputs
        with connected(server, unknown) as calls:
            if mutual:
                assert calls.refusal(request())[0] == "UNAVAILABLE"
            else:
                assert calls.infer(request()).outputs
        with connected(server) as calls:
            assert calls.refusal(request())[0] == "UNAVAILABLE"


def test_a_port_in_use_is_said_and_ends_the_server(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as first:
        second = Serving(repository, f"--grpc-port={first.grpc_port}")
        second.start()
        assert second.process.wait(PATIENCE_S) == 1
        second.wait_for("Choose another --grpc-port")


def test_certificates_that_are_not_there_are_named(repository: Path) -> None:
    server = Serving(repository, "--grpc-use-ssl", "--grpc-server-cert=/none.pem", "--grpc-server-key=/none.key")
    server.start()
    assert server.process.wait(PATIENCE_S) == 1
    server.wait_for("/none.pem")


def test_a_server_that_stops_ends_its_streams(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as server, connected(server) as calls:
        done = threading.Event()

        def requests() -> Iterator[object]:
            yield request()
            done.wait(PATIENCE_S)

        stream = calls.stub.ModelStreamInfer(requests())
        watch = calls.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert next(stream).infer_response.outputs
        assert next(watch) == b"\x08\x01"

        def questions() -> Iterator[bytes]:
            yield b"\x3a\x00"
            done.wait(PATIENCE_S)

        ask = calls.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        reflection = ask(questions())
        assert next(reflection)
        assert server.stop() == 0
        with pytest.raises(grpc.RpcError) as error:
            next(stream)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError, match="Server exiting"):
            next(reflection)
        done.set()


def test_a_server_without_grpc(repository: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository, "--allow-grpc=false") as server:
        assert server.get("/v2/health/ready").status == 200
        assert "GRPCInferenceService" not in server.output

"""ModelStreamInfer: order, responses of decoupled models, errors among others, final responses."""

# ruff: noqa: E501 - a case reads best on one line

import struct

from ..messages import STREAM, infer_request, output, stream, tensor
from ..request import Case, Rpc, bytes_blob, case

_FINAL = {"triton_enable_empty_final_response": True}
_STRICT = (("triton_grpc_error", "true"),)
# Where a stream may never end because real Triton waits for a response.
SILENT_WAIT_S = 2.0


def _echo(value: float, **more: object) -> bytes:
    return infer_request("echo_fp32", [tensor("IN", "FP32", [1])], [struct.pack("<f", value)], **more)


def _stream(number: int, **more: object) -> bytes:
    return infer_request("stream", [tensor("IN", "INT32", [1])], [struct.pack("<i", number)], **more)


def _slow(milliseconds: int, **more: object) -> bytes:
    return infer_request("slow", [tensor("DELAY", "INT32", [1])], [struct.pack("<i", milliseconds)], **more)


def _command(text: str, model: str = "behave", **more: object) -> bytes:
    return infer_request(model, [tensor("COMMAND", "BYTES", [1])], [bytes_blob(text.encode())], **more)


_NUMBERS = {
    "none": 0,
    "one": 1,
    "three": 3,
    "error": -1,
    "error_then_two": -2,
    "exception": -9,
    "raise_after_two": -10,
    "let_go_after_two": -11,
}
_WRONG = {
    "unknown_model": infer_request("nosuch", id="q"),
    "no_model": b"",
    "unknown_version": _echo(1, model_version="9", id="q"),
    "version_text": _echo(1, model_version="one", id="q"),
    "wrong_shape": infer_request("echo_fp32", [tensor("IN", "FP32", [1, 2])], [b"\0" * 8], id="q"),
    "wrong_type": infer_request("echo_fp32", [tensor("IN", "INT32", [1])], [b"\0" * 4], id="q"),
    "wrong_size": infer_request("echo_fp32", [tensor("IN", "FP32", [2])], [b"\0" * 4], id="q"),
    "no_data": infer_request("echo_fp32", [tensor("IN", "FP32", [1])], id="q"),
    "missing_input": infer_request("echo_fp32", id="q"),
    "unknown_output": _echo(1, outputs=[output("NOSUCH")], id="q"),
    "reserved_parameter": _echo(1, given={"triton_x": 1}, id="q"),
    "sequence_id_bool": _echo(1, given={"sequence_id": True}, id="q"),
    "decoupled_wrong_shape": infer_request("stream", [tensor("IN", "INT32", [2])], [b"\0" * 8], id="q"),
    "model_error": _command("code_NOT_FOUND", id="q"),
    "model_exception": _command("raise", id="q"),
    "model_error_no_id": _command("code_UNAVAILABLE"),
}

CASES: tuple[Case, ...] = (
    case("grpc_stream/nothing", Rpc(STREAM, (), True)),
    case("grpc_stream/one", stream(_echo(1.5)), stats="echo_fp32"),
    case("grpc_stream/one_with_id", stream(_echo(1.5, id="q", model_version="1"))),
    case("grpc_stream/three", stream(*(_echo(i, id=str(i)) for i in range(3))), stats="echo_fp32"),
    case("grpc_stream/three_one_by_one", stream(*(_echo(i, id=str(i)) for i in range(3)), one_by_one=True)),
    case("grpc_stream/many", stream(*(_echo(i) for i in range(50)))),
    case("grpc_stream/order_of_models", stream(_slow(300, id="slow"), _echo(1, id="quick"), _command("hello", id="third")),
         note="what is ready first waits for its turn"),
    case("grpc_stream/one_with_empty_final", stream(_echo(1.5, given=_FINAL))),
    case("grpc_stream/parameters", stream(infer_request("inspect", given={"a": 1, "b": "x"}, outputs=[output("SEEN")]))),
    case("grpc_stream/response_parameters", stream(_command("parameters"))),
    case("grpc_stream/no_outputs", stream(_command("no_outputs"))),
    case("grpc_stream/classes", stream(infer_request(
        "scores", [tensor("SCORES", "INT32", [5])], [struct.pack("<5i", 3, -1, 10, 7, 4)],
        outputs=[output("F32", classification=2)],
    ))),
    *(case(f"grpc_stream/decoupled_{name}", stream(_stream(number, id="d"), timeout=SILENT_WAIT_S), stats="stream")
      for name, number in _NUMBERS.items()),
    *(case(f"grpc_stream/final_{name}", stream(_stream(number, id="d", given=_FINAL), timeout=SILENT_WAIT_S))
      for name, number in _NUMBERS.items()),
    case("grpc_stream/decoupled_twice", stream(_stream(2, id="a"), _stream(3, id="b"))),
    case("grpc_stream/decoupled_one_by_one", stream(_stream(1, id="a"), _stream(1, id="b"), one_by_one=True)),
    case("grpc_stream/decoupled_hundred", stream(_stream(100))),
    case("grpc_stream/decoupled_then_plain", stream(_stream(2, id="a"), _echo(1, id="b"), one_by_one=True)),
    case("grpc_stream/decoupled_no_id", stream(_stream(2))),
    case("grpc_stream/decoupled_output_asked", stream(_stream(1, outputs=[output("OUT")]))),
    case("grpc_stream/decoupled_output_unknown", stream(_stream(1, outputs=[output("NOSUCH")]))),
    *(case(f"grpc_stream/wrong_{name}", stream(message)) for name, message in _WRONG.items()),
    *(case(f"grpc_stream/between_{name}", stream(_echo(1, id="a"), _WRONG[name], _echo(2, id="b"), one_by_one=True))
      for name in ("unknown_model", "wrong_shape", "model_error", "reserved_parameter")),
    *(case(f"grpc_stream/strict_{name}", stream(_echo(1, id="a"), _WRONG[name], _echo(2, id="b"), one_by_one=True,
                                                metadata=_STRICT, timeout=SILENT_WAIT_S))
      for name in ("unknown_model", "wrong_shape", "model_error", "model_exception")),
    *(case(f"grpc_stream/{name}", stream(_command(f"sender_{name}", f"behave_sender_{name}", id="q"), timeout=SILENT_WAIT_S),
           server="senders")
      for name in ("sent_then_raise", "sent_then_return")),
    case("grpc_stream/strict_fine", stream(_echo(1), _echo(2), metadata=_STRICT)),
    case("grpc_stream/strict_decoupled_error", stream(_stream(-2, id="d"), metadata=_STRICT, timeout=SILENT_WAIT_S)),
    case("grpc_stream/strict_upper_case", stream(_command("code_NOT_FOUND"), metadata=(("triton_grpc_error", "TRUE"),))),
    case("grpc_stream/strict_false", stream(_command("code_NOT_FOUND"), metadata=(("triton_grpc_error", "false"),))),
    case("grpc_stream/malformed", stream(b"\x0a\x09ech", timeout=SILENT_WAIT_S)),
    case("grpc_stream/malformed_after_one", stream(_echo(1), b"\x0a\x09ech", one_by_one=True, timeout=SILENT_WAIT_S)),
    case("grpc_stream/gzip", stream(_echo(1), _echo(2), compression="gzip")),
    case("grpc_stream/deadline", stream(_slow(800), deadline=0.2, timeout=3.0)),
    case("grpc_stream/cancel_decoupled", stream(_stream(100), cancel_after=1, timeout=3.0)),
    case("grpc_stream/fine_after_cancel", stream(_stream(1), _echo(1), one_by_one=True)),
    case("grpc_stream/unary_method_as_stream", Rpc("/inference.GRPCInferenceService/ModelInfer", (_echo(1), _echo(2)), True)),
    case("grpc_stream/stream_method_unary", Rpc(STREAM, (_echo(1),))),
)  # fmt: skip

"""Requests to ensembles: how tensors flow, what steps see, what becomes of errors, streams and statistics."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

import struct
from typing import Any

from .. import messages
from ..messages import infer_request, stream, unary
from ..request import ERROR_CODES, Case, Exchange, Rpc, bytes_blob, case, evaluate, get, infer, post, tensor

_ROW = [1.0, 2.0, 3.0, 4.0]
_RAW = struct.pack("<4f", *_ROW)
_SERVER = "ensembles"


def _case(name: str, *steps: Any, **more: Any) -> Case:
    return case(f"ensembles/{name}", *steps, server=_SERVER, **more)


def _in(data: Any = _ROW, shape: list[int] | None = None, name: str = "IN", datatype: str = "FP32") -> dict[str, Any]:
    return tensor(name, datatype, shape or [4], data)


def _run(model: str, *inputs: dict[str, Any], **more: Any) -> Exchange:
    return infer(model, {"inputs": list(inputs or (_in(),)), **more})


def _rows(count: int) -> dict[str, Any]:
    return _in(_ROW * count, [count, 4])


def _command(model: str, text: str, *outputs: str) -> Exchange:
    wanted = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return _run(model, _in([text], [1], "COMMAND", "BYTES"), **wanted)


def _number(model: str, value: int, **more: Any) -> Exchange:
    return _run(model, _in([value], [1], datatype="INT32"), **more)


def _outputs(*names: str, **parameters: Any) -> list[dict[str, Any]]:
    return [{"name": name, **({"parameters": parameters} if parameters else {})} for name in names]


def _grpc(model: str, **more: Any) -> Rpc:
    return messages.infer(model, messages.tensor("IN", "FP32", [4]), raw=[_RAW], **more)


def _streamed(model: str, value: int, **more: object) -> bytes:
    return infer_request(model, [messages.tensor("IN", "INT32", [1])], [struct.pack("<i", value)], **more)


def _obeyed(model: str, text: str, **more: object) -> bytes:
    return infer_request(model, [messages.tensor("COMMAND", "BYTES", [1])], [bytes_blob(text.encode())], **more)


def _called(model: str, inputs: str, outputs: str = "['OUT']", more: str = "") -> Exchange:
    return evaluate(
        f"outcome(bls(model_name={model!r}, inputs=[{inputs}], requested_output_names={outputs}{more}).exec())"
    )


_PLAIN = ("single", "chain", "chain_backwards", "middle_too", "fan", "diamond", "same_twice", "two_ends", "input_is_output",
          "batch_in_plain_row", "mixed_plain", "reshaped_member", "optional_left", "nested", "versioned", "newest",
          "output_twice", "input_twice", "input_twice_in_member", "inputs_twice",
          "classes", "classes_last", "classes_own", "ensemble_versions", "with_tags")  # fmt: skip
_FINAL = {"triton_enable_empty_final_response": True}
_STREAMS = ("streams", "streams_first", "streams_last", "streams_twice", "streams_fork")
_SEEN = {
    "id": {"id": "q7"},
    "sequence": {"parameters": {"sequence_id": 5, "sequence_start": True, "sequence_end": False}},
    "sequence_text": {"parameters": {"sequence_id": "five", "sequence_end": True}},
    "priority_timeout": {"parameters": {"priority": 2, "timeout": 7000000}},
    "parameters": {"parameters": {"given": "x", "count": 3, "yes": True}},
}
_COMMANDS = ("no_outputs", "other_output", "both", "both_reversed", "unknown_output", "raise", "empty_bytes",
             "wrong_dtype", "empty_list", "tuple", "error_empty", "error_and_tensors", "scalar", "unicode")  # fmt: skip
_MODELS_WITH_DOCUMENTS = ("chain", "fan", "streams_first", "batching", "reshaped", "optional", "classes_own", "nested",
                          "ensemble_versions", "with_tags", "streams_fork", "output_twice", "input_twice")  # fmt: skip

CASES: tuple[Case, ...] = (
    _case("statistics_chain", _run("chain"), stats="chain"),
    _case("statistics_member", _run("chain"), stats="plus_one"),
    _case("statistics_batch", _run("batching", _rows(3)), stats="batching"),
    _case("statistics_batch_member", _run("batching", _rows(3)), stats="plus_batch"),
    _case("statistics_fan", _run("fan"), _run("fan"), stats="fan"),
    _case("statistics_nested", _run("nested"), stats="nested"),
    _case("statistics_nested_member", _run("nested"), stats="chain"),
    _case("statistics_refused", _run("chain", _in([1.0], [1])), stats="chain"),
    _case("statistics_refused_by_member", _run("optional_required"), stats="optional_required"),
    _case("statistics_exception", _command("behaves", "raise"), stats="behaves"),
    _case("statistics_exception_member", _command("behaves", "raise"), stats="behave"),
    _case("statistics_error", _command("behaves", "code_NOT_FOUND"), stats="behaves"),
    _case("statistics_second_fails", _command("behaves_second", "raise"), stats="behaves_second"),
    _case("statistics_pruned", _run("two_ends", outputs=_outputs("OUT")), stats="two_ends"),
    _case("statistics_pruned_member", _run("two_ends", outputs=_outputs("OUT")), stats="both"),
    _case("statistics_nothing_produced", _command("behaves_last", "no_outputs"), stats="behaves_last"),
    _case("statistics_fresh", get("/v2/models/slowly/stats")),
    _case("statistics_streams", stream(_streamed("streams_first", 3, id="s")), stats="streams_first"),
    _case("statistics_streams_member", stream(_streamed("streams_first", 3, id="s")), stats="echo_number"),
    _case("statistics_streams_none", stream(_streamed("streams_first", 0, id="s", given=_FINAL)), stats="streams_first"),
    *(_case(f"runs_{model}", _run(model)) for model in _PLAIN),
    *(_case(f"grpc_{model}", _grpc(model, id="g")) for model in _PLAIN),
    *(_case(f"config_{model}", get(f"/v2/models/{model}/config")) for model in _MODELS_WITH_DOCUMENTS),
    *(_case(f"metadata_{model}", get(f"/v2/models/{model}")) for model in _MODELS_WITH_DOCUMENTS),
    *(_case(f"grpc_config_{model}", unary("ModelConfig", {"name": model})) for model in ("chain", "streams_first", "with_tags")),
    _case("ready", get("/v2/models/chain/ready"), get("/v2/models/chain/versions/1/ready")),
    _case("index", post("/v2/repository/index"), pick="chain"),
    _case("version_asked_for", infer("ensemble_versions/versions/2", {"inputs": [_in()]}), infer("ensemble_versions/versions/1", {"inputs": [_in()]})),
    *(_case(f"requested_{'_'.join(names)}", _run("middle_too", outputs=_outputs(*names)))
      for names in (("OUT",), ("middle",), ("middle", "OUT"), ("OUT", "middle"), ("NOSUCH",))),
    _case("requested_first_of_two_ends", _run("two_ends", outputs=_outputs("OUT"))),
    _case("requested_second_of_two_ends", _run("two_ends", outputs=_outputs("OTHER"))),
    _case("requested_that_is_declared_twice", _run("output_twice", outputs=_outputs("OUT"))),
    _case("requested_input", _run("input_is_output", outputs=_outputs("IN"))),
    _case("no_input", infer("chain", {"inputs": []})),
    _case("unknown_input", _run("chain", _in(name="NOSUCH"))),
    _case("wrong_shape", _run("chain", _in([1.0, 2.0], [2]))),
    _case("wrong_type", _run("chain", _in([1, 2, 3, 4], datatype="INT32"))),
    _case("wrong_size", infer("chain", {"inputs": [tensor("IN", "FP32", [4], binary_data_size=8)]}, b"\0" * 8)),
    _case("binary", infer("chain", {"inputs": [tensor("IN", "FP32", [4], binary_data_size=16)], "outputs": _outputs("OUT", binary_data=True)}, _RAW)),
    *(_case(f"batch_of_{count}", _run("batching", _rows(count))) for count in (1, 3, 8, 9)),
    *(_case(f"batching_member_{count}_rows", _run("batch_in_plain", _rows(count))) for count in (1, 3, 8, 9)),
    *(_case(f"plain_member_{count}_rows", _run("plain_in_batch", _rows(count))) for count in (1, 3)),
    *(_case(f"plain_row_member_{count}_rows", _run("plain_row_in_batch", _rows(count))) for count in (1, 2)),
    *(_case(f"mixed_{count}_rows", _run("mixed", _rows(count))) for count in (1, 2)),
    _case("empty_batch", _run("batching", _in([], [0, 4]))),
    _case("reshaped", _run("reshaped", _in(_ROW, [2, 2]))),
    _case("reshaped_wrong", _run("reshaped", _in(_ROW, [4]))),
    _case("optional_given", _run("optional", _in(), _in(name="MAYBE"))),
    _case("optional_missing", _run("optional")),
    _case("optional_that_a_member_requires", _run("optional_required")),
    _case("optional_that_a_member_requires_given", _run("optional_required", _in(), _in(name="MAYBE"))),
    *(_case(f"seen_{name}", _run("looks", **more)) for name, more in _SEEN.items()),
    *(_case(f"seen_by_both_{'_'.join(names) or 'all'}", _run("looks_at_both", **({"outputs": _outputs(*names)} if names else {})))
      for names in ((), ("OUT",), ("OTHER", "OUT"))),
    _case("seen_over_grpc", _grpc("looks", id="seven", given={"sequence_id": 9, "sequence_start": True, "mine": "x"})),
    *(_case(f"{model}_{command}", _command(model, command)) for command in _COMMANDS
      for model in ("behaves", "behaves_last", "behaves_second", "behaves_optional")),
    *(_case(f"nested_{command}", _command("behaves_nested", command)) for command in ("both", "raise", "no_outputs", "code_NOT_FOUND")),
    *(_case(f"code_{name}", _command("behaves", f"code_{name}")) for name in ERROR_CODES),
    *(_case(f"grpc_code_{name}", Rpc(messages.SERVICE + "ModelInfer", (_obeyed("behaves", f"code_{name}", id="c"),))) for name in ERROR_CODES),
    _case("failing_with_id", _run("behaves", _in(["raise"], [1], "COMMAND", "BYTES"), id="mine")),
    _case("nothing_with_id", _run("behaves", _in(["no_outputs"], [1], "COMMAND", "BYTES"), id="mine")),
    _case("only_extra", _command("behaves", "both", "EXTRA")),
    _case("only_out", _command("behaves", "both", "OUT")),
    *(_case(f"classes_{model}_{count}", _run(model, outputs=_outputs("OUT", classification=count)))
      for model in ("classes", "classes_last", "classes_nested", "classes_own") for count in (1, 3)),
    *(_case(f"http_{model}", _number(model, 2)) for model in _STREAMS),
    *(_case(f"unary_{model}", messages.infer(model, messages.tensor("IN", "INT32", [1]), raw=[struct.pack("<i", 2)])) for model in _STREAMS),
    *(_case(f"stream_{model}_{number}", stream(_streamed(model, number, id="s", given=_FINAL)))
      for model in ("streams", "streams_last", "streams_first") for number in (0, 1, 3, -1, -9)),
    *(_case(f"stream_plain_{model}_{number}", stream(_streamed(model, number, id="s")))
      for model in ("streams", "streams_first") for number in (0, 3)),
    *(_case(f"stream_fork_{number}", stream(_streamed("streams_fork", number, id="s", given=_FINAL))) for number in (0, 1, 3)),
    *(_case(f"stream_twice_{number}", stream(_streamed("streams_twice", number, id="s", given=_FINAL))) for number in (0, 1, 2)),
    _case("stream_of_a_chain", stream(infer_request("chain", [messages.tensor("IN", "FP32", [4])], [_RAW], id="c", given=_FINAL))),
    _case("stream_of_a_failure", stream(_obeyed("behaves", "raise", id="c", given=_FINAL))),
    _case("generate", post("/v2/models/behaves/generate", '{"COMMAND":"both"}')),
    _case("generate_error", post("/v2/models/behaves/generate", '{"COMMAND":"code_NOT_FOUND"}')),
    _case("generate_numbers", post("/v2/models/streams_first/generate", '{"IN":1}')),
    _case("generate_too_many", post("/v2/models/streams_first/generate", '{"IN":3}')),
    *(_case(f"generate_stream_{number}", post("/v2/models/streams_first/generate_stream", f'{{"IN":{number}}}')) for number in (0, 1, 3, -1)),
    *(_case(f"called_{model}", _called(model, "tensor(np.ones(4, np.float32), 'IN')")) for model in ("chain", "fan", "nested", "mixed_plain")),
    _case("called_failing", _called("behaves", "tensor(np.array(['raise'], object), 'COMMAND')")),
    _case("called_producing_nothing", _called("behaves", "tensor(np.array(['no_outputs'], object), 'COMMAND')")),
    _case("called_without_input", _called("chain", "")),
    _case("called_unknown_output", _called("chain", "tensor(np.ones(4, np.float32), 'IN')", "['NOSUCH']")),
    _case("called_decoupled_wrongly", _called("streams_first", "tensor(np.ones(1, np.int32), 'IN')")),
    _case("called_decoupled", evaluate(
        "[outcome(r) for r in bls(model_name='streams_first', inputs=[tensor(np.array([2], np.int32), 'IN')], "
        "requested_output_names=['OUT']).exec(decoupled=True) if r.output_tensors()]")),
    _case("called_ready", evaluate("pb_utils.is_model_ready('chain')")),
    _case("timeout_in_a_member", _run("slowly", _in([10], [1], "DELAY", "INT32"), parameters={"timeout": 1})),
)  # fmt: skip

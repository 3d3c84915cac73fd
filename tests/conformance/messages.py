"""Requests of ``GRPCInferenceService`` as a case writes them, and answers as comparable data."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2

from .request import DEFAULT_TIMEOUT_S, Rpc

SERVICE = "/inference.GRPCInferenceService/"
HEALTH = "/grpc.health.v1.Health/Check"
STREAM = SERVICE + "ModelStreamInfer"


def parameter(value: object) -> dict[str, Any]:
    """An InferParameter for a Python value; a dict is given as it is (``{"uint64_param": 3}``)."""
    if isinstance(value, dict):
        return value
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {kinds[type(value)]: value}


def parameters(given: Mapping[str, object]) -> dict[str, Any]:
    return {name: parameter(value) for name, value in given.items()}


def tensor(name: str, datatype: str, shape: list[int], contents: object = None, **more: object) -> dict[str, Any]:
    """One input; ``contents`` is its typed contents by member, ``more`` its parameters."""
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if contents is not None:
        entry["contents"] = contents
    if more:
        entry["parameters"] = parameters(more)
    return entry


def output(name: str, **more: object) -> dict[str, Any]:
    return {"name": name, **({"parameters": parameters(more)} if more else {})}


def infer_request(
    model: str,
    inputs: Iterable[dict[str, Any]] = (),
    raw: Iterable[bytes] = (),
    given: Mapping[str, object] | None = None,
    **fields: Any,
) -> bytes:
    """A serialized ModelInferRequest; ``given`` are its parameters, ``fields`` its other members."""
    body = {"model_name": model, "inputs": list(inputs), "parameters": parameters(given or {}), **fields}
    message = ParseDict(body, service_pb2.ModelInferRequest())
    message.raw_input_contents.extend(raw)
    return message.SerializeToString(deterministic=True)


def unary(method: str, body: Mapping[str, Any] | bytes | None = None, **how: Any) -> Rpc:
    """A call of one of the service's methods; ``body`` is its request as JSON data, or bytes to send as they are."""
    if not isinstance(body, bytes):
        body = ParseDict(dict(body or {}), getattr(service_pb2, f"{method}Request")()).SerializeToString()
    return Rpc(SERVICE + method, (body,), **how)


def infer(model: str, *inputs: dict[str, Any], raw: Iterable[bytes] = (), **more: Any) -> Rpc:
    """A ModelInfer call; ``given`` are parameters, ``how`` what the call itself is made with."""
    how = more.pop("how", {})
    return Rpc(SERVICE + "ModelInfer", (infer_request(model, inputs, raw, **more),), **how)


def stream(*messages: bytes, timeout: float = DEFAULT_TIMEOUT_S, **how: Any) -> Rpc:
    """A ModelStreamInfer call with these serialized requests."""
    return Rpc(STREAM, messages, True, timeout=timeout, **how)


def _response_type(method: str) -> type[Message] | None:
    found: type[Message] | None = getattr(service_pb2, f"{method.removeprefix(SERVICE)}Response", None)
    return found


def as_data(method: str, message: bytes) -> Any:
    """A response message as JSON data with the names of its fields; what cannot be parsed as its bytes."""
    kind = _response_type(method)
    if kind is None:
        return message.hex()
    try:
        parsed = kind.FromString(message)
    except DecodeError:
        return f"undecodable: {base64.b64encode(message).decode()}"
    raw = [content.hex() for content in _take_raw(parsed)]
    data = json.loads(MessageToJson(parsed, preserving_proto_field_name=True))
    return {**data, "raw": raw} if raw else data


def _take_raw(message: Any) -> list[bytes]:
    """The raw output contents, taken out of the message: as hexadecimal digits they are easier to read."""
    response = message.infer_response if isinstance(message, service_pb2.ModelStreamInferResponse) else message
    if not isinstance(response, service_pb2.ModelInferResponse):
        return []
    taken = list(response.raw_output_contents)
    del response.raw_output_contents[:]
    return taken

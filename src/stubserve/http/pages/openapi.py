"""The server's HTTP API as OpenAPI 3.1: a path for each way to ask each model that serves.

It is made from the models' configurations on request, for tools that make clients and forms of it. Only JSON bodies are
described: a schema has no place for the protocol's binary tensors, and FP16 and BF16 have no JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stubserve.inference.served_model import ServedModel
from stubserve.model_config.render import datatype_name

_BOUNDS = {f"INT{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)} | {
    f"UINT{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)
}
_BINARY_ONLY = ("FP16", "BF16")
_TEXT = {"type": "string"}
# Of elements or of lists, however deep; generators of clients read no array without `items`.
_LIST: dict[str, Any] = {"type": "array", "items": {}}
_PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "boolean", "number"]}}


def document(name: str, version: str, models: Iterable[ServedModel], wants_token: bool) -> dict[str, Any]:
    """The document: `models` are those that serve; with `wants_token` each request needs a bearer token."""
    newest: dict[str, ServedModel] = {}
    for model in models:
        known = newest.get(model.name)
        if known is None or known.version < model.version:
            newest[model.name] = model
    paths: dict[str, Any] = {
        "/v2/health/live": _get("server", "Whether the server is alive", {}),
        "/v2/health/ready": _get("server", "Whether all models are ready", {}),
        "/v2": _get("server", "The server's name, version and extensions", {"type": "object"}),
    }
    for model in sorted(newest.values(), key=lambda model: model.name):
        paths |= _paths(model)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": name, "version": version, "description": "KServe v2 inference protocol"},
        "paths": paths,
        "components": {
            "schemas": {"Error": {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}},
        },
    }
    if wants_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _paths(model: ServedModel) -> dict[str, Any]:
    config, name = model.config, model.name
    root = f"/v2/models/{name}"
    decoupled = config.model_transaction_policy.decoupled
    paths = {
        root: _get(name, "The model's inputs and outputs", {"type": "object"}),
        f"{root}/ready": _get(name, "Whether the model is ready", {}),
        f"{root}/config": _get(name, "The model's configuration", {"type": "object"}),
    }
    given = {one.name: _value(datatype_name(one.data_type)) for one in config.input}
    made = {one.name: _value(datatype_name(one.data_type)) for one in config.output}
    flat = _object({"id": _TEXT, **given}, [one.name for one in config.input if not one.optional])
    generated = {**flat, "additionalProperties": True}
    if not decoupled:
        paths[f"{root}/infer"] = _post(name, "One inference", _infer_body(config), _infer_answer(config))
        answer = _object({"model_name": _TEXT, "model_version": _TEXT, **made}, ["model_name"])
        paths[f"{root}/generate"] = _post(name, "One inference, as a flat object", generated, answer)
    stream = {"text/event-stream": {"schema": _TEXT}}
    summary = "One inference whose answers come one by one, as server-sent events"
    paths[f"{root}/generate_stream"] = _post(name, summary, generated, None, stream)
    return paths


def _get(tag: str, summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {"get": {"tags": [tag], "summary": summary, "responses": _responses(_json(answer) if answer else {})}}


def _post(
    tag: str, summary: str, body: dict[str, Any], answer: dict[str, Any] | None, content: dict[str, Any] | None = None
) -> dict[str, Any]:
    asked = {"required": True, "content": _json(body)}
    responses = _responses(_json(answer) if answer is not None else content or {})
    return {"post": {"tags": [tag], "summary": summary, "requestBody": asked, "responses": responses}}


def _responses(content: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done"}
    if content:
        good["content"] = content
    error = {"description": "An error", "content": _json({"$ref": "#/components/schemas/Error"})}
    return {"200": good, "default": error}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _object(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _infer_body(config: Any) -> dict[str, Any]:
    inputs = [_tensor(tensor, config) for tensor in config.input]
    wanted = sum(not tensor.optional for tensor in config.input)
    output = _object({"name": {"enum": [one.name for one in config.output]}, "parameters": _PARAMETERS}, ["name"])
    listed: dict[str, Any] = {"type": "array", "minItems": wanted, "maxItems": len(inputs)}
    if inputs:
        listed["items"] = {"anyOf": inputs}
    return _object(
        {"id": _TEXT, "parameters": _PARAMETERS, "inputs": listed, "outputs": {"type": "array", "items": output}},
        ["inputs"],
    )


def _infer_answer(config: Any) -> dict[str, Any]:
    outputs: dict[str, Any] = {"type": "array"}
    if config.output:
        outputs["items"] = {"anyOf": [_tensor(tensor, config) for tensor in config.output]}
    return _object(
        {"id": _TEXT, "model_name": _TEXT, "model_version": _TEXT, "outputs": outputs}, ["model_name", "outputs"]
    )


def _tensor(tensor: Any, config: Any) -> dict[str, Any]:
    """A tensor of the protocol; its data may be nested lists or one flat list."""
    datatype = datatype_name(tensor.data_type)
    dims = [*([-1] if config.max_batch_size >= 1 else []), *tensor.dims]
    sizes: dict[str, Any] = {"type": "array", "minItems": len(dims), "maxItems": len(dims)}
    if dims:
        sizes["prefixItems"] = [{"type": "integer", "minimum": 0} if one < 0 else {"const": one} for one in dims]
    said: dict[str, Any] = {
        "name": {"const": tensor.name},
        "datatype": {"const": datatype},
        "shape": sizes,
        "parameters": _PARAMETERS,
    }
    required = ["name", "datatype", "shape"]
    if datatype in _BINARY_ONLY:
        said["parameters"] = {**_PARAMETERS, "description": f"{datatype} is sent as binary data only"}
    else:
        said["data"] = {"type": "array", "items": {"anyOf": [_element(datatype), _LIST]}}
    return _object(said, required)


def _value(datatype: str) -> dict[str, Any]:
    """An element, or a list of them."""
    return {"anyOf": [_element(datatype), _LIST]}


def _element(datatype: str) -> dict[str, Any]:
    if datatype == "BYTES":
        return _TEXT
    if datatype == "BOOL":
        return {"type": "boolean"}
    bounds = _BOUNDS.get(datatype)
    if bounds is None:
        return {"type": "number"}
    return {"type": "integer", "minimum": bounds[0], "maximum": bounds[1]}

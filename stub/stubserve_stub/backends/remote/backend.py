"""A model of another server. It is asked there, and its answer is passed on.

So an ensemble, or a model that calls others, uses a model of another machine as one of its own::

    backend: "remote"
    parameters { key: "url" value { string_value: "http://gpu-host:8000" } }

What answers there is stubserve, Triton, or any other server of KServe's protocol v2 over HTTP. Inputs and outputs come
from its configuration unless they are given. Sequences, priorities, timeouts, ids and parameters go with the request,
and so does the trace of OpenTelemetry. The model is ready while the other server says that it is.

Each request has a thread here while it is under way. At most `connections` are; the others wait in the server.
"""

from __future__ import annotations

import json
import time
from typing import Any, Dict, Mapping
from urllib.parse import quote

from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.backends.base import InstanceSetup
from stubserve_stub.backends.loading import Parameters
from stubserve_stub.backends.python.streaming import Answers, StreamingBackend, StreamingModel
from stubserve_stub.backends.remote.exchange import LENGTH, Server, decoded, encoded, failure_of
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_NAME

_CONNECTIONS = 32
_TIMEOUT_S = 300
_AGAIN_S = 0.5
_START, _END = 1, 2
# Of a configuration, what a caller of the model has to know
_OF_CALLERS = ("max_batch_size", "input", "output")
# Of an answer's parameters, what belongs to the connection
_OWN = ("binary_data_size", "binary_data_output")


class Remote:
    """A model on another server, as a configuration names it. Raises Refusal for a configuration without `url`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        reader = Parameters("remote", config, {})
        urls = [url.strip() for url in reader.text("url").split(",") if url.strip()]
        if not urls:
            raise Refusal(f"{reader.called('url')} is missing: it is the other server's address, http://host:8000")
        headers = {}
        if reader.text("token_file"):
            headers["Authorization"] = "Bearer " + _token(reader.text("token_file"))
        self.server = Server(urls, headers, reader.integer("timeout_s") or _TIMEOUT_S)
        self.connections = reader.integer("connections") or _CONNECTIONS
        self.patience_s = reader.integer("patience_s")
        name, version = reader.text("model_name") or str(config["name"]), reader.text("model_version")
        self.path = f"/v2/models/{quote(name, safe='')}" + (f"/versions/{version}" if version else "")
        self.where = f"model '{name}' of {self.server.name}"

    def ask(self, request: InferenceRequest) -> InferenceResponse:
        """Raises Refusal with the other server's error, or because it does not answer."""
        members: Dict[str, Any] = {"id": request.request_id()} if request.request_id() else {}
        said = request._said()
        parameters: Dict[str, Any] = dict(said.parameters or {})
        if said.correlation_id:
            parameters["sequence_id"] = said.correlation_id
            parameters["sequence_start"] = bool(said.flags & _START)
            parameters["sequence_end"] = bool(said.flags & _END)
        if said.timeout_us:
            parameters["timeout"] = said.timeout_us
        if said.priority:
            parameters["priority"] = said.priority
        if parameters:
            members["parameters"] = parameters
        body, length = encoded(request.inputs(), sorted(request.requested_output_names()), members)
        headers = {LENGTH: str(length), "Content-Type": "application/octet-stream"}
        context = request.trace().get_context()
        if context:
            headers.update(json.loads(context))
        reply = self.server.ask("POST", self.path + "/infer", body, headers)
        if reply.status != 200:
            raise failure_of(reply, self.where)
        try:
            tensors, told = decoded(reply)
        except (ValueError, KeyError, TypeError) as error:
            raise Refusal(f"{self.where} has given an answer that is none: {error}") from None
        plain = {name: value for name, value in told.items() if isinstance(value, (bool, int, str))}
        kept: Any = {name: value for name, value in plain.items() if name not in _OWN}
        return InferenceResponse(tensors, parameters=kept or None)

    def described(self) -> Dict[str, Any]:
        """`max_batch_size`, `input` and `output`, as a configuration has them. Raises Refusal."""
        reply = self.server.ask("GET", self.path + "/config")
        if reply.status == 200:
            config = json.loads(bytes(reply.body))
            if (config.get("model_transaction_policy") or {}).get("decoupled"):
                raise Refusal(f"{self.where} answers with any number of responses, and a remote model has one")
            return {name: config[name] for name in _OF_CALLERS if name in config}
        # Not each server has that extension.
        reply = self.server.ask("GET", self.path)
        if reply.status != 200:
            raise failure_of(reply, self.where)
        metadata = json.loads(bytes(reply.body))
        return {
            "max_batch_size": 0,
            "input": [_described(tensor) for tensor in metadata["inputs"]],
            "output": [_described(tensor) for tensor in metadata["outputs"]],
        }


def _described(tensor: Mapping[str, Any]) -> Dict[str, Any]:
    kind = BY_NAME[tensor["datatype"]].config_name
    return {"name": tensor["name"], "data_type": kind, "dims": [int(dim) for dim in tensor["shape"]]}


def _token(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError as error:
        raise Refusal(f"parameter 'token_file': '{path}' cannot be read: {error.strerror}") from None


class _RemoteModel(StreamingModel):
    def check(self) -> None:
        self._remote = Remote(self.config)
        self.streams = self._remote.connections

    def answers(self, request: InferenceRequest) -> Answers:
        def send(sender: InferenceResponseSender) -> None:
            if not sender.is_cancelled():
                sender.send(self._remote.ask(request))

        return send

    def is_ready(self) -> bool:
        reply = self._remote.server.ask("GET", self._remote.path + "/ready")
        if reply.status != 200:
            raise Refusal(f"{self._remote.where} is not ready", codes.UNAVAILABLE)
        return True


class RemoteBackend(StreamingBackend):
    completes_config = True
    model_class = _RemoteModel

    def complete_config(self, model: str, config_json: str) -> str:
        config: Dict[str, Any] = json.loads(config_json)
        if config.get("input") and config.get("output"):
            return config_json
        remote = Remote(config)
        until = time.monotonic() + remote.patience_s
        while True:
            try:
                described = remote.described()
                break
            except Refusal as refusal:
                if refusal.code not in (codes.UNAVAILABLE, codes.NOT_FOUND) or time.monotonic() > until:
                    raise
            time.sleep(_AGAIN_S)
        for name, value in described.items():
            if not config.get(name):
                config[name] = value
        return json.dumps(config)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        if instance.decoupled:
            raise Refusal(
                f"model instance '{instance.name}' is decoupled, and a remote model answers each request once"
            )
        self._begin(instance)

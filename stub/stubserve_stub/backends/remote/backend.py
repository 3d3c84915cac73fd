"""A model of another server. It is asked there, and its answer is passed on.

So an ensemble, or a model that calls others, uses a model of another machine as one of its own::

    backend: "remote"
    parameters { key: "url" value { string_value: "http://gpu-host:8000" } }

What answers there is stubserve, Triton, or any other server of KServe's protocol v2 over HTTP. Inputs and outputs come
from its configuration unless they are given. Sequences, priorities, timeouts, ids and parameters go with the request,
and so does the trace of OpenTelemetry. The model is ready while the other server says that it is.

Each request has a thread here while it is under way. At most `connections` are; the others wait in the server. One
whose client goes is broken off at once. Addresses and causes stand in the log, and not in the errors of clients.
"""

from __future__ import annotations

import functools
import json
import time
from typing import Any, Dict, Mapping, Optional
from urllib.parse import quote

from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.backends.base import InstanceSetup
from stubserve_stub.backends.loading import Parameters
from stubserve_stub.backends.python.model import Model
from stubserve_stub.backends.python.streaming import Answers, StreamingBackend, StreamingModel
from stubserve_stub.backends.remote.connection import Call, Unanswered
from stubserve_stub.backends.remote.exchange import (
    ALL_JSON_BYTES,
    ELEMENT_BYTES,
    JSON_BYTES,
    LENGTH,
    Body,
    Reply,
    Server,
    Unreached,
    decoded,
    encoded,
)
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.budget import ArenaFull
from stubserve_stub.wire.datatypes import BY_CONFIG_NAME, BY_NAME, elements_of

_CONNECTIONS = 32
_TIMEOUT_S = 300
_AGAIN_S = 0.5
# The server waits no longer for the answer whether the model is ready.
_READY_S = 5
# The same cause is logged again after so long.
_LOG_S = 10.0
_START, _END = 1, 2
# The fields of a configuration that a caller of the model has to know
_OF_CALLERS = ("max_batch_size", "input", "output")
# The fields of its tensors that concern the other server alone
_OF_OTHERS = ("reshape", "label_filename")
# The parameters of an answer that belong to the connection
_OWN = ("binary_data_size", "binary_data_output")
# The parameter that counts through how many remote models a request has come, and the most
_HOPS = "stubserve_hops"
_MOST_HOPS = 4


class Remote:
    """A model on another server, as a configuration names it. Raises Refusal for a configuration without `url`.

    Large answers are read into the arena of `channel`.
    """

    def __init__(self, config: Mapping[str, Any], channel: Optional[Channel] = None) -> None:
        reader = Parameters("remote", config, {})
        urls = [url.strip() for url in reader.text("url").split(",") if url.strip()]
        if not urls:
            raise Refusal(f"{reader.called('url')} is missing: it is the other server's address, http://host:8000")
        headers = {}
        if reader.text("token_file"):
            headers["Authorization"] = "Bearer " + _token(reader.text("token_file"))
        self._server = Server(urls, headers)
        self._channel = channel
        self._timeout_s = reader.integer("timeout_s") or _TIMEOUT_S
        self.connections = reader.integer("connections") or _CONNECTIONS
        self.patience_s = reader.integer("patience_s")
        name, version = reader.text("model_name") or str(config["name"]), reader.text("model_version")
        self._path = f"/v2/models/{quote(name, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")
        self._where = f"remote model '{config['name']}'"
        self._outputs = {output["name"]: output for output in config.get("output", ())}
        self._batches = bool(config.get("max_batch_size"))
        self._logged, self._logged_at = "", 0.0

    def _ask(self, call: Call, body: Body, *what: Any) -> Reply:
        """Raises Refusal where no answer comes."""
        try:
            return self._server.ask(call, body, *what)
        except ArenaFull as full:
            raise Refusal(f"{self._where}: {full}", full.code) from None
        except (OSError, Unanswered) as error:
            if call.over:
                raise Refusal(f"{self._where}: the client has gone") from None
            does_not = "cannot be reached" if isinstance(error, Unreached) else "does not answer"
            raise self._refusal(f"the other server {does_not}", error) from None

    def _refusal(self, text: str, cause: Exception) -> Refusal:
        """For the client the text alone; the log has the address and the cause, but not for each request."""
        log = f"{self._where}: {text}: {self._server.name}: {cause or type(cause).__name__}"
        now = time.monotonic()
        if log == self._logged and now - self._logged_at < _LOG_S:
            log = ""
        else:
            self._logged, self._logged_at = log, now
        return Refusal(f"{self._where}: {text}", codes.UNAVAILABLE, log)

    def answer(self, request: InferenceRequest, sender: InferenceResponseSender) -> None:
        """Sends the response. Raises Refusal with the other server's error, or because it does not answer."""
        call = Call(self._timeout_s)
        sender._when_cancelled(call.end)
        body = Body(self._most(request), self._channel)
        try:
            reply = self._ask(call, body, "POST", self._path + "/infer", *self._asked(request))
            if reply.status != 200:
                raise self._failure(reply)
            sender.send(self._response(request, reply))
        finally:
            body.close()

    def _asked(self, request: InferenceRequest) -> Any:
        """The parts of the body of a request, and its headers. Raises Refusal for one that goes in a circle."""
        members: Dict[str, Any] = {"id": request.request_id()} if request.request_id() else {}
        said = request._said()
        parameters: Dict[str, Any] = dict(said.parameters or {})
        hops = parameters.get(_HOPS)
        # A client may say it as well, but not that there is more room than for a request of its own.
        parameters[_HOPS] = max(hops, 0) + 1 if type(hops) is int else 1
        if parameters[_HOPS] > _MOST_HOPS:
            raise Refusal(
                f"{self._where}: the request has come through {hops} remote models, as if these asked each other in a "
                "circle",
                codes.INVALID_ARG,
            )
        if said.correlation_id:
            parameters["sequence_id"] = said.correlation_id
            parameters["sequence_start"] = bool(said.flags & _START)
            parameters["sequence_end"] = bool(said.flags & _END)
        if said.timeout_us:
            parameters["timeout"] = said.timeout_us
        if said.priority:
            parameters["priority"] = said.priority
        members["parameters"] = parameters
        parts, length = encoded(request.inputs(), sorted(request.requested_output_names()), members)
        headers = {LENGTH: str(length), "Content-Type": "application/octet-stream"}
        context = request.trace().get_context()
        if context:
            headers.update(json.loads(context))
        return parts, headers

    def _most(self, request: InferenceRequest) -> int:
        """How many bytes the answer may have: as many as the arena has room for, where an output may have any size."""
        elements = self._elements(request)
        if elements is None:
            return 1 << 62
        return JSON_BYTES + ELEMENT_BYTES * elements

    def _elements(self, request: InferenceRequest) -> Optional[int]:
        """How many elements the outputs of a request have, at most; None if that is not known."""
        rows = request.inputs()[0].shape()[0] if self._batches and request.inputs() else 1
        wanted = [self._outputs[name] for name in request.requested_output_names() if name in self._outputs]
        dims = [[int(dim) for dim in output["dims"]] for output in wanted]
        if any(output["data_type"] == "TYPE_STRING" for output in wanted) or any(-1 in some for some in dims):
            return None
        return rows * sum(map(elements_of, dims))

    def _response(self, request: InferenceRequest, reply: Reply) -> InferenceResponse:
        """The response that a reply means. Tensors of the response lie in the body of the reply."""
        names = request.requested_output_names()
        wanted = {name: BY_CONFIG_NAME[self._outputs[name]["data_type"]] for name in names if name in self._outputs}
        elements = self._elements(request)
        all_json = ALL_JSON_BYTES if elements is None else JSON_BYTES + ELEMENT_BYTES * elements
        try:
            tensors, told = decoded(reply, wanted, all_json)
        except Unanswered as error:
            raise self._refusal("the other server has given an answer that is none", error) from None
        plain = {name: value for name, value in told.items() if isinstance(value, (bool, int, str))}
        kept: Any = {name: value for name, value in plain.items() if name not in _OWN}
        return InferenceResponse(tensors, parameters=kept or None)

    def _failure(self, reply: Reply) -> Refusal:
        text, code = reply.error
        return Refusal(f"{self._where}: {text}", code)

    def check_ready(self) -> None:
        """Raises Refusal where the other server, or the model there, is not ready."""
        reply = self._ask(Call(_READY_S), Body(JSON_BYTES), "GET", self._path + "/ready")
        if reply.status != 200:
            raise Refusal(f"{self._where} is not ready", codes.UNAVAILABLE)

    def described(self) -> Dict[str, Any]:
        """`max_batch_size`, `input` and `output`, as a configuration has them. Raises Refusal."""
        reply = self._ask(Call(self._timeout_s), Body(JSON_BYTES), "GET", self._path + "/config")
        # Not each server has that extension.
        has_config = reply.status == 200
        if not has_config:
            reply = self._ask(Call(self._timeout_s), Body(JSON_BYTES), "GET", self._path)
            if reply.status != 200:
                raise self._failure(reply)
        try:
            found = json.loads(bytes(reply.body))
            if not has_config:
                names = {"input": "inputs", "output": "outputs"}
                tensors = {ours: [_described(one) for one in found[theirs]] for ours, theirs in names.items()}
                return {"max_batch_size": 0, **tensors}
            decoupled = (found.get("model_transaction_policy") or {}).get("decoupled")
            for tensor in (*found.get("input", ()), *found.get("output", ())):
                for name in _OF_OTHERS:
                    tensor.pop(name, None)
            config = {name: found[name] for name in _OF_CALLERS if name in found}
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise self._refusal("the other server has described it in a way that is none", error) from None
        if decoupled:
            raise Refusal(f"{self._where} answers with any number of responses, and a remote model has one")
        return config


def _described(tensor: Mapping[str, Any]) -> Dict[str, Any]:
    kind = BY_NAME[tensor["datatype"]].config_name
    return {"name": tensor["name"], "data_type": kind, "dims": [int(dim) for dim in tensor["shape"]]}


def _token(path: str) -> str:
    try:
        with open(path) as file:
            token = file.read().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Refusal(f"parameter 'token_file': '{path}' cannot be read: {why}") from None
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise Refusal(f"parameter 'token_file': '{path}' must have one token, of ASCII letters and signs")
    return token


class _RemoteModel(StreamingModel):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def check(self) -> None:
        self._remote = Remote(self.config, self._channel)
        self.streams = self._remote.connections

    def answers(self, request: InferenceRequest) -> Answers:
        return functools.partial(self._remote.answer, request)

    def is_ready(self) -> bool:
        self._remote.check_ready()
        return True


class RemoteBackend(StreamingBackend):
    completes_config = True

    def _model_of_instance(self) -> Model:
        return Model(functools.partial(_RemoteModel, self.host.channel), __file__)

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

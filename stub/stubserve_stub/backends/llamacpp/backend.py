"""The backend's functions, and its two kinds of models.

The engine is llama.cpp's own server, without its sockets. It computes one token of all requests under way at a time, so
a new request joins between two tokens. Each request has a thread here, which waits in the engine for the next piece of
its answer, without Python's lock. A piece is a JSON object of OpenAI's, and goes to the client as the engine made it.

A request whose client goes is ended with its next piece. While a long prompt is read the engine tells of its progress
(once for each `n_batch` tokens), and these pieces go nowhere, but they end such a request, too. Requests beyond
`n_parallel` wait in the server, where they can be cancelled at once, and not in the engine.

The engine insists on listening. It gets a socket in a folder that is removed at once, so nobody can reach it there.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from typing import Any, Dict, List, cast

import numpy as np

from stubserve_stub.api.requests import InferenceRequest, get_input_tensor_by_name
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.base import InstanceSetup, ModelFiles
from stubserve_stub.backends.llamacpp.options import (
    EMBEDDING,
    REQUEST,
    RESPONSE,
    TEXT,
    Options,
    complete,
    find_file,
    options_of,
    validate,
)
from stubserve_stub.backends.loading import cores, import_package, refuse_gpu
from stubserve_stub.backends.python.backend import PythonBackend
from stubserve_stub.backends.python.model import Model
from stubserve_stub.backends.python.streaming import Answers, StreamingBackend, StreamingModel
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes

# What the engine writes to stderr: nothing, since it also tells of each refused request; or why it cannot load a model
_SILENT, _ERRORS = -1, 1
# In JSON these cannot be part of a text, where quotes have a backslash.
_PROGRESS, _USAGE = b',"prompt_progress":{', b',"usage":{'
_ERROR = b'{"error":'
# The engine allows as many as it has slots.
_MOST_CHOICES = 1 << 20
_CODES = {400: codes.INVALID_ARG, 501: codes.UNSUPPORTED, 503: codes.UNAVAILABLE}


def open_engine(path: str, config: Dict[str, Any], options: Options) -> Any:
    """Loads a model's file. Raises Refusal."""
    package = import_package("xllamacpp", "llamacpp")
    params = package.CommonParams()
    params.model.path = path
    params.model_alias = {config["name"]}
    params.verbosity = _SILENT
    params.n_parallel = options.slots
    # As llama-server: a request may use all of the context that others leave.
    params.kv_unified = True
    for name, value in options.numbers.items():
        setattr(params, name, value)
    threads = options.threads or cores(os.environ)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    folder = os.path.dirname(path)
    params.lora_adapters = [_adapter(package, os.path.join(folder, file), scale) for file, scale in options.lora]
    params.embedding = options.embedding
    if options.pooling:
        params.pooling_type = getattr(package.llama_pooling_type, "LLAMA_POOLING_TYPE_" + options.pooling.upper())
    if options.chat_template:
        with open(os.path.join(folder, options.chat_template)) as file:
            params.chat_template = file.read()
    try:
        return _listening_nowhere(package, params)
    except (RuntimeError, ValueError):
        params.verbosity = _ERRORS
    try:
        return _listening_nowhere(package, params)
    except (RuntimeError, ValueError) as error:
        raise Refusal(f"llama.cpp cannot load '{path}', and says why in the log: {error}") from None


def _listening_nowhere(package: Any, params: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="stubserve-") as place:
        params.hostnames = [os.path.join(place, "engine.sock")]
        return package.Server(params)


def _adapter(package: Any, path: str, scale: float) -> Any:
    if not os.path.isfile(path):
        raise Refusal(f"parameter 'lora': there is no file '{path}'")
    adapter = package.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = path, scale
    return adapter


class _Generator(StreamingModel):
    """Answers chats and completions."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def check(self) -> None:
        validate(self.config)
        self.streams = options_of(self.config).slots

    def answers(self, request: InferenceRequest) -> Answers:
        tensor = cast(Tensor, get_input_tensor_by_name(request, REQUEST))
        body = _body(tensor.as_numpy().reshape(-1))
        handle = self._engine.handle_chat_completions if "messages" in body else self._engine.handle_completions
        usage = _Usage(body)
        body.update(stream=True, return_progress=True, stream_options={"include_usage": True})
        text = json.dumps(body).encode()

        def send(sender: InferenceResponseSender) -> None:
            raised: List[BaseException] = []

            def take(piece: bytes) -> bool:
                """Whether no further piece is wanted. The engine would swallow what this raises."""
                if sender.is_cancelled():
                    return True
                if _PROGRESS in piece:
                    return False
                try:
                    if piece.startswith(_ERROR):
                        raise _refusal(piece)
                    if usage.several and _USAGE in piece:
                        piece = usage.added(piece)
                    sender.send(InferenceResponse([Tensor(RESPONSE, np.array([piece], np.object_))]))
                except BaseException as error:
                    raised.append(error)
                    return True
                return False

            try:
                handle(text, take)
            except (ValueError, RuntimeError) as error:
                # Both are what the engine has against a request that it cannot read.
                raise Refusal(str(error), codes.INVALID_ARG) from None
            if raised:
                raise raised[0]

        return send


class _Usage:
    """The tokens of a request with several choices, each of which the engine counts by itself, prompt included."""

    def __init__(self, body: Dict[str, Any]) -> None:
        prompt = body.get("prompt")
        choices = body.get("n")
        # What is none is refused by the engine.
        self._choices = int(choices) if isinstance(choices, (int, float)) and 1 <= choices < _MOST_CHOICES else 1
        prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
        self._left = self._choices * prompts
        self._prompt = self._made = 0
        self.several = self._left > 1

    def added(self, piece: bytes) -> bytes:
        """A piece that tells tokens: the last one tells all, and those before it none."""
        document = json.loads(piece)
        told = document.pop("usage")
        self._left -= 1
        self._prompt += told["prompt_tokens"]
        self._made += told["completion_tokens"]
        if not self._left:
            given = self._prompt // self._choices
            document["usage"] = {
                "prompt_tokens": given,
                "completion_tokens": self._made,
                "total_tokens": given + self._made,
            }
        return json.dumps(document).encode()


def _body(elements: Any) -> Dict[str, Any]:
    """Raises Refusal for an input that is no JSON object."""
    try:
        (text,) = elements
        body = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise Refusal(f"input '{REQUEST}' must be one JSON object: {error}", codes.INVALID_ARG) from None
    if not isinstance(body, dict):
        raise Refusal(f"input '{REQUEST}' must be one JSON object", codes.INVALID_ARG)
    return body


def _refusal(document: bytes) -> Refusal:
    """The engine's error as ours."""
    error = json.loads(document)["error"]
    return Refusal(str(error.get("message", error)), _CODES.get(error.get("code"), codes.INTERNAL))


class _Embedder:
    """Makes a vector of each text of a batch."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def initialize(self, arguments: Dict[str, str]) -> None:
        validate(json.loads(arguments["model_config"]))

    def execute(self, requests: List[InferenceRequest]) -> List[InferenceResponse]:
        given = [cast(Tensor, get_input_tensor_by_name(request, TEXT)).as_numpy() for request in requests]
        texts = [text.decode("utf-8", "replace") for array in given for text in array.reshape(-1)]
        made = self._engine.handle_embeddings(json.dumps({"input": texts}).encode())
        if made.startswith(_ERROR):
            raise _refusal(made)
        rows = sorted(json.loads(made)["data"], key=lambda row: row["index"])
        vectors = np.array([row["embedding"] for row in rows], np.float32)
        responses, at = [], 0
        for array in given:
            part = vectors[at : at + array.size].reshape(*array.shape[:-1], -1)
            responses.append(InferenceResponse([Tensor(EMBEDDING, part)]))
            at += array.size
        return responses


class LlamaCppBackend(StreamingBackend):
    completes_config = True

    def model_initialize(self, model: ModelFiles) -> None:
        super().model_initialize(model)
        self._version_dir = model.version_dir

    def complete_config(self, model: str, config_json: str) -> str:
        config = json.loads(config_json)
        complete(config)
        return json.dumps(config)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        refuse_gpu(instance, "llamacpp")
        config = json.loads(instance.arguments["model_config"])
        options = options_of(config)
        engine = open_engine(find_file(self._version_dir, config), config, options)
        kind = _Embedder if options.embedding else _Generator
        self._model = Model(functools.partial(kind, engine), __file__)
        if options.embedding:
            PythonBackend.instance_initialize(self, instance)
        else:
            super().instance_initialize(instance)

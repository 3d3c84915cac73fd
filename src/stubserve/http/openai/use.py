"""The routes of OpenAI that a model can serve, and the tensors by which it does.

They are found by the names of its inputs and outputs. The parameter OPENAI_ROUTES of its configuration says which of
them are wanted, where that is not all of them, or where names alone do not tell.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from stubserve_stub.wire.datatypes import BY_NAME, BYTES

from stubserve.errors import ServeError, invalid
from stubserve.http.openai.part import PARAMETER

CHAT, COMPLETIONS, EMBEDDINGS, NONE = "chat", "completions", "embeddings", "none"
_ROUTES = (CHAT, COMPLETIONS, EMBEDDINGS)

# The key of a model's chat template in the memo of its signature
CHAT_TEMPLATE = "chat-template"
# Inputs: the whole body of the request; the messages of a chat as JSON; a text
REQUEST, MESSAGES, TEXT = "openai_request", "messages", "text_input"
# Outputs: objects as the route answers them; text
OBJECT_OUTPUT, TEXT_OUTPUT = "openai_response", "text_output"
# Marks the output of an embedding model that has no parameter
_EMBEDDING = "embedding"
_FLOATS = frozenset(BY_NAME[name].number for name in ("FP16", "FP32", "FP64"))


class OpenAiUse(NamedTuple):
    """The input by which a model takes each route, empty for a route that it does not serve.

    `output` is the output with the text or the objects; `vector` the output with an embedding.
    """

    chat: str = ""
    completions: str = ""
    embeddings: str = ""
    output: str = ""
    vector: str = ""

    def input_of(self, route: str) -> str:
        return {CHAT: self.chat, COMPLETIONS: self.completions, EMBEDDINGS: self.embeddings}[route]


def openai_use(config: Any) -> OpenAiUse:
    """What a model's configuration says. Raises ServeError (INVALID_ARG) for a parameter that is wrong."""
    wanted = _wanted(config)
    inputs = [tensor.name for tensor in config.input if tensor.data_type == BYTES]
    outputs = [tensor.name for tensor in config.output if tensor.data_type == BYTES]
    output = next((name for name in (OBJECT_OUTPUT, TEXT_OUTPUT) if name in outputs), "")
    chat = completions = ""
    if output and REQUEST in inputs:
        chat = completions = REQUEST
    elif output:
        completions = TEXT if TEXT in inputs else ""
        chat = MESSAGES if MESSAGES in inputs else ""
        if wanted is not None and CHAT in wanted:
            chat = chat or completions
    text, vector = _embedding(config, inputs, by_name=wanted is None)
    found = {CHAT: chat, COMPLETIONS: completions, EMBEDDINGS: text}
    if wanted is not None:
        for route in wanted:
            if not found[route]:
                raise _wrong(config, f"'{route}' needs {_NEEDS[route]}")
        found = {route: name if route in wanted else "" for route, name in found.items()}
    return OpenAiUse(found[CHAT], found[COMPLETIONS], found[EMBEDDINGS], output, vector)


_TEXT_NEEDS = f"an output '{TEXT_OUTPUT}' or '{OBJECT_OUTPUT}' of TYPE_STRING"
_NEEDS = {
    CHAT: f"an input '{MESSAGES}', '{REQUEST}' or '{TEXT}' of TYPE_STRING and {_TEXT_NEEDS}",
    COMPLETIONS: f"an input '{TEXT}' or '{REQUEST}' of TYPE_STRING and {_TEXT_NEEDS}",
    EMBEDDINGS: "one input of TYPE_STRING, no other input that must be given, and one output of TYPE_FP32, TYPE_FP16 "
    "or TYPE_FP64",
}


def _wanted(config: Any) -> frozenset[str] | None:
    """The routes that the parameter names; None without it."""
    if PARAMETER not in config.parameters:
        return None
    words = re.findall(r"[^\s,]+", config.parameters[PARAMETER].string_value)
    for word in words:
        if word not in (*_ROUTES, NONE):
            raise _wrong(config, f"there is no '{word}'; say {', '.join(_ROUTES)}, several with commas, or {NONE}")
    if not words or (NONE in words and len(words) > 1):
        raise _wrong(config, f"say {', '.join(_ROUTES)}, several with commas, or {NONE} alone")
    return frozenset(words) - {NONE}


def _embedding(config: Any, texts: list[str], by_name: bool) -> tuple[str, str]:
    """(the input with the text, the output with the vector), both empty for a model that makes no embeddings."""
    floats = [one.name for one in config.output if one.data_type in _FLOATS]
    if by_name:
        floats = [name for name in floats if _EMBEDDING in name.lower()]
    required = [tensor.name for tensor in config.input if not tensor.optional]
    texts = [name for name in texts if name in required] or texts
    if len(floats) != 1 or len(texts) != 1 or not set(required) <= set(texts):
        return "", ""
    return texts[0], floats[0]


def _wrong(config: Any, why: str) -> ServeError:
    return invalid(f"parameter {PARAMETER} of model '{config.name}': {why}").at("parameters", PARAMETER)

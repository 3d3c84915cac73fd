"""What a client asks of one of OpenAI's routes, as requests to `generate`: a member for each input, or a parameter.

`generate` takes a member as an input if the model has an input of that name, else as a parameter of the request. So
`temperature` and all other members reach any model, by whichever of the two ways it reads.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from stubserve.errors import ServeError, invalid
from stubserve.http.openai.body import Asked
from stubserve.http.openai.part import PARAMETER
from stubserve.http.openai.use import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, REQUEST, OpenAiUse
from stubserve.inference.signature import Signature, TensorSignature

# Inputs as the models of vLLM's backend have them: one with all members about sampling, as JSON; and those by which
# a model is asked to say more.
SAMPLING = "sampling_parameters"
# The input for `stop` of TensorRT-LLM's models
STOP_WORDS = "stop_words"
_ASKED_FOR = ("exclude_input_in_output", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
# Members that are not about sampling
_NOT_SAMPLING = frozenset(
    (
        "stream",
        "user",
        "metadata",
        "store",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "service_tier",
        "modalities",
        "prediction",
        "functions",
        "function_call",
    )
)
_SEEDS = 1 << 63


class ModelRequest:
    """One request to the model: the `members` of its body, about text number `text` of the client's request.

    It makes choice number `index`, or `rows` embeddings, one for each of so many texts. `echoed` is the text that the
    choice begins with.
    """

    __slots__ = ("echoed", "index", "members", "rows", "text")

    def __init__(self, members: dict[str, Any], text: int, index: int, rows: int = 1, echoed: str = "") -> None:
        self.members = members
        self.text = text
        self.index = index
        self.rows = rows
        self.echoed = echoed


def model_requests(
    asked: Asked, route: str, body: bytes, use: OpenAiUse, signature: Signature, has_objects: bool
) -> Iterator[ModelRequest]:
    """The requests to a model that serves the `route`. Raises ServeError.

    A model that answers objects (`has_objects`) makes all choices itself.
    """
    name = use.input_of(route)
    if name == REQUEST:
        common = {one: value for one, value in asked.members.items() if one in signature.inputs}
        texts = [body.decode()]
    else:
        common = dict(_members(asked, signature))
        texts = _chat_texts(asked, name) if route == CHAT else asked.texts
    if route == EMBEDDINGS:
        rows = _rows(signature, name)
        for at in range(0, len(texts), rows):
            some = texts[at : at + rows]
            yield ModelRequest({**common, name: some if len(some) > 1 else some[0]}, at, at, len(some))
        return
    seed = asked.members.get("seed")
    count = 1 if has_objects else asked.n
    echoed = asked.texts if asked.echo else [""] * len(texts)
    for at, text in enumerate(texts):
        for choice in range(count):
            members = {**common, name: text}
            if choice and seed is not None and name != REQUEST:
                _vary(members, signature, (seed + choice + _SEEDS) % (2 * _SEEDS) - _SEEDS)
            yield ModelRequest(members, at, at * count + choice, echoed=echoed[at])


def _members(asked: Asked, signature: Signature) -> Iterator[tuple[str, Any]]:
    """The members for a model whose inputs have names of their own."""
    inputs = signature.inputs
    sampling: dict[str, Any] = {}
    for name, value in {**asked.members, **asked.documents}.items():
        known = inputs.get(name)
        if known is None and name == "stop" and STOP_WORDS in inputs:
            if asked.stops:
                yield STOP_WORDS, asked.stops
        elif known is not None:
            yield name, _value(name, value, known, asked)
        elif SAMPLING in inputs and name not in _NOT_SAMPLING:
            sampling[name] = orjson.Fragment(value) if name in asked.documents else value
        elif name != "stream":
            yield name, value
    if sampling:
        yield SAMPLING, orjson.dumps(sampling).decode()
    for name in _ASKED_FOR:
        if name in inputs and name not in asked.members:
            yield name, True


def _value(name: str, value: Any, known: TensorSignature, asked: Asked) -> Any:
    """A member as its input: a list of `stop` where the input takes several, else text for an input of texts."""
    if name == "stop" and known.is_bytes and -1 in known.dims:
        return asked.stops
    if known.is_bytes and not isinstance(value, str):
        return orjson.dumps(value).decode()
    return value


def _chat_texts(asked: Asked, name: str) -> list[str]:
    messages, plain = asked.texts
    if name == MESSAGES:
        return [messages]
    if asked.not_plain:
        raise invalid(
            f"'{asked.not_plain}' is no text, and model '{asked.model}' gets the messages as text; it needs an input "
            f"'{MESSAGES}' for other parts"
        ).at(asked.not_plain)
    return [plain]


def _vary(members: dict[str, Any], signature: Signature, seed: int) -> None:
    """Gives another choice another seed."""
    if SAMPLING in members and "seed" not in signature.inputs:
        members[SAMPLING] = orjson.dumps({**orjson.loads(members[SAMPLING]), "seed": seed}).decode()
    else:
        members["seed"] = seed


def _rows(signature: Signature, name: str) -> int:
    """How many texts one request may have: a batch, where each row is a single text."""
    return signature.max_batch_size if signature.max_batch_size and signature.inputs[name].dims in ((1,), ()) else 1


def no_such_route(model: str, route: str, use: OpenAiUse) -> ServeError:
    """The refusal of a route that a model does not serve."""
    others = [one for one in (CHAT, COMPLETIONS, EMBEDDINGS) if use.input_of(one)]
    if route == CHAT and use.completions:
        hint = (
            f"it takes a plain text; give it an input '{MESSAGES}' or '{REQUEST}', or a tokenizer with a chat template "
            f"in its folder, or set its parameter {PARAMETER} to 'chat,completions' to have the messages joined as "
            "'<role>: <text>'"
        )
    else:
        hint = f"it serves {', '.join(others)}" if others else "it serves none of these routes"
    return invalid(f"model '{model}' does not serve {route}: {hint}").at("model")

"""Renders a chat's messages by the chat template of a model, as Hugging Face's libraries do.

A template is a program of the model. It runs in the process that reads large JSON, so the server goes on whatever it
does; Jinja's sandbox keeps it from everything but the messages.
"""

# Compiled by mypyc.
from __future__ import annotations

import datetime
import functools
import json
from typing import Any, NoReturn

from stubserve_stub.wire.datatypes import BYTES

from stubserve.api.placement import Placer
from stubserve.errors import internal, invalid
from stubserve.http.body import too_long_json
from stubserve.inference.request import Request


def render_packed(text: bytes, template: tuple[str, str, dict[str, str]], most: int, placer: Placer) -> Request:
    """As `render`, as the only tensor of a request; `text` has messages and tools. Raises ServeError.

    It is for the process that reads large JSON: the text may have `most` bytes.
    """
    prompt = render(*template, *text.decode().split("\0")).encode()
    if len(prompt) > most:
        raise too_long_json(len(prompt), most, f"a chat for model '{template[0]}', rendered by its template,")
    return Request([placer.put("prompt", BYTES, [1], prompt)])


def render(model: str, template: str, tokens: dict[str, str], messages: str, tools: str) -> str:
    """The text for the model; messages and tools are JSON, the latter empty for none. Raises ServeError."""
    try:
        compiled = _compiled(template)
    except ImportError:
        raise internal(
            f"the chat template of model '{model}' needs the package Jinja2 beside the server: "
            "pip install 'stubserve[openai]'"
        ) from None
    except Exception as error:
        raise internal(f"the chat template of model '{model}' is wrong: {error}") from None
    try:
        text: str = compiled.render(
            **tokens,
            messages=[_message(one) for one in json.loads(messages)],
            tools=json.loads(tools) if tools else None,
            add_generation_prompt=True,
        )
    except Exception as error:  # whatever a template does
        raise invalid(f"the chat template of model '{model}' does not take these messages: {error}").at(
            "messages"
        ) from None
    return text


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _raise_exception(message: str) -> NoReturn:
    raise ValueError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: text in one piece, and arguments of calls as objects."""
    content = message.get("content")
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        message = {**message, "content": "\n".join([str(part.get("text", "")) for part in content])}
    if message.get("tool_calls"):
        message = {**message, "tool_calls": [_call(call) for call in message["tool_calls"]]}
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        call = {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    return call

"""The bodies of requests to load a model (a configuration in its place, files in base64) and to unload one."""

from __future__ import annotations

import base64

from stubserve.errors import ServeError, internal, invalid
from stubserve.http.json.values import UNSET, find, parse_json

_FILE = "file:"


def parse_load_parameters(body: bytes) -> tuple[str | None, dict[str, bytes]]:
    """The configuration (JSON text) if there is one, and the files by path. An empty body asks for neither.

    Raises ServeError, texts as upstream's; it reads as much of damaged base64 as it can, this refuses it.
    """
    parameters = find(parse_json(body), "parameters") if body else UNSET
    if parameters is UNSET:
        return None, {}
    if not isinstance(parameters, dict):
        raise internal("attempt to get members for non-object")
    config: str | None = None
    files = {}
    for name, value in parameters.items():
        if not isinstance(value, str):
            raise internal("attempt to access JSON non-string as string")
        if name == "config":
            config = value
        elif name.startswith(_FILE):
            files[name.removeprefix(_FILE)] = _decode(name, value)
        else:
            raise internal("unexpected error on creating Triton parameter")
    return config, files


def parse_unload_dependents(body: bytes) -> bool:
    """Whether the members of an ensemble are to go with it. Upstream does not mind a body that makes no sense."""
    try:
        parameters = find(parse_json(body), "parameters") if body else UNSET
    except ServeError:
        return False
    return isinstance(parameters, dict) and parameters.get("unload_dependents") is True


def _decode(name: str, text: str) -> bytes:
    """Base64, in lines or in one, with or without padding."""
    letters = "".join(text.split()).rstrip("=")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except ValueError as error:
        raise invalid(f"load parameter '{name}' is no base64: {error}") from None

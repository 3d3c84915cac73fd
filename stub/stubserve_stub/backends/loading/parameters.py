"""Reads the parameters of a model's configuration, and the settings of its backend (--backend-config)."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from stubserve_stub.runtime.failure import Refusal


class Parameters:
    """The parameters of one model, whose configuration is the server's JSON. What is not given is empty, 0 or None."""

    def __init__(self, backend: str, config: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        self._backend = backend
        self._model = config.get("name", "")
        self._parameters: Dict[str, Any] = config.get("parameters", {})
        self._settings = settings

    def text(self, name: str) -> str:
        """A parameter, empty where there is none."""
        value: str = self._parameters.get(name, {}).get("string_value", "")
        return value

    def integer(self, name: str) -> int:
        """A number from 0 on, 0 where there is no such parameter. Raises Refusal."""
        return _number(self.text(name), self.called(name))

    def boolean(self, name: str) -> Optional[bool]:
        """None where there is no such parameter. Raises Refusal."""
        return _flag(self.text(name), self.called(name))

    def called(self, name: str) -> str:
        """What an error calls a parameter."""
        return "parameter '{}' of model '{}'".format(name, self._model)

    def setting(self, name: str) -> int:
        return _number(self._settings.get(name, ""), self._setting_called(name))

    def setting_is_on(self, name: str) -> bool:
        return bool(_flag(self._settings.get(name, ""), self._setting_called(name)))

    def _setting_called(self, name: str) -> str:
        return "--backend-config={},{}".format(self._backend, name)


def _number(text: str, what: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise Refusal("{} must be an integer from 0 on, got '{}'".format(what, text))
    return int(text)


def _flag(text: str, what: str) -> Optional[bool]:
    if not text:
        return None
    if text.lower() in ("1", "true"):
        return True
    if text.lower() in ("0", "false"):
        return False
    raise Refusal("{} must be 0 or 1, got '{}'".format(what, text))

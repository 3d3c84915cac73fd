"""What becomes of a model's wish to load or unload another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from stubserve.errors import invalid
from stubserve.instances.services import change_model


class Control:
    """Model control in which something goes wrong."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        raise self._error

    async def unload(self, name: str, dependents: bool = False) -> None:
        raise self._error


@pytest.mark.parametrize("query", ["load_model", "unload_model"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (invalid("no such model"), "no such model"),
        (
            OSError(28, "No space left"),
            "unexpected error in the server: OSError(28, 'No space left')",
        ),
    ],
)
def test_whatever_goes_wrong_is_answered(
    query: str, error: Exception, text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = {"query": query, "model": "other", "config": "", "files": {}, "unload_dependents": False}
    monkeypatch.setattr(logging.getLogger("stubserve"), "propagate", True)
    assert asyncio.run(change_model(Control(error), wish)) == {"error": text}
    assert ("No space left" in caplog.text) is isinstance(error, OSError)

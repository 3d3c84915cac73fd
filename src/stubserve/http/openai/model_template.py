"""The chat template of a model: a tokenizer's files, as Hugging Face's libraries write them, in the model's folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

log = logging.getLogger("stubserve.repository")

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
# A configuration with a long list of added tokens has a few hundred KiB.
_MOST_BYTES = 16 << 20


class ChatTemplate(NamedTuple):
    """A template in Jinja, and the special tokens that it may use, by name (`bos_token`)."""

    text: str
    tokens: dict[str, str]


def read_chat_template(model: str, folders: Sequence[Path]) -> ChatTemplate | None:
    """The template in the first of the folders that has one. A file that cannot be read is reported in the log."""
    for folder in folders:
        try:
            found = _read(folder)
        except (OSError, ValueError, RecursionError) as error:
            log.warning("model '%s': no chat template is taken from %s: %s", model, folder, error)
            continue
        if found is not None:
            return found
    return None


def _read(folder: Path) -> ChatTemplate | None:
    config: Any = {}
    if (folder / _CONFIG).is_file():
        config = json.loads(_text(folder / _CONFIG))
        if not isinstance(config, dict):
            raise ValueError(f"{_CONFIG} is not a JSON object")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    if (folder / _TEMPLATE).is_file():
        template = _text(folder / _TEMPLATE)
    if not isinstance(template, str):
        return None
    tokens = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return ChatTemplate(template, tokens)


def _text(path: Path) -> str:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path.name} is larger than {_MOST_BYTES} bytes")
    return path.read_text("utf-8")

"""The place in a model's config.pbtxt that an error comes from, for the log of a load, as `stubserve check` tells it.

Clients get upstream's texts, which have a line and a column at best. The log also has the field that may have been
meant, and the other mistakes of the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from stubserve.errors import ServeError
from stubserve.model_config.parse import decode_text
from stubserve.model_config.reading import read_leniently


async def located(error: ServeError, find_file: Callable[[], Path]) -> str:
    """What the log says of an error that a configuration has caused; the error's own text where nothing is known.

    The file is found (or there is a ServeError) and read in a thread, as disks may be slow. A load that is given up
    meanwhile has failed all the same, and what is known of that is said.
    """
    try:
        return await asyncio.to_thread(lambda: _located_in(error, find_file()))
    except (ServeError, asyncio.CancelledError):
        return error.log_message


def _located_in(error: ServeError, file: Path) -> str:
    """As `located`, at once."""
    text = error.log_message.rstrip()
    if text != error.message.rstrip():
        return text  # it says already where it comes from
    try:
        content = decode_text(file.read_bytes())
    except (OSError, UnicodeDecodeError):
        return text
    reading = read_leniently(content)
    lines = content.splitlines()
    places = [(one.line, one.column, one.text) for one in reading.mistakes]
    if not places and error.path and reading.line_of(error.path):
        places = [(reading.line_of(error.path), 0, "")]
    for line, column, what in places:
        text += f"\n{file}:{line}" + (f": {what}" if what else "")
        if 0 < line <= len(lines):
            text += f"\n    {lines[line - 1].expandtabs(1)}"
            text += f"\n    {' ' * (column - 1)}^" if column else ""
    return text

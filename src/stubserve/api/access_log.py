"""The access log (`--access-log`): a line for each answer, of all protocols, and the same as fields if the log is JSON.

    127.0.0.1:40514 - "POST /v2/models/echo/infer HTTP/1.1" 200 model='echo' id='7', 812 µs, 84 bytes in, 90 out

Model and version are those that the client names. The bytes are those of bodies or messages as sent, without heads.
"""

from __future__ import annotations

import logging
import time

log = logging.getLogger("stubserve.access")

_LONGEST_NAME = 256


def log_answer(
    client: str,
    request: str,
    status: int | str,
    names: dict[str, str],
    began_ns: int,
    bytes_in: int,
    bytes_out: int,
) -> None:
    """Logs an answer when its last byte is handed over. `names` may have a `model`, a `version` and an `id`."""
    took_us = (time.monotonic_ns() - began_ns) // 1000
    model, version, id = (names.get(key, "")[:_LONGEST_NAME] for key in ("model", "version", "id"))
    known = "".join(f" {key}={value!r}" for key, value in (("model", model), ("version", version), ("id", id)) if value)
    fields = {
        "client": client,
        "request": request,
        "status": status,
        "model": model,
        "version": version,
        "id": id,
        "us": took_us,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
    }
    log.info(
        '%s - "%s" %s%s, %d µs, %d bytes in, %d out',
        client,
        request,
        status,
        known,
        took_us,
        bytes_in,
        bytes_out,
        extra={"fields": fields},
    )

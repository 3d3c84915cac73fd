"""Every HTTP route with anything for a method, path, query, header and body: no unexplained 5xx, no crash, no growth.

The routes are the app's own, so one that is new is met, too. Bodies are what the routes understand, bent: JSON of the
right members with values of any type, binary requests whose sizes are wrong, compressed rubbish, chunks. In CI it takes
a few seconds; STUBSERVE_FUZZ_SECONDS makes it longer, and STUBSERVE_FUZZ_SEED another.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import random
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest

from stubserve.http.app import create_app
from stubserve.parts import parts_of
from stubserve.settings.fronts import HttpSettings
from stubserve.settings.groups import Settings

from ..real_server import Serving, binary_output, binary_request, write_model
from .openai_models import EMBEDDER, EMBEDDER_CONFIG, OUTPUT, WHOLE, routes, text_input

SECONDS = float(os.environ.get("STUBSERVE_FUZZ_SECONDS", "6"))
SEED = int(os.environ.get("STUBSERVE_FUZZ_SEED", "7"))
# What a server may answer whatever it is asked. 500: JSON that cannot be read, as upstream; its texts are below.
STATUSES = {200, 204, 400, 401, 403, 404, 405, 431, 500, 501, 503}
EXPLAINED = re.compile("failed to |attempt to |unable to parse|Unable to parse|error on creating Triton parameter")
WORDS = (
    "echo", "nosuch", "1", "99999999999999999999", "-1", "..", "%2e%2e", "%00",  "a" * 3000,
    "%ff", "%c3%a9", "*", "index", "%20",
)  # fmt: skip
NAMES = (
    "inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "id", "binary_data_size", "sequence_id",
    "priority", "timeout", "classification", "ready", "config", "file:1/model.py", "unload_dependents",
    "log_verbose_level",
    "log_info", "log_format", "log_file", "trace_level", "trace_rate", "trace_file", "key", "offset", "byte_size",
    "model", "messages", "prompt", "input", "stream", "stream_options", "include_usage", "n", "stop", "seed",
    "max_tokens", "role", "content", "encoding_format", "dimensions", "echo",
    "raw_handle", "device_id", "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "INPUT0",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, 2**64, 10**40, 1.5, 1e308, "", "echo", "FP32", "INPUT0", "BYTES", "/nosuch",
    "../x",
    "\0", "é\ud800", [], {}, [1], [[1]], [None], "AAAA", "OFF", ["TIMESTAMPS"], "x" * 5000,
)  # fmt: skip


def paths() -> list[str]:
    """The templates of all routes."""
    server: Any = SimpleNamespace(http_access=None)
    app = create_app(server, parts_of(Settings(http=HttpSettings(openai=True))))
    return sorted(str(cast(Any, route).path) for route in app.routes)


class Chance:
    """Random requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.templates = paths()

    def path(self) -> str:
        template = self.random.choice(self.templates)
        if self.random.random() < 0.5:
            # What can be answered
            filled = re.sub(r"\{model\}", "echo", re.sub(r"\{version:digits\}", "1", template))
            path = re.sub(r"\{[^}]*\}", "status", filled)
        else:
            path = re.sub(r"\{[^}]*\}", lambda _: self.random.choice(WORDS), template)
        if self.random.random() < 0.1:
            path += self.random.choice(("/", "?", "?a=%00&" + "b" * 500, "//", "/../..", "%2f", ";x", "#y"))
        return path

    def value(self, depth: int = 0) -> Any:
        chance = self.random.random()
        if depth < 5 and chance < 0.25:
            return {self.random.choice(NAMES): self.value(depth + 1) for _ in range(self.random.randrange(5))}
        if depth < 5 and chance < 0.4:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        return self.random.choice(VALUES)

    def document(self) -> bytes:
        document: Any = self.value()
        if self.random.random() < 0.7:
            one = {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}
            document = {"inputs": [one]}
            for target in self.random.choices((document, one), k=self.random.randrange(3)):
                target[self.random.choice(NAMES)] = self.value(1)
        if self.random.random() < 0.2:
            document = {
                "model": self.random.choice(("text", "rows")),
                "messages": [{"role": "user", "content": "a"}],
                "prompt": "a",
                "input": ["a", "b"],
            }
            for _ in range(self.random.randrange(4)):
                document[self.random.choice(NAMES)] = self.value(1)
        text = bytearray(json.dumps(document).encode())
        for _ in range(self.random.choice((0, 0, 0, 1, 4))):
            text[self.random.randrange(len(text))] = self.random.randrange(256)
        if self.random.random() < 0.05:
            text = bytearray(b"[" * self.random.choice((99, 101, 10_000)))
        return bytes(text)

    def request(self) -> tuple[str, str, bytes | Iterator[bytes] | None, dict[str, str]]:
        method = self.random.choice(("GET", "POST", "POST", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "X-Y"))
        headers: dict[str, str] = {}
        body: bytes | Iterator[bytes] | None = None
        if method != "GET" or self.random.random() < 0.1:
            kind = self.random.random()
            if kind < 0.2:
                _, content, headers = binary_request("echo", np.zeros(self.random.randrange(9), np.float32))
                content = content[: self.random.randrange(len(content) + 1)] if kind < 0.1 else content
            else:
                content = self.document()
            if self.random.random() < 0.1:
                headers["Content-Encoding"] = self.random.choice(("gzip", "deflate", "identity", "br", ""))
                content = gzip.compress(content) if self.random.random() < 0.7 else content
            body = (
                iter([content[:7], content[7:]] if content[7:] else [content]) if kind > 0.95 and content else content
            )
        for name in ("Inference-Header-Content-Length", "Accept-Encoding", "Content-Type", "Origin", "Expect", "Range"):
            if self.random.random() < 0.05:
                headers[name] = self.random.choice(
                    ("0", "-1", "99999999999999999999", "gzip", "x", "*", "100-continue")
                )
        return method, self.path(), body, headers


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "echo")
    write_model(
        repository,
        "text",
        WHOLE,
        f'backend: "python"\n{text_input("text_input")}{OUTPUT}\n{routes("chat, completions")}',
    )
    write_model(repository, "rows", EMBEDDER, EMBEDDER_CONFIG)
    flags = ["--model-control-mode=explicit", "--load-model=*", "--shm-limit=256M", "--http-cors-origin=https://a.org"]
    with Serving(repository, "--openai", *flags) as serving:
        yield serving


@pytest.mark.timeout(SECONDS + 120)
def test_every_route_withstands_anything(serving: Serving) -> None:
    chance = Chance(SEED)
    process = psutil.Process(serving.process.pid)
    pid = serving.process.pid
    seen: set[int] = set()
    before = (0, 0)
    array = np.ones(3, np.float32)
    connection = serving.connect()
    end = time.monotonic() + SECONDS
    count = 0
    while time.monotonic() < end or count < 500:
        count += 1
        method, path, body, headers = chance.request()
        if "unload" in path and "echo" in path:
            continue  # the model is still needed
        try:
            connection.request(method, path, body, headers, encode_chunked=not isinstance(body, (bytes, type(None))))
            response = connection.getresponse()
            content = response.read()
        except (ConnectionError, http.client.HTTPException):
            # It was closed for what came before; the next answer shows that the server lives.
            connection.close()
            connection = serving.connect()
            assert serving.process.poll() is None, (method, path, body, headers)
            continue
        seen.add(response.status)
        shown = (method, path[:300], body if not isinstance(body, bytes) else body[:2000], headers, content[:500])
        assert response.status in STATUSES, shown
        assert not re.search(b"unexpected error(?! on creating)", content), shown
        if response.status == 500:
            assert EXPLAINED.search(content.decode("utf-8", "replace")), shown
        if count == 400:
            before = (process.memory_info().rss, process.num_fds())
    connection.close()
    assert {200, 400, 404, 405, 500} <= seen
    assert "Traceback" not in serving.output
    if serving.request("POST", "/v2/repository/models/echo/load").status == 200:
        np.testing.assert_array_equal(binary_output(serving.infer_array("echo", array)), array)
    assert serving.process.pid == pid
    rss, descriptors = process.memory_info().rss, process.num_fds()
    assert rss < before[0] + (64 << 20), (before, rss)
    assert descriptors < before[1] + 20, (before, descriptors)
    print(f"{count} requests, statuses {sorted(seen)}, resident {before[0] >> 20} -> {rss >> 20} MiB")

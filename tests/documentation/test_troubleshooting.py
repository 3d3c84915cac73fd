"""The messages that the page about troubleshooting explains are messages that there are."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documentation.pages import DOCS, ROOT
from tests.real_server import Serving, io_config, write_model

PAGE = (DOCS / "guides" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^\| `(.*?)` (?:in the log )?\|", PAGE, re.MULTILINE)


def _texts(tree: ast.AST) -> list[str]:
    """The texts of a module; what is put into them is a NUL."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 30


def test_each_message_exists() -> None:
    """Each of its parts is part of one and the same text."""
    texts = [
        text
        for folder in ("src", "stub")
        for path in (ROOT / folder).rglob("*.py")
        for text in _texts(ast.parse(path.read_text()))
    ]

    def exists(message: str) -> bool:
        parts = [part.strip() for part in message.split("...") if part.strip(" '.:;,")]
        assert parts
        return any(all(part in text for part in parts) for text in texts)

    assert [message for message in MESSAGES if not exists(message)] == []


FAILING = """
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError("no")
"""
INPUT = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("models")
    write_model(folder, "fails", FAILING, io_config("FP32", "1", 4))
    streams = "model_transaction_policy { decoupled: true }"
    write_model(folder, "streams", FAILING, io_config("FP32", "1", extra=streams))
    (folder.parent / "tokens").write_text(f"{TOKEN} inference,metadata\n")
    flags = ["--http-max-input-size=2000", "--http-restricted-api=logging:a=b", "--auth-open-api=logging,health"]
    with Serving(folder, f"--auth-token-file={folder.parent / 'tokens'}", *flags) as server:
        server.wait_until_ready()
        yield server


def _inputs(**changed: Any) -> bytes:
    return json.dumps({"inputs": [{**INPUT, **changed}]}).encode()


_INFER = "models/fails/infer"


@pytest.mark.parametrize(
    ("message", "path", "body"),
    [
        ("Request for unknown model: '...' is not found", "models/nosuch/infer", _inputs()),
        ("Not Found: ...", "/v1/models", None),
        ("invalid datatype for input ...", _INFER, _inputs(datatype="STRING")),
        ("HTTP end point doesn't support models with decoupled", "models/streams/infer", _inputs(shape=[1])),
        ("inference input '...' data-type is '...'", _INFER, _inputs(datatype="INT32")),
        ("unexpected shape for input '...' for model '...'", _INFER, _inputs(shape=[1, 2], data=[1, 2])),
        ("expected ... inputs...", _INFER, b'{"inputs":[]}'),
        ("Use --http-max-input-size to increase the limit.", _INFER, _inputs(data=[1] * 1000)),
        ("failed to parse the request JSON buffer: ...", _INFER, b"{"),
        ("Failed to process the request(s) for model '...', message: ...", _INFER, _inputs()),
        ("Failed to process the request(s) for model '...', message: ...", "models/fails/generate", b'{"INPUT0":1}'),
        ("This API is restricted, expecting header '...'", "logging", None),
        ("This API wants a token that the server knows, ...", "", None),
        ("The token is not good for the API '...'", "repository/index", b"{}"),
    ],
)
def test_the_status_is_that_of_the_server(serving: Serving, message: str, path: str, body: bytes | None) -> None:
    (row,) = re.findall(rf"^\| `{re.escape(message)}.*?\| (.*?) \|", PAGE, re.MULTILINE)
    rights = {"Authorization": f"Bearer {TOKEN}"} if path else {}
    url = path if path.startswith("/") else f"/v2/{path}".rstrip("/")
    answer = serving.request("GET" if body is None else "POST", url, body or b"", rights)
    expected = re.search(r"(\d+) through `generate`", row) if path.endswith("generate") else re.match(r"\d+", row)
    assert expected is not None
    assert answer.status == int(re.findall(r"\d+", expected[0])[0])
    assert all(part.strip(" '.") in answer.error for part in message.split("..."))

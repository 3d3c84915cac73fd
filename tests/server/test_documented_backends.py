"""What docs/guides/backends.md shows is what works: models, configurations, clients and what is installed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib

from tests.real_server import Serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "backends.md").read_text()


def blocks(backend: str, language: str) -> list[str]:
    """The fenced blocks of a language in the section about a backend, "" for those without one."""
    (section,) = re.findall(rf"^## {backend}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def printed(client: str, server: Serving) -> str:
    """What a client prints that asks this server."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(client.replace("localhost:8000", f"127.0.0.1:{server.port}"), {})
    return output.getvalue()


def check_commands(backend: str) -> None:
    """The package's extra exists, and the server is started in the usual way."""
    (commands,) = blocks(backend, "sh")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert backend in extras
    assert commands.splitlines() == [
        f"pip install 'stubserve[{backend}]'",
        "stubserve serve models",
    ]


def test_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from tests.onnx_models import model, node, save

    check_commands("onnxruntime")
    save(
        model([node("Add", "X X", "Y")], [("X", "FP32", ["n", 3])], [("Y", "FP32", ["n", 3])]),
        tmp_path / "models" / "double" / "1",
    )
    (client,) = blocks("onnxruntime", "python")
    with Serving(tmp_path / "models") as server:
        assert printed(client, server) == "[[ 2.  4.  6.]\n [ 8. 10. 12.]]\n"


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    check_commands("pytorch")
    (config,) = blocks("pytorch", "")
    maker, client = blocks("pytorch", "python")
    monkeypatch.chdir(tmp_path)
    # TorchScript is made of source code, which has to lie in a file.
    Path("maker.py").write_text(maker)
    names: dict[str, Any] = {"__name__": "maker"}
    exec(compile(maker, "maker.py", "exec"), names)
    (tmp_path / "models" / "scaled" / "config.pbtxt").write_text(config)
    with Serving(tmp_path / "models") as server:
        assert printed(client, server) == "[[ 2.  4.  6.]\n [ 8. 10. 12.]]\n"

"""docs/guides/language-models.md: with curl alone, and with OpenAI's client where that is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.documentation.pages import DOCS, Block, blocks
from tests.documentation.reader import IN_EACH_SHELL, Reader

PAGE = blocks((DOCS / "guides" / "language-models.md").read_text())


def follow(page: list[Block], here: Path, shell: str) -> None:
    reader = Reader(here, shell)
    try:
        for block in page:
            reader.follow(block)
    finally:
        reader.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("shell", IN_EACH_SHELL)
def test_with_curl(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = [block for block in PAGE if "chat.py" not in block.text]
    assert len(page) == len(PAGE) - 1
    follow(page, tmp_path, shell)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_with_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai", reason="`make test-long` installs it")
    monkeypatch.chdir(tmp_path)
    follow(PAGE, tmp_path, "bash")

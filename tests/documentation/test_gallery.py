"""docs/guides/gallery.md: each of its examples, followed by itself as a reader would."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import tomllib

from tests.documentation.pages import DOCS, ROOT, blocks
from tests.documentation.reader import IN_EACH_SHELL, Reader

PAGE = (DOCS / "guides" / "gallery.md").read_text()
EXAMPLES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("shell", IN_EACH_SHELL)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "torch" in EXAMPLES[name]:
        pytest.importorskip("torch", reason="its environment has torch, which brings gigabytes where it is not there")
    if "curl" in EXAMPLES[name] and shutil.which("curl") is None:
        pytest.skip("needs curl")
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, shell)
    try:
        for block in blocks(EXAMPLES[name]):
            reader.follow(block)
    finally:
        reader.close()


def test_the_page_has_the_torch_that_tests_run_with() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.findall(r"torch==\S+", PAGE) == groups["test-torch"]

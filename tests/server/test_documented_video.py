"""What docs/guides/video.md shows is what happens, up to its example. Needs PyAV."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from stubserve_stub.backends.video.options import NAMES, OUTPUTS

from tests.documentation.pages import DOCS, blocks
from tests.documentation.reader import Reader

PAGE = (DOCS / "guides" / "video.md").read_text().partition("## An example")[0]


@pytest.mark.long
def test_a_reader_gets_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    try:
        for block in blocks(PAGE):
            reader.follow(block)
    finally:
        reader.close()


def test_all_parameters_and_outputs_are_described() -> None:
    rows = re.findall(r"^\| (`.*?) (?:\(|\|)", PAGE, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert described == {*NAMES, *OUTPUTS, "SOURCE", "VIDEO"}

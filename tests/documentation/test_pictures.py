"""The pictures in the docs: small, all of them shown, and made by scripts that let nothing of a machine through."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

import pytest

from tools.bench.figures import CHART
from tools.screenshots import MOST_BYTES, PICTURES, TRIED, refuse_what_is_ours

DOCS = Path(__file__).parents[2] / "docs"
# What the client of model_repository/camera draws, and tests/model_repository/test_camera.py looks at
CAMERA = "camera-faces.jpg"
BEGINNINGS = {"svg": b"<svg", "png": b"\x89PNG", "jpg": b"\xff\xd8"}


def test_each_is_small_and_shown() -> None:
    pictures = {path.name for path in (DOCS / "images").iterdir()}
    assert pictures == {f"{name}.png" for name, *_ in (*PICTURES, *TRIED)} | {CHART.name, CAMERA}
    shown = {name for page in DOCS.rglob("*.md") for name in re.findall(r"images/([\w-]+\.\w+)", page.read_text())}
    assert shown == pictures
    for name in pictures:
        data = (DOCS / "images" / name).read_bytes()
        assert data.startswith(BEGINNINGS[name.rpartition(".")[2]])
        assert len(data) <= MOST_BYTES


def test_what_tells_of_a_machine_is_refused(tmp_path: Path) -> None:
    refuse_what_is_ours('{"name": "classifier"}', tmp_path)
    for secret in (f"{tmp_path}/models/1/model.py", f"by {getpass.getuser()} himself"):
        with pytest.raises(SystemExit, match="which is this machine's"):
            refuse_what_is_ours(secret, tmp_path)

"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty model repository."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder

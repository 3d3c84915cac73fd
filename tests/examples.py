"""The examples' repository, and the files that `stubserve fetch` takes out of packages for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPOSITORY = ROOT / "model_repository"


def fetch() -> None:
    """Gets all files of the examples. Where they cannot be had the test is skipped."""
    command = [sys.executable, "-m", "stubserve", "fetch", str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the examples' files cannot be fetched: {done.stderr}")

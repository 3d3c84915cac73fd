"""The examples' repository, and the files that `stubserve fetch` takes out of packages for them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPOSITORY = ROOT / "model_repository"


def fetch() -> None:
    """Gets all files of the examples. Where they cannot be had the test is skipped."""
    command = [sys.executable, "-m", "stubserve", "fetch", str(REPOSITORY)]
    # One process after another: the first fetches, and no other finds half of it or downloads the same.
    folder = os.open(REPOSITORY, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        os.close(folder)
    if done.returncode:
        pytest.skip(f"the examples' files cannot be fetched: {done.stderr}")

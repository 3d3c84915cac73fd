"""The stub's code in every Python that it promises to run in, each with a numpy of its time."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.environments.made import venv

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "check_interpreter.py"
CHECKS = re.findall(r"^def (check_\w+)", SCRIPT.read_text(), re.MULTILINE)

# The oldest numpy that the stub takes where it can be had, then what each Python can have; None is the newest.
NUMPY = {
    "3.8": "1.21.6",
    "3.9": "1.22.4",
    "3.10": "1.23.5",
    "3.11": "1.26.4",
    "3.12": "2.0.2",
    "3.13": None,
    "3.14": None,
}


@pytest.mark.long
@pytest.mark.parametrize("version", NUMPY)
def test_checks(version: str) -> None:
    done = subprocess.run(
        [venv(version, NUMPY[version]) / "bin" / "python", "-W", "error", SCRIPT],
        env={"PYTHONPATH": str(ROOT / "stub"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(CHECKS)

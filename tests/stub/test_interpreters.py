"""The stub's code in every Python that it promises to run in, each with a numpy of its time.

Environments are made once, in `.venvs/` at the root of the checkout; that needs pyenv's interpreters and a package
index.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "check_interpreter.py"
CHECKS = re.findall(r"^def (check_\w+)", SCRIPT.read_text(), re.MULTILINE)

# The oldest numpy that the stub takes where it can be had, then what each Python can have; None is the newest.
NUMPY = {"3.8": "1.21.6", "3.9": "1.22.4", "3.10": "1.23.5", "3.11": "1.26.4", "3.12": "2.0.2", "3.13": None}


def environment(version: str) -> Path:
    """The interpreter of a cached environment with numpy. Skips the test where it cannot be made."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    if not found:
        pytest.skip(f"pyenv has no Python {version}")
    numpy = NUMPY[version]
    folder = ROOT / ".venvs" / f"{version}-numpy-{numpy or 'newest'}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        requirement = f"numpy=={numpy}" if numpy else "numpy"
        for command in (
            [found[-1], "-m", "venv", "--clear", folder],
            [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", requirement],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no environment with {requirement}: {done.stderr[-500:]}")
        complete.touch()
    return python


@pytest.mark.parametrize("version", NUMPY)
def test_checks(version: str) -> None:
    done = subprocess.run(
        [environment(version), "-W", "error", SCRIPT],
        env={"PYTHONPATH": str(ROOT / "stub"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(CHECKS)

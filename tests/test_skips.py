"""CI bounds how many tests are skipped (`--most-skips` in conftest.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_server import WORK_S

ROOT = Path(__file__).parents[1]
ONE = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_one(number):
    if number:
        pytest.skip("not here")
"""


@pytest.mark.parametrize(("most", "code"), [(3, 0), (2, 1)])
@pytest.mark.parametrize("processes", [0, 1])
def test_more_skips_than_are_known_fail(tmp_path: Path, most: int, code: int, processes: int) -> None:
    """A module that cannot be imported is one."""
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_two.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", f"-n{processes}", f"--most-skips={most}", "."]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, timeout=WORK_S, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert f"3 tests or modules were skipped; {most} may be." in done.stdout, done.stdout + done.stderr
    assert done.returncode == code

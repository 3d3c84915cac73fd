"""What docs/guides/testing.md shows works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example(tmp_path: Path) -> None:
    example = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "guides" / "testing.md").read_text(), re.MULTILINE | re.DOTALL
    )[0]
    (tmp_path / "test_example.py").write_text(example)
    (tmp_path / "model_repository").symlink_to(ROOT / "model_repository")
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout

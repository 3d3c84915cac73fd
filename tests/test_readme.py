"""What the README names is there: files, links, make targets. Its model and commands are tested as every page's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_its_links_and_commands_exist() -> None:
    # Absolute, so that they lead somewhere from the page of the package, too; under an address of pyproject.toml.
    addresses = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", README, re.MULTILINE))
    assert set(re.findall(r"\]\[([^\]]+)\]", README)) == addresses.keys()
    assert "](" not in README
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    for link in addresses.values():
        assert link.startswith(urls["Homepage"] + "/blob/main/"), link
        assert (ROOT / link.removeprefix(urls["Homepage"] + "/blob/main/")).exists(), link
    assert urls["Changelog"] in addresses.values()
    for script in re.findall(r"(?<!/)model_repository/\S+\.py", README):
        assert (ROOT / script).exists(), script
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([\w-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_ci_runs_its_commands_before_all_others() -> None:
    """In a fresh clone and as on a new machine, as somebody does who reads it for the first time."""
    targets = set(re.findall(r"^make ([\w-]+)$", README, re.MULTILINE))
    ci = (ROOT / ".ci" / "run").read_text()
    steps = [re.sub(r" ARGS=.*", "", step) for step in re.findall(r"^step (.*)$", ci, re.MULTILINE)]
    functions = dict(re.findall(r"^(\w+)\(\) \{\n  (.*) &$", ci, re.MULTILINE))
    first = [functions.get(step, step) for step in steps[: len(targets)]]
    assert set(first) == {f'"${{on_new_machine[@]}}" make {target}' for target in targets}
    assert ci.index("git clone") < ci.index("\nstep ")


@pytest.mark.parametrize(
    ("newest", "served"),
    [("src/a/b.py", ".venv/bin/stubserve"), ("src/a/__pycache__/b.cpython-311.pyc", ".venv/compiled/bin/stubserve")],
)
def test_make_serve_takes_what_is_compiled_unless_a_source_is_newer(tmp_path: Path, newest: str, served: str) -> None:
    """Byte code that Python keeps beside the sources is none."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    shutil.copy(ROOT / "Makefile", tmp_path)
    compiled = ".venv/compiled/bin/stubserve"
    names = (
        "pyproject.toml",
        ".venv/bin/python",
        compiled,
        ".venv/.with-client",
        ".venv/.compiled",
        "src/a/b.py",
        newest,
    )
    (tmp_path / "stub").mkdir()
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
        os.utime(tmp_path / name, (0, 1_000_000_000 + (name == newest)))
    shown = subprocess.run(
        ["make", "--dry-run", "serve"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert f"exec {served} serve model_repository " in shown

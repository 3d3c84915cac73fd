"""Packages that bring a backend, as pip would leave them in a folder."""

from __future__ import annotations

from pathlib import Path

from stubserve_stub.backends import cards


def install(site: Path, package: str, entry: str, module: str) -> None:
    """Installs a package whose module has this text, with an entry point for a backend."""
    name, _, place = entry.partition("=")
    (site / f"{place.partition(':')[0]}.py").write_text(module)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{cards.GROUP}]\n{name} = {place}\n")

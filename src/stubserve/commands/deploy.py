"""`stubserve deploy NAME`: the files for running and watching a server elsewhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

_FILES = Path(__file__).parents[1] / "deploy"
NAMES = {
    "systemd": "a unit for one machine",
    "logrotate": "a rotation of the log where it goes to a file",
    "container": "a Containerfile for docker, podman and buildah",
    "kubernetes": "manifests: deployment, service, autoscaler, disruption budget, gateway",
    "kserve": "a serving runtime, and an inference service that names it",
    "haproxy": "a configuration for HAProxy in front of three servers",
    "envoy": "the same for Envoy",
    "nginx": "the same for nginx",
    "prometheus": "a configuration that scrapes a server, and alerts",
    "grafana": "a dashboard",
}
# Their files can be joined: manifests one after the other, for `kubectl apply -f -`.
_JOINED = ("kubernetes", "kserve")


def run(words: Sequence[str]) -> int:
    """Writes the files; 1 if it cannot, else 0."""
    parser = argparse.ArgumentParser(
        prog="stubserve deploy",
        description="Prints files with which a server is deployed, or writes them into a folder.",
        epilog="; ".join(f"{name}: {what}" for name, what in NAMES.items()),
    )
    parser.add_argument("name", metavar="NAME", choices=list(NAMES), help=", ".join(NAMES))
    parser.add_argument("--to", metavar="DIR", type=Path, help="the folder to write them into (they are printed)")
    options = parser.parse_args(words)
    files = sorted((_FILES / options.name).iterdir())
    if options.to is not None:
        return _write(files, options.to)
    if len(files) > 1 and options.name not in _JOINED:
        names = " and ".join(file.name for file in files)
        print(f"error: {options.name} is {names}: say with --to into which folder they go", file=sys.stderr)
        return 1
    sys.stdout.write("---\n".join(file.read_text(encoding="utf-8") for file in files))
    return 0


def _write(files: Sequence[Path], folder: Path) -> int:
    there = [str(folder / file.name) for file in files if (folder / file.name).exists()]
    if there:
        print(f"error: {', '.join(there)} is there already, and nothing was written", file=sys.stderr)
        return 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (folder / file.name).write_bytes(file.read_bytes())
            print(folder / file.name)
    except OSError as error:
        print(f"error: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0

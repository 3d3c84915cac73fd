"""Fuzzes each target in turn, and prints what was found. `python -m tools.fuzz`."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import finding, targets

# How long a process may take to begin and to end beyond the time that it fuzzes.
GRACE_S = 120


@dataclass
class Outcome:
    """What became of one target. `ended` says how where it was not at the end of its time."""

    inputs: int
    findings: list[tuple[str, bytes]]
    ended: str


def main() -> None:
    options = parse_arguments()
    failed = False
    for name in options.targets:
        folder = options.folder / name
        folder.mkdir(parents=True)
        outcome = fuzz(name, folder, options.seconds)
        failed = failed or bool(outcome.findings or outcome.ended)
        print(
            f"{name}: {outcome.inputs or 'an unknown number of'} inputs, {len(outcome.findings)} findings", flush=True
        )
        for what, data in outcome.findings:
            print(f"  {what}\n    {data[:300]!r}{'...' if len(data) > 300 else ''}", flush=True)
        if outcome.ended:
            print(f"  ended early: {outcome.ended}", flush=True)
    print(f"inputs and tracebacks: {options.folder}")
    sys.exit(1 if failed else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description="Fuzzes what reads bytes of strangers.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=targets.NAMES, dest="targets", metavar="TARGET")
    parser.add_argument("--folder", type=Path, help="where findings are kept, a new folder (default: a temporary one)")
    options = parser.parse_args()
    options.targets = options.targets or targets.NAMES
    options.folder = options.folder or Path(tempfile.mkdtemp(prefix="stubserve-fuzz-"))
    return options


def fuzz(name: str, folder: Path, seconds: int) -> Outcome:
    """One target in a process of its own: what goes wrong there ends only that."""
    command = [sys.executable, "-m", "tools.fuzz.guided", name, str(folder), str(seconds)]
    with (folder / "log").open("w+b") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=log, timeout=seconds + GRACE_S).returncode
            ended = "" if code == 0 else f"exit code {code}; see {folder / 'log'}"
        except subprocess.TimeoutExpired:
            ended = "it did not end"
        log.seek(0)
        count = re.search(rb"number_of_executed_units: *([0-9]+)", log.read())
    return Outcome(int(count[1]) if count else 0, finding.read(folder), ended)


if __name__ == "__main__":
    main()

"""The check of a machine with a GPU: a line for each promise. `python -m tools.gpu_check`.

Each promise is tried by a process of its own, so a device that is lost, a crash or a hang fails that row only. Exits
with 1 when a promise does not hold. Where there is no driver nothing is tried, and that is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from stubserve_stub.device.driver import NoDriver

from . import backends, bandwidth, kernels, libraries, memory, other, processes
from .row import MIB, BrokenError, Gpu, NotTriedError, Row

ROWS: list[Row] = [*memory.ROWS, *processes.ROWS, *kernels.ROWS, *bandwidth.ROWS, *libraries.ROWS, *backends.ROWS]
HOLDS, FAILS, NOT_TRIED, MEASURED, NO_DRIVER = "holds", "fails", "not tried", "measured", "no driver"
ROW_S = 90.0
ALL_S = 560.0


@dataclass(frozen=True)
class Outcome:
    """What became of one row, and what there is to tell of it."""

    what: str
    detail: str


def main() -> None:
    options = parse_arguments()
    os.environ[other.DEVICE_VARIABLE] = str(options.device)
    if options.row is not None:
        os.write(options.answer, json.dumps(vars(tried(ROWS[options.row], options.device, options.mib))).encode())
        return
    end = time.monotonic() + ALL_S
    found: list[tuple[Row, Outcome]] = []
    for number, row in enumerate(ROWS):
        left = end - time.monotonic()
        outcome = (
            tried_apart(number, options, min(ROW_S, left))
            if left > 0
            else Outcome(NOT_TRIED, "the ten minutes are over")
        )
        if outcome.what == NO_DRIVER:
            print(f"Nothing was tried: {outcome.detail}.")
            return
        found.append((row, outcome))
        print(f"{outcome.what:<9}  {row.promise}" + (f": {outcome.detail}" if outcome.detail else ""), flush=True)
    counts = {what: sum(outcome.what == what for _, outcome in found) for what in (HOLDS, FAILS, NOT_TRIED, MEASURED)}
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    if options.markdown:
        options.markdown.write_text(markdown(found))
    sys.exit(1 if counts[FAILS] else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description="Checks what docs/gpu.md promises on this machine's GPU."
    )
    parser.add_argument("--device", type=int, default=0, help="which GPU, as the driver counts (default: %(default)s)")
    parser.add_argument(
        "--mib", type=int, default=64, help="size of the copies that are measured (default: %(default)s)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to this file, too")
    # For the processes that try one row each
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def tried(row: Row, number: int, mib: int) -> Outcome:
    """Tries a row in this process."""
    try:
        detail = row.check(Gpu(number, mib * MIB))
    except NoDriver as error:
        return Outcome(NO_DRIVER, str(error))
    except NotTriedError as error:
        return Outcome(NOT_TRIED, str(error))
    except BrokenError as error:
        return Outcome(FAILS, str(error))
    except Exception as error:
        return Outcome(FAILS, f"{type(error).__name__}: {error}")
    return Outcome(MEASURED if row.measures else HOLDS, detail)


def tried_apart(number: int, options: argparse.Namespace, seconds: float) -> Outcome:
    """Tries a row in a process of its own, which is ended with all that it has started."""
    answer, theirs = os.pipe()
    command = [sys.executable, "-m", "tools.gpu_check", f"--row={number}", f"--answer={theirs}"]
    command += [f"--device={options.device}", f"--mib={options.mib}"]
    with (
        open(answer, "rb") as reader,
        subprocess.Popen(
            command, pass_fds=[theirs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        ) as popen,
    ):
        os.close(theirs)
        try:
            said, _ = popen.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(popen.pid, signal.SIGKILL)
            return Outcome(FAILS, f"no end after {seconds:.0f} s")
        if text := reader.read():
            return Outcome(**json.loads(text))
    lines = said.decode(errors="replace").strip().splitlines()
    return Outcome(FAILS, f"its process ended with {popen.returncode}: {lines[-1] if lines else 'it said nothing'}")


def markdown(found: list[tuple[Row, Outcome]]) -> str:
    lines = ["| promise | | |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.promise} | {one.what} | {one.detail} |" for row, one in found)]) + "\n"


if __name__ == "__main__":
    main()

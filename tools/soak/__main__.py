"""Shows that nothing grows, in minutes of load: small requests only, or with --everything all that a server has.

`python -m tools.soak`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.bench.payloads import WrongAnswerError
from tools.bench.servers import ServerError
from tools.bench.wrk import LoadError

from . import everything, steady


def main() -> None:
    options = parse_arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="stubserve-soak-") as folder:
            if options.everything is None:
                steady.run(options, Path(folder))
            elif not everything.run(options, Path(folder)):
                sys.exit(1)
    except (LoadError, ServerError, WrongAnswerError) as error:
        sys.exit(f"soak stopped: {error}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description="Loads stubserve steadily for minutes.")
    parser.add_argument("--minutes", type=int, default=10, help="number of runs (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=60, help="length of one run (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=16, help="requests at a time (default: %(default)s)")
    parser.add_argument(
        "--everything",
        metavar="LIFE",
        type=int,
        nargs="?",
        const=0,
        help="the clients of `make chaos ARGS=--everything` in place of small requests, without its troubles; LIFE is "
        "the number of the life whose server they have (default: 0)",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        type=lambda text: Path(text).absolute(),
        default=Path(sys.executable),
        help="the interpreter whose environment stubserve runs in (default: this one)",
    )
    options = parser.parse_args()
    if options.minutes < 1 or options.seconds < 1:
        parser.error("--minutes and --seconds must be at least 1")
    return options


if __name__ == "__main__":
    main()

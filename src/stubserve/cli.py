"""The command `stubserve`."""

from __future__ import annotations

import gc
import sys

from stubserve.flag_values import UsageError
from stubserve.flags import parse_arguments, usage


def main() -> None:
    """`stubserve serve ...`; also `stubserve --model-repository=...`, so that only a program's name has to change."""
    words = sys.argv[1:]
    if words and words[0] == "check":
        # Imported only when asked for: a server needs none of it.
        from stubserve.commands import check

        raise SystemExit(check.run(words[1:]))
    if words and words[0] == "fetch":
        from stubserve.commands import fetch

        raise SystemExit(fetch.run(words[1:]))
    if words and words[0] == "env":
        from stubserve.commands import env

        raise SystemExit(env.run(words[1:]))
    if (words and words[0] in ("-h", "--help", "help")) or "--help" in words:
        sys.stdout.write(usage())
        return
    if words and words[0] in ("-V", "--version", "version"):
        from stubserve import __version__

        print(__version__)
        return
    if words and words[0] == "serve":
        words = words[1:]
    elif not words:
        sys.stderr.write(usage())
        raise SystemExit(1)
    elif not words[0].startswith("--"):
        raise SystemExit(
            f"stubserve has no command '{words[0]}', only serve, check, fetch and env; 'stubserve --help' says more.\n"
            f"To serve a folder of models: stubserve serve {words[0]}"
        )
    try:
        settings = parse_arguments(words)
    except UsageError as error:
        raise SystemExit(f"{error}\n\n'stubserve serve --help' lists the flags.") from None
    # A tenth of the time that imports take is the collector's, which finds nothing; `run` has it go on.
    gc.disable()
    from stubserve.running import run

    raise SystemExit(run(settings))

"""The command `stubserve`."""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import sys

# Each is a module of stubserve.commands.
COMMANDS = ("init", "check", "ask", "fetch", "env", "deploy", "trace")
# How many threads the BLAS of numpy starts when it is imported
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# The names of `serve` in other programs
_SERVES = ("run", "start", "up", "server")


def main() -> None:
    """`stubserve serve ...`; also `stubserve --model-repository=...`, so that only a program's name has to change."""
    words = sys.argv[1:]
    if words and words[0] in COMMANDS:
        # Imported here, because a server needs no command, and a command no flags of the server.
        try:
            command = importlib.import_module(f"stubserve.commands.{words[0]}")
        except ModuleNotFoundError as error:
            if error.name != "stubserve.commands":
                raise
            raise SystemExit(f"stubserve {words[0]} is one of the tools, which are not installed here") from None
        raise SystemExit(command.run(words[1:]))
    # A tenth of the time of imports is the collector's, which finds nothing; `run` turns it on again.
    gc.disable()
    _import_numpy()
    from stubserve.errors import UsageError
    from stubserve.flags import parse_arguments, usage

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
        raise SystemExit(_unknown_command(words))
    try:
        settings = parse_arguments(words)
    except UsageError as error:
        raise SystemExit(f"{error}\n\n'stubserve serve --help' lists the flags.") from None
    from stubserve.server.running import run

    raise SystemExit(run(settings))


def _import_numpy() -> None:
    """Imports numpy without the thread for each processor that its BLAS would start: a server multiplies no matrices.

    Its models do, so the environment that stubs inherit is as it was.
    """
    given = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    import numpy  # noqa: F401

    del os.environ[_BLAS_THREADS]
    if given is not None:
        os.environ[_BLAS_THREADS] = given


def _unknown_command(words: list[str]) -> str:
    from difflib import get_close_matches

    known = f"serve, {', '.join(COMMANDS[:-1])} and {COMMANDS[-1]}"
    meant = get_close_matches(words[0], ("serve", *COMMANDS), 1) or (["serve"] if words[0] in _SERVES else [])
    advice = (
        f"Did you mean: {shlex.join(['stubserve', *meant, *words[1:]])}"
        if meant
        else f"To serve a folder of models: stubserve serve {shlex.quote(words[0])}"
    )
    return f"stubserve has no command '{words[0]}', only {known}; 'stubserve --help' says more.\n{advice}"

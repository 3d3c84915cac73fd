"""The command `stubserve`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import shlex
import sys
from collections.abc import Iterator

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
            with _no_blas_threads():
                command = importlib.import_module(f"stubserve.commands.{words[0]}")
        except ModuleNotFoundError as error:
            if error.name != "stubserve.commands":
                raise
            raise SystemExit(f"stubserve {words[0]} is one of the tools, which are not installed here") from None
        raise SystemExit(command.run(words[1:]))
    # A tenth of the time of imports is the collector's, which finds nothing; `run` turns it on again.
    gc.disable()
    with _no_blas_threads():
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

    code = run(settings)
    # A tenth of the time of a start would go to taking all objects apart. What waits for the end is done first.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it may be closed
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def _no_blas_threads() -> Iterator[None]:
    """For imports: the BLAS of numpy would start a thread for each processor, and a server multiplies no matrices.

    Its models do, so the environment that stubs inherit is as it was.
    """
    given = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
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

"""`stubserve env build MODEL_DIR` and `stubserve env check MODEL_DIR`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stubserve.checking.inspection import inspect
from stubserve.environments.build import BuildFailed, build
from stubserve.environments.resolve import PARAMETER
from stubserve.errors import ServeError, internal
from stubserve.model_config.complete import copy_of
from stubserve.model_config.parse import parse_text
from stubserve.model_config.source import Source
from stubserve.repository.folder import CONFIG_FILE
from stubserve.settings.groups import DEFAULT_BACKEND_DIRECTORY

_NO_CONFIG = 'backend: "python"\n'


def run(words: Sequence[str]) -> int:
    """Runs one of the two; returns the exit code."""
    parser = argparse.ArgumentParser(prog="stubserve env", description="Environments of models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="build | check")
    building = commands.add_parser(
        "build",
        help="make a packed environment from requirements.txt",
        description="Makes a packed environment from the model's requirements.txt, with uv where it is installed, else "
        "with venv and pip; puts it beside config.pbtxt and names it there.",
    )
    building.add_argument("model", metavar="MODEL_DIR", type=Path, help="the model's folder")
    building.add_argument("--python", default="", metavar="PYTHON", help="version or path of the Python (this one)")
    building.add_argument(
        "--installer",
        choices=("uv", "pip"),
        default="",
        help="pip reads pip.conf, uv does not (uv where it is installed)",
    )
    building.add_argument("--requirements", type=Path, metavar="FILE", help="(MODEL_DIR/requirements.txt)")
    building.add_argument("--output", default="env.tar.gz", metavar="NAME", help="the archive's name (%(default)s)")
    checking = commands.add_parser(
        "check",
        help="import the model in its environment",
        description="Imports the model in its environment, as the server does, and prints what was found there.",
    )
    checking.add_argument("model", metavar="MODEL_DIR", type=Path, help="the model's folder")
    checking.add_argument("--backend-directory", type=Path, default=DEFAULT_BACKEND_DIRECTORY, metavar="DIR")
    checking.add_argument("--environment-cache", type=Path, metavar="DIR", help="where archives are extracted to")
    options = parser.parse_args(words)
    if not options.model.is_dir():
        parser.error(f"{options.model} is not a folder")
    if options.command == "check":
        return _check(options.model, options.backend_directory, options.environment_cache)
    if Path(options.output).name != options.output or not options.output.endswith((".tar.gz", ".tgz")):
        parser.error(f"--output must be a file name that ends in .tar.gz, without folders. Got {options.output}")
    return _build(options.model, options.requirements, options.output, options.python, options.installer)


def _build(model: Path, requirements: Path | None, name: str, python: str, installer: str) -> int:
    requirements = requirements or model / "requirements.txt"
    say = Console(stderr=True, highlight=False, soft_wrap=True).print
    if not requirements.is_file():
        return _fail(f"there is no {requirements}. List the model's packages there, one a line.")
    config = model / CONFIG_FILE
    try:
        # Before the long work, so that a configuration that cannot be changed is reported at once.
        changed = _with_environment(config, f"$$TRITON_MODEL_DIRECTORY/{name}")
        build(requirements, model / name, python, installer, lambda text: say(text, markup=False))
    except (BuildFailed, ServeError) as error:
        return _fail(str(error))
    if not config.exists() or config.read_bytes() != changed.encode():
        config.write_bytes(changed.encode())
    size = (model / name).stat().st_size
    print(f"{model / name}: {size / 1e6:.1f} MB, named in {config} as {PARAMETER}")
    return 0


def _with_environment(file: Path, value: str) -> str:
    """The text of config.pbtxt with the parameter set and nothing else changed. Raises ServeError."""
    try:
        # Bytes, because reading as text would change the line ends
        text = file.read_bytes().decode() if file.exists() else _NO_CONFIG
    except UnicodeDecodeError as error:
        raise internal(f"{file} cannot be changed: no UTF-8 at byte {error.start}") from None
    before = parse_text(text, str(file))
    if PARAMETER in before.parameters and before.parameters[PARAMETER].string_value == value:
        return text
    changed = Source(text).with_string_parameter(PARAMETER, value)
    expected = copy_of(before)
    expected.parameters[PARAMETER].string_value = value
    assert parse_text(changed, str(file)) == expected
    return changed


def _check(model: Path, backend_directory: Path, cache: Path | None) -> int:
    try:
        finding = asyncio.run(inspect(model.resolve(), backend_directory, cache))
    except ServeError as error:
        # As the log of a load has it, with the model's line
        return _fail(error.log_message)
    if sys.stdout.isatty():
        table = Table(show_header=False, box=None)
        for name, value in finding.rows.items():
            table.add_row(f"[bold]{name}[/bold]", value)
        Console(highlight=False).print(table)
    else:
        for name, value in finding.rows.items():
            print(f"{name}: {value}")
    if "execute" not in finding.methods:
        return _fail(f"Python model {finding.file} does not implement `execute` method.")
    return 0


def _fail(text: str) -> int:
    print(f"error: {text.rstrip()}", file=sys.stderr)
    return 1

"""`stubserve check REPOSITORY...`: every problem of a repository, without serving it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from stubserve.checking.problems import Problem, Report
from stubserve.checking.repository import check_repositories
from stubserve.errors import ServeError, UsageError
from stubserve.flags.values import parse_gpu_fallback
from stubserve.repository.given_path import advice, advice_for, servable
from stubserve.settings.groups import DEFAULT_AGENT_DIRECTORY, DEFAULT_BACKEND_DIRECTORY


def run(words: Sequence[str]) -> int:
    """Prints the problems; 1 if one keeps a model from being served, else 0."""
    parser = argparse.ArgumentParser(
        prog="stubserve check",
        description="Checks every model of a repository without serving it: configuration, versions, files, model.py. "
        "Prints all problems with file and line. The exit code is 1 if there are errors; warnings do not count.",
    )
    parser.add_argument(
        "repositories", metavar="REPOSITORY", type=Path, nargs="+", help="a folder of models, or a model's"
    )
    parser.add_argument(
        "--backend-directory",
        type=Path,
        default=DEFAULT_BACKEND_DIRECTORY,
        metavar="DIR",
        help="backends written in Python: <name>/model.py (%(default)s)",
    )
    parser.add_argument(
        "--repoagent-directory",
        type=Path,
        default=DEFAULT_AGENT_DIRECTORY,
        metavar="DIR",
        help="repository agents written in Python: <name>/agent.py (%(default)s)",
    )
    parser.add_argument(
        "--gpu-fallback",
        type=_gpu_fallback,
        default=False,
        metavar="cpu|none",
        help="check what `serve` with this flag would serve (none)",
    )
    options = parser.parse_args(words)
    with ExitStack() as links:
        # Repositories, or single models, as `serve` takes them
        repositories = [servable(path, links) for path in options.repositories]
        for repository in repositories:
            if not repository.is_dir():
                parser.error(advice(repository))
        try:
            report = check_repositories(
                repositories, options.backend_directory, options.gpu_fallback, options.repoagent_directory
            )
        except ServeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if not report.models or report.errors:
            for text in advice_for(repositories):
                print(f"hint: {text}", file=sys.stderr)
    report = _as_given(report, dict(zip(repositories, options.repositories, strict=True)))
    if sys.stdout.isatty():
        _show(report)
    else:
        for problem in report.problems:
            print(problem)
        print(_summary(report))
    return 1 if report.errors else 0


def _as_given(report: Report, repositories: dict[Path, Path]) -> Report:
    """The report with the user's own paths, where a lone file was linked into a repository to be checked."""
    for repository, given in repositories.items():
        if given.absolute().is_relative_to(repository.absolute()):
            continue
        folder = str(given if given.is_dir() else given.parent)

        def own(text: str, linked: str = str(repository), folder: str = folder) -> str:
            return text.replace(f"{linked}/1", folder).replace(linked, folder)

        problems = (replace(one, file=Path(own(str(one.file))), text=own(one.text)) for one in report.problems)
        report = replace(report, problems=tuple(problems))
    return report


def _gpu_fallback(text: str) -> bool:
    try:
        return parse_gpu_fallback(text)
    except UsageError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def _summary(report: Report) -> str:
    warnings = len(report.problems) - report.errors
    counts = ((len(report.models), "model"), (report.errors, "error"), (warnings, "warning"))
    return ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)


def _show(report: Report) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for model, problems in groupby(report.problems, key=lambda problem: problem.model):
        console.print(f"[bold]{escape(model or 'repository')}[/bold]")
        for problem in problems:
            console.print(_line(problem))
    color = "red" if report.errors else "green"
    console.print(f"[{color}]{_summary(report)}[/{color}]")


def _line(problem: Problem) -> str:
    kind = "[yellow]warning[/yellow]" if problem.is_warning else "[red]error[/red]"
    place = f"{problem.file}:{problem.line}" if problem.line else str(problem.file)
    text = problem.text.rstrip().replace("\n", "\n      ")
    return f"  {kind} [cyan]{escape(place)}[/cyan]\n      {escape(text)}"

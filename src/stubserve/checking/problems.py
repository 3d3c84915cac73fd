"""What a check has found: problems with their places, and the report of all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """One thing to put right. `file` is the file to open, or the folder with the problem; `line` is 0 if there is none.

    A warning does not keep a model from being served.
    """

    model: str
    file: Path
    line: int
    text: str
    is_warning: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{place}: {'warning' if self.is_warning else 'error'}: {self.text}"


@dataclass(frozen=True)
class Report:
    """The models that were checked, and their problems."""

    models: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> int:
        return sum(not problem.is_warning for problem in self.problems)


@contextmanager
def log_as_problems(model: str, file: Path, found: list[Problem]) -> Iterator[None]:
    """Collects what the repository's code writes to the log, as problems of a folder."""

    class ProblemHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            is_warning = record.levelno < logging.ERROR
            found.append(Problem(model, file, 0, record.getMessage(), is_warning=is_warning))

    logger = logging.getLogger("stubserve.repository")
    handler, propagate = ProblemHandler(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate

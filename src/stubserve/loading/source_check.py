"""Checks of a `model.py` without running it: it parses, it has the class, the class has `execute`.

A method whose name is nearly that of a hook (`excute`, `initialise`) is named, because the server would never call it.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CLASS = "TritonPythonModel"
_HOOKS = ("auto_complete_config", "initialize", "execute", "is_ready", "finalize")
# The likeness of two names, from 0 to 1, from which one is taken for a misspelling of the other
_ALIKE = 0.8


@dataclass(frozen=True)
class SourceProblem:
    """A problem in a source. `line` counts from 1; 0 for the whole file. A warning may be intended code."""

    line: int
    text: str
    is_warning: bool = False


def source_problems(file: Path, runs_here: bool) -> Iterator[SourceProblem]:
    """The problems in the file of a model or backend.

    Unless it `runs_here`, in this interpreter, a syntax error is only a warning: the model may have another one.
    """
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except FileNotFoundError:
        yield SourceProblem(0, f"Python model file not found in '{file}'")
        return
    except OSError as error:
        yield SourceProblem(0, f"cannot be read: {error.strerror}")
        return
    except (SyntaxError, ValueError) as error:
        line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        if runs_here:
            yield SourceProblem(line, f"{type(error).__name__}: {text}")
        else:
            yield SourceProblem(line, f"not Python that this interpreter understands: {text}", is_warning=True)
        return
    if _CLASS in _bound_names(tree):
        return
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS), None)
    if model is None:
        if not _may_come_from_elsewhere(tree):
            yield SourceProblem(0, f"does not define the class {_CLASS}")
        return
    if not model.bases and "execute" not in _methods(model) | _bound_names(model):
        yield SourceProblem(model.lineno, f"Python model {file} does not implement `execute` method.")
    yield from _slips(model)


def misspelt_hooks(file: Path) -> list[SourceProblem]:
    """The methods of a model that are nearly hooks; none if the file cannot be read or parsed, or has no class."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError):
        return []
    models = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS)
    return [problem for model in models for problem in _slips(model)]


def completes_config(file: Path) -> bool:
    """Whether the file seems to define `auto_complete_config`, so that a configuration may be incomplete."""
    try:
        return b"auto_complete_config" in file.read_bytes()
    except OSError:
        return False


def _slips(model: ast.ClassDef) -> Iterator[SourceProblem]:
    """A warning for each method that is nearly a hook which the class lacks."""
    missing = [hook for hook in _HOOKS if hook not in _methods(model) | _bound_names(model)]
    for method in model.body:
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for hook in difflib.get_close_matches(method.name.strip("_").lower(), missing, 1, _ALIKE):
                text = f"the server never calls the method `{method.name}`; did you mean `{hook}`?"
                yield SourceProblem(method.lineno, text, is_warning=True)


def _bound_names(node: ast.Module | ast.ClassDef) -> set[str]:
    """Names that an import or an assignment makes, whatever their values."""
    names: set[str] = set()
    for statement in node.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return names


def _may_come_from_elsewhere(tree: ast.Module) -> bool:
    """Whether the class may come about in a way unseen here: in an `if` or `try`, by `import *` or `exec`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == _CLASS:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in (_CLASS, "*"):
            return True
        if isinstance(node, ast.Name) and node.id in (_CLASS, "globals", "exec"):
            return True
    return False


def _methods(model: ast.ClassDef) -> set[str]:
    return {one.name for one in model.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}

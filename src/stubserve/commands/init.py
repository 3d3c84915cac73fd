"""`stubserve init NAME`: a new model's folder, with a client and a test that work as they are.

With `--from FILE` it is the folder of a model that is there as a file (`init_from`).

`stubserve init --backend NAME` writes a package that brings a backend, with a test.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stubserve_stub.backends.cards import built_in, card_of

from stubserve.commands import init_from
from stubserve.commands.model_file import CannotLook
from stubserve.errors import ServeError, invalid
from stubserve.repository.folder import CONFIG_FILE, check_model_name

_TEMPLATES = Path(__file__).parent / "new-model"
_FILES = ("1/model.py", CONFIG_FILE, "client.py", "test_model.py")
_BACKEND_TEMPLATES = Path(__file__).parent / "new-backend"
# In the package's folder; the others lie in the module's
_OUTSIDE = ("pyproject.toml", "test_backend.py")
# A name for a Python module, and for a package, which may not end with a "_"
_BACKEND_NAME = re.compile(r"[a-z](?:[a-z0-9_]*[a-z0-9])?")
_CLASS = b"class TritonPythonModel:\n"


def run(words: Sequence[str]) -> int:
    """Writes the folder; 1 if it cannot, else 0."""
    parser = argparse.ArgumentParser(
        prog="stubserve init",
        description="Writes the folder of a new model, with comments: a model.py to change, config.pbtxt, a client and "
        "a test. All of it works as it is.",
    )
    parser.add_argument("folder", metavar="NAME", type=Path, help="the model's name, or where its folder is to be")
    parser.add_argument(
        "--no-config", action="store_true", help="no config.pbtxt: model.py says itself what it takes and gives"
    )
    parser.add_argument(
        "--from",
        dest="file",
        metavar="FILE",
        type=Path,
        help="the folder is for this model: a pickle or a file of joblib (.pkl, .pickle, .joblib), XGBoost (.json, "
        ".ubj), LightGBM (.txt) or ONNX (.onnx). The file is loaded to see what it takes; a pickle is a program",
    )
    parser.add_argument(
        "--backend", action="store_true", help="a package that brings the backend NAME, in place of a model's folder"
    )
    options = parser.parse_args(words)
    if options.file is not None and (options.backend or options.no_config):
        parser.error("--from goes with neither --backend nor --no-config")
    folder: Path = options.folder
    name = folder.absolute().name
    try:
        (_check_backend_name if options.backend else check_model_name)(name)
    except ServeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        if options.backend:
            steps = write_backend(folder)
        elif options.file is not None:
            steps = write_model_of(folder, options.file)
        else:
            steps = write_model(folder, with_config=not options.no_config)
    except FileExistsError:
        print(f"error: {folder} is there already, and nothing in it was changed. Choose another name.", file=sys.stderr)
        return 1
    except CannotLook as error:
        print(f"error: {options.file}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        what = "read" if error.filename == str(options.file) else "written"
        print(f"error: {error.filename} cannot be {what}: {error.strerror}", file=sys.stderr)
        return 1
    for line in steps:
        print(line)
    return 0


def write_model(folder: Path, with_config: bool = True) -> list[str]:
    """Writes a new model into `folder`, which must not exist, and says what to do next. Raises OSError."""
    contents = {place: (_TEMPLATES / place).read_bytes() for place in _FILES}
    if not with_config:
        del contents[CONFIG_FILE]
        method = (_TEMPLATES / "auto_complete_config.txt").read_bytes()
        contents["1/model.py"] = contents["1/model.py"].replace(_CLASS, _CLASS + method)
    _write(folder, contents)
    return _next_steps(folder, f"a model that doubles its input; edit {folder / '1' / 'model.py'} to make it yours.")


def write_model_of(folder: Path, file: Path) -> list[str]:
    """Writes the folder of the model in `file` into `folder`, which must not exist, and says what to do next.

    Raises OSError, and CannotLook if the file does not say what its model takes.
    """
    _check_is_new(folder)
    found = init_from.look(file)
    _write(folder, init_from.contents(file, found))
    return _next_steps(folder, f"{init_from.described(found)}.")


def write_backend(folder: Path) -> list[str]:
    """Writes a package with a backend into `folder`, which must not exist, and says what to do next. Raises OSError."""
    name = folder.absolute().name
    module = f"stubserve_{name}"
    contents = {f"{module}/__init__.py": b""}
    for template in sorted(_BACKEND_TEMPLATES.iterdir()):
        if template.is_file():
            place = template.name if template.name in _OUTSIDE else f"{module}/{template.name}"
            contents[place] = template.read_bytes().replace(b"newbackend", name.encode())
    _write(folder, contents)
    return _next_steps_of_backend(folder)


def _check_backend_name(name: str) -> None:
    """Raises ServeError for a name that cannot be that of a backend and of its module."""
    if not _BACKEND_NAME.fullmatch(name):
        raise invalid(
            "the name of a backend has small letters, digits and _, begins with a letter, and does not end with _; "
            f"got '{name}'"
        )
    if name in built_in() or card_of(name).program:
        raise invalid(f"there is a backend '{name}' already; choose another name")


def _check_is_new(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(folder)


def _write(folder: Path, contents: Mapping[str, bytes | Path]) -> None:
    """Writes these files, or copies of them, into a new or empty folder. Raises OSError."""
    _check_is_new(folder)
    for place, content in contents.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, file)
        else:
            file.write_bytes(content)


def _next_steps(folder: Path, what: str) -> list[str]:
    name = shlex.quote(str(folder))
    return [
        f"{folder}: {what}",
        f"  stubserve serve {name} --dev    serves it, and again whenever a file of it is saved",
        f"  python {shlex.quote(str(folder / 'client.py'))}    asks it",
        f"  python -m pytest {name}    tests it without a server",
    ]


def _next_steps_of_backend(folder: Path) -> list[str]:
    name = shlex.quote(str(folder))
    backend = folder / f"stubserve_{folder.absolute().name}" / "backend.py"
    return [
        f"{folder}: a package whose backend multiplies its input; edit {backend} to make it yours.",
        f'  pip install pytest -e {name}    lets the server find it: backend: "{folder.absolute().name}"',
        f"  python -m pytest {name}    tests it in a server",
    ]

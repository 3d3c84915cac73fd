"""The meaning of a path on the command line that is no model repository: one model, or something close to one.

`stubserve serve` also takes the folder of one model (`folder.is_model_folder`), a version's folder, and a file that is
a model: `model.py`, another module, or GGUF. A lone file has no version folder and maybe no name of its own, so a
repository is made of links to it; the model is named after its folder, or its file.

For any other path `advice` explains which folder may have been meant, and what a repository is.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from stubserve_stub.backends.cards import all_cards

from stubserve.errors import ServeError
from stubserve.repository.folder import CONFIG_FILE, holds_models, is_model_folder, is_version_folder, survey

_MODEL_FILE = "model.py"


def servable(path: Path, until: ExitStack) -> Path:
    """The repository, or folder of a model, for a path. Temporary folders are removed when `until` is closed."""
    if path.is_dir():
        if is_version_folder(path):
            return path.absolute().parent
        lone = path / _MODEL_FILE
        is_lone = lone.is_file() and not is_model_folder(path) and not holds_models(path)
        return _linked(lone, until) if is_lone else path
    if path.is_file():
        if is_version_folder(path.parent):
            return path.absolute().parent.parent
        if _backend_of(path):
            return _linked(path, until)
    return path


def _linked(file: Path, until: ExitStack) -> Path:
    """A model's folder that is made of links to a file outside of any version folder."""
    place = file.absolute().parent
    named_by_folder = file.name == _MODEL_FILE and place.name
    scratch = Path(until.enter_context(tempfile.TemporaryDirectory(prefix="stubserve-model-")))
    folder = scratch / (place.name if named_by_folder else file.stem)
    folder.mkdir()
    # The whole folder becomes the version's: the model can import the files beside its own.
    (folder / "1").symlink_to(place)
    if (place / CONFIG_FILE).is_file():
        (folder / CONFIG_FILE).symlink_to(place / CONFIG_FILE)
    elif file.name != _MODEL_FILE:
        text = f'backend: "{_backend_of(file)}"\ndefault_model_filename: "{file.name}"\n'
        (folder / CONFIG_FILE).write_text(text)
    return folder


def _backend_of(file: Path) -> str:
    """The backend of a file outside of a version's folder, by its ending; empty if there is none."""
    return next((card.name for card in all_cards() if file.suffix in card.lone_endings), "")


def advice(path: Path) -> str:
    """Advice for a path without anything to serve; empty if there are models in it."""
    if not path.exists():
        close = difflib.get_close_matches(path.name, _folders(path.absolute().parent), 1)
        meant = f" Did you mean '{path.parent / close[0]}'?" if close else ""
        return f"'{path}' does not exist.{meant}"
    if not path.is_dir():
        return f"'{path}' is neither a folder of models, nor a model.py, nor a GGUF file."
    if is_model_folder(path):
        return ""
    try:
        models = [folder.path for folder in survey([path]).models.values()]
    except ServeError:
        return ""  # the error for this folder comes from elsewhere
    if any(map(is_model_folder, models)):
        return ""
    for folder in models:
        if any(is_model_folder(folder / name) for name in _folders(folder)):
            return f"there are no models in {path}, but there are in {folder}: name that one"
    return (
        f"there are no models in {path}. A model is a folder in it, with a folder for each version: "
        f"{path / 'NAME' / '1' / _MODEL_FILE}. To begin with one: stubserve init {path / 'NAME'}"
    )


def advice_for(paths: Sequence[Path]) -> list[str]:
    return [text for text in map(advice, paths) if text]


def _folders(path: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir()]
    except OSError:
        return []

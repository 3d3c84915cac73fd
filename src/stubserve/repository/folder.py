"""The local model repository: its models, the versions that may be served, and the contents of their files.

    <repository>/<model>/config.pbtxt
    <repository>/<model>/configs/<name>.pbtxt
    <repository>/<model>/<version>/...

A repository may also be the folder of one model: then it holds that one.

This module reads names and small files on demand and keeps nothing: the caller decides when to look again. It differs
from upstream on purpose in three points. Upstream takes hidden folders and `__pycache__` for models and, with its
default settings, refuses to start because of them; it reads `1abc`, `+1` and `1.5` as version 1 and then looks for a
folder `1`; and a version number beyond 64 bits aborts its process.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stubserve_stub.backends.cards import model_files

from stubserve.errors import Code, ServeError, internal, invalid, not_found
from stubserve.model_config.parse import decode_text, parse_text
from stubserve.model_config.proto import ModelConfig

_log = logging.getLogger("stubserve.repository")

CONFIG_FILE = "config.pbtxt"
# Between a namespace and a name
BETWEEN = "::"
DUPLICATE_REASON = "model appears in two or more repositories"

# Folders in a model's folder that are not versions. Those that a parameter names are not, either.
_NOT_VERSIONS = frozenset({"warmup", "initial_state", "configs"})

# Characters that upstream's Python backend refuses in a name, because it once passed names through a shell.
_FORBIDDEN = frozenset(";|&$`<>()[]{}\\\"'*?~#!")

_MAX_VERSION = 2**63 - 1


@dataclass(frozen=True)
class ModelFolder:
    """A model's place on disk. `path` is `repository / name`, or a copy, which `held` keeps from being removed.

    `namespace` is empty if there are no namespaces.
    """

    name: str
    path: Path = field(compare=False)
    repository: Path
    namespace: str = ""
    held: object = field(default=None, compare=False)
    # Whether the model is served under another name than that of its folder and configuration
    renamed: bool = False

    @property
    def key(self) -> str:
        return key_of(self.namespace, self.name)

    def version_path(self, version: int) -> Path:
        return self.path / str(version)


def key_of(namespace: str, name: str) -> str:
    """A model's unique key; its name if there are no namespaces."""
    return f"{namespace}{BETWEEN}{name}" if namespace else name


def name_of(key: str, namespacing: bool) -> str:
    return key.rpartition(BETWEEN)[2] if namespacing else key


@dataclass(frozen=True)
class Survey:
    """The contents of the repositories: the models that can be served, and names that more than one repository has."""

    models: dict[str, ModelFolder]
    duplicates: frozenset[str]


def check_model_name(name: str) -> None:
    """Refuses a name that no model folder can have. Raises ServeError INVALID_ARG."""
    if not name.strip():
        raise invalid("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\\" in name or name in (".", ".."):
        raise invalid(f"invalid model name '{name}', model name must not contain path traversal characters")
    if not _FORBIDDEN.isdisjoint(name) or not name.isprintable():
        raise invalid("Invalid stub name: contains invalid characters")


def survey(repositories: Sequence[Path]) -> Survey:
    """Lists all repositories. As upstream, a model in two of them is served from neither.

    Folders with impossible model names are left out with a warning. Raises ServeError INTERNAL for an unreadable
    repository.
    """
    found: dict[str, ModelFolder] = {}
    duplicates: set[str] = set()
    for repository in repositories:
        for name, path in _models_in(repository):
            if name in found:
                duplicates.add(name)
            else:
                found[name] = ModelFolder(name, path, path.parent)
    for name in sorted(duplicates):
        _log.error("failed to poll model '%s': not unique across all model repositories", name)
        del found[name]
    return Survey({name: found[name] for name in sorted(found)}, frozenset(duplicates))


def locate(repositories: Sequence[Path], name: str) -> ModelFolder:
    """One model by name, without listing the repositories.

    Raises ServeError INVALID_ARG for an impossible name; NOT_FOUND if no repository, or more than one, has the model.
    """
    check_model_name(name)
    places = [path for repository in repositories if (path := _place(repository, name)) is not None]
    if len(places) == 1:
        return ModelFolder(name, places[0], places[0].parent)
    raise not_found(DUPLICATE_REASON if places else "model not found in any model repository")


def list_names(repositories: Sequence[Path]) -> dict[str, bool]:
    """The names in all repositories, and whether each is in only one.

    Raises as `survey`, which also warns about bad names.
    """
    names: dict[str, bool] = {}
    for repository in repositories:
        for name, _ in _models_in(repository, quiet=True):
            names[name] = name not in names
    return names


def model_names(folders: Iterable[str], repository: object, quiet: bool = False) -> list[str]:
    """The possible model names among a repository's folders, on disk or in the cloud.

    Hidden ones are left out; so are impossible names, with a warning.
    """
    names = []
    for name in folders:
        if _is_hidden(name) and name not in (".", ".."):
            continue
        try:
            check_model_name(name)
        except ServeError as error:
            if not quiet:
                _log.warning("ignore model directory '%s/%s': %s", repository, name, error)
            continue
        names.append(name)
    return names


def is_model_folder(path: Path) -> bool:
    """Whether a folder is a model's rather than a repository: it has versions with files, or a configuration.

    A configuration may also lie in a repository, where it has no effect.
    """
    return _has_versions(path) or ((path / CONFIG_FILE).is_file() and not holds_models(path))


def holds_models(path: Path) -> bool:
    """Whether a folder is a repository with models in it, whatever files lie beside them."""
    folders = _folders(path)
    if any(name.isdecimal() for name in folders):
        return False
    models = [path / name for name in folders if not _is_hidden(name)]
    return any((model / CONFIG_FILE).is_file() or _has_versions(model) for model in models)


def _has_versions(path: Path) -> bool:
    return any(is_version_folder(path / name) for name in _folders(path) if name.isdecimal())


def _folders(path: Path) -> list[str]:
    with contextlib.suppress(ServeError):
        return _subfolders(path)
    return []


def is_version_folder(path: Path) -> bool:
    """Whether a folder is a model's version: its name is a number, and it has the file of a model."""
    name = path.absolute().name
    return name.isascii() and name.isdecimal() and any((path / file).exists() for file in model_files())


def _models_in(repository: Path, quiet: bool = False) -> list[tuple[str, Path]]:
    """Names and folders of possible models. Raises ServeError INTERNAL."""
    if is_model_folder(repository):
        path = repository.absolute()
        return [(name, path) for name in model_names([path.name], path.parent, quiet)]
    if not quiet and (repository / CONFIG_FILE).is_file():
        _log.warning("ignore '%s': it belongs in the folder of a model, beside its versions", repository / CONFIG_FILE)
    return [(name, repository / name) for name in model_names(_subfolders(repository), repository, quiet)]


def _place(repository: Path, name: str) -> Path | None:
    """The folder of a model of this name, found without listing the repository."""
    if os.path.isdir(repository / name):
        return repository / name
    path = repository.absolute()
    return path if path.name == name and is_model_folder(path) else None


def _is_hidden(name: str) -> bool:
    return (name.startswith(".") and name.strip(".") != "") or name == "__pycache__"


def read_config(folder: ModelFolder, config_name: str = "", required: bool = False) -> ModelConfig | None:
    """The parsed configuration file, or None if the model has none and it is not `required`.

    With `config_name` (--model-config-name) `configs/<config_name>.pbtxt` is read if it exists. Raises ServeError
    INTERNAL, naming the file that can not be read or parsed.
    """
    path, text = config_text(folder, config_name, required)
    return None if text is None else parse_text(text, str(path))


def config_text(folder: ModelFolder, config_name: str = "", required: bool = False) -> tuple[Path, str | None]:
    """The configuration file that `read_config` parses, and its text. Raises as `read_config`."""
    path = folder.path / CONFIG_FILE
    if config_name:
        custom = folder.path / "configs" / f"{config_name}.pbtxt"
        if custom.exists():
            path = custom
    try:
        content = path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not required:
            return path, None
        raise _unopenable(path, error) from None
    try:
        return path, decode_text(content)
    except UnicodeDecodeError as error:
        raise internal(f"failed to read text proto from {path}: no UTF-8 at byte {error.start}") from None


def available_versions(folder: ModelFolder, config: ModelConfig) -> list[int]:
    """The versions that the version policy of `config` selects among those on disk, ascending and never empty.

    Raises ServeError INVALID_ARG if the policy leaves none; INTERNAL if the folder can not be read.
    """
    existing = _versions_on_disk(folder, config)
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "specific":
        selected = []
        for version in sorted(set(policy.specific.versions)):
            if version in existing:
                selected.append(version)
            else:
                _log.error(
                    "version %d is specified for model '%s', but the version directory is not present",
                    version,
                    folder.name,
                )
    elif choice == "latest":
        keep = policy.latest.num_versions
        selected = existing[-keep:] if keep else []
    else:
        selected = existing
    if not selected:
        error = invalid(f"at least one version must be available under the version policy of model '{folder.name}'")
        if not existing:
            error.log_message += f". {_how_to_make_a_version(folder.path, config)}"
        raise error
    return selected


def misplaced_file(path: Path) -> str | None:
    """What to do with the file of a model that lies in the model's folder, where that has none for a version."""
    if not (path / "1").exists():
        for file in model_files():
            if (path / file).is_file():
                version = path / "1"
                return f"{file} belongs in a folder for its version: mkdir {version} && mv {path / file} {version}"
    return None


def _how_to_make_a_version(path: Path, config: ModelConfig) -> str:
    """Advice for a model's folder without a folder for a version."""
    advice = misplaced_file(path)
    if advice is not None:
        return advice
    if config.HasField("ensemble_scheduling"):
        return (
            "An ensemble needs a folder for its version, too, which may be empty (git keeps it with a file in it, "
            f"as .gitkeep): mkdir {path / '1'}"
        )
    return f"Make a folder for its version, with the model's file in it: {path / '1' / 'model.py'}"


def _versions_on_disk(folder: ModelFolder, config: ModelConfig) -> list[int]:
    versions = []
    named = {value.string_value.partition("/")[0] for value in config.parameters.values()}
    for name in _subfolders(folder.path):
        if name in _NOT_VERSIONS or _is_hidden(name):
            continue
        if len(name) > 1 and name.startswith("0"):
            _log.warning(
                "ignore version directory '%s' which contains leading zeros in its directory name", folder.path / name
            )
        elif not (name.isascii() and name.isdigit() and int(name) <= _MAX_VERSION):
            if name not in named:
                fault = "fails to convert to integral number"
                _log.warning("ignore version directory '%s' which %s", folder.path / name, fault)
        else:
            versions.append(int(name))
    return sorted(versions)


def read_labels(folder: ModelFolder, config: ModelConfig) -> dict[str, list[str]]:
    """The labels of each output that names a label file, one per line, by output name.

    Raises ServeError UNSUPPORTED for a file outside the model's folder (also through a link); INTERNAL if it can not be
    read or the output has two.
    """
    labels: dict[str, list[str]] = {}
    for output in config.output:
        if not output.label_filename:
            continue
        # Joined as text: upstream, too, looks for "/labels.txt" inside the model's folder.
        path = Path(f"{folder.path}/{output.label_filename.lstrip('/')}")
        if not path.resolve().is_relative_to(folder.path.resolve()):
            raise ServeError(
                Code.UNSUPPORTED,
                f"label file path '{path}' for output '{output.name}' in model '{folder.name}' is outside model "
                "directory",
            )
        try:
            text = path.read_bytes().decode("utf-8", errors="replace")
        except OSError as error:
            raise _unopenable(path, error) from None
        if output.name in labels:
            raise internal(f"multiple label files for '{output.name}'")
        lines = text.split("\n")
        labels[output.name] = lines[:-1] if lines[-1] == "" else lines
    return labels


def _subfolders(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    except OSError as error:
        raise internal(f"failed to open directory {path}: {error.strerror}") from None


def _unopenable(path: Path, error: OSError) -> ServeError:
    return internal(f"failed to open text file for read {path}: {error.strerror}")

"""A candidate: a folder and a checked configuration for a load, before any process is started.

Both come from the model repository, or from the request to load, which may have another configuration (JSON), and
files. Files get a folder of their own, without anything else; upstream demands a configuration with them. Such a folder
belongs to the model that it was made for, and is removed with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stubserve.errors import ServeError, internal, invalid, raise_first
from stubserve.gpus import NO_GPUS, Gpus, supported
from stubserve.model_config.complete import gpu_groups, normalise, usable_gpus, without_instances
from stubserve.model_config.parse import find_templates, parse_json, parse_text
from stubserve.model_config.proto import ModelConfig
from stubserve.model_config.validate import validate_directory_name, validate_model
from stubserve.model_config.validate_io import io_problems
from stubserve.repository.contents import Contents, contents_of
from stubserve.repository.folder import ModelFolder, check_model_name, config_text, misplaced_file
from stubserve.repository.model_files import absent_files
from stubserve.settings.groups import RepositorySettings

if TYPE_CHECKING:
    from stubserve.repository.agents.chain import Chain

log = logging.getLogger("stubserve.repository")

# The remark about a model that is configured for GPUs and served on the CPU
RUNS_ON_CPU = "instances for GPUs run on the CPU, as --gpu-fallback=cpu says"


@dataclass(frozen=True)
class Candidate:
    """A model that may be loaded.

    `override` is the configuration (JSON) of a request to load. `contents` are the folder's before its first file was
    read; None if the folder was made for this load (`made`). With repository agents, `asked` is the candidate that they
    were called for. `gpus` are those that models may run on.
    """

    folder: ModelFolder
    config: ModelConfig
    has_config: bool
    override: str | None = None
    contents: Contents | None = None
    agents: Chain | None = None
    asked: Candidate | None = None
    gpus: Gpus = NO_GPUS

    @property
    def made(self) -> bool:
        return self.contents is None

    def remove(self) -> None:
        """Removes the folder if it was made for this load."""
        if self.asked is not None:
            self.asked.remove()
        elif self.made:
            shutil.rmtree(self.folder.path, ignore_errors=True)

    def is_same(self, served: Candidate) -> bool:
        """Whether this candidate equals the serving one: the same files, unchanged, and the same configuration."""
        if served.asked is not None:
            return self.is_same(served.asked)
        return (
            self.contents is not None
            and (self.contents, self.folder, self.has_config) == (served.contents, served.folder, served.has_config)
            and (self.override, self.config) == (served.override, served.config)
        )

    def continues(self, served: Candidate, version: int) -> bool:
        """Whether this version, served from `served`, needs at most other instances to match this candidate.

        As upstream: nothing else differs in the configuration, and nothing in the model's folder but config.pbtxt and
        the folders of other versions.
        """
        old, new = served.contents, self.contents
        if old is None or new is None or self.agents is not None:
            return False
        return (
            old.versions.get(str(version)) == new.versions.get(str(version))
            and (old.rest, served.folder, served.has_config) == (new.rest, self.folder, self.has_config)
            and without_instances(served.config) == without_instances(self.config)
        )


def check_parameters(name: str, files: Mapping[str, bytes]) -> None:
    """Raises ServeError INVALID_ARG for an impossible model name, or a path that leaves the model's folder."""
    check_model_name(name)
    for path in files:
        normal = _normal(path)
        if normal in (".", "..") or normal.startswith("../") or "\0" in path:
            raise invalid(
                f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model "
                "directory."
            )


def read_candidate(
    folder: ModelFolder, settings: RepositorySettings, override: str | None, contents: Contents | None = None
) -> Candidate:
    """Raises ServeError that names the fault of the configuration."""
    if override is not None:
        written: ModelConfig | None = parse_json(override)
    else:
        # Without a file, only the model itself knows its inputs and outputs.
        path, text = config_text(folder, settings.config_name, required=settings.disable_auto_complete)
        written = None if text is None else parse_text(text, str(path))
        for template in find_templates(text or "", in_string=True):
            log.warning("%s:%d: %s", path, template.line, template.remark)
    given = written if written is not None else ModelConfig()
    if folder.renamed:
        given.ClearField("name")
    gpus = supported(settings.least_capability)
    try:
        config = normalise(given, folder.name, folder.path, gpu_to_cpu=settings.gpu_to_cpu, gpus=gpus)
    except ServeError as error:
        # The file of a version would have told which backend is meant.
        advice = None if written is not None else misplaced_file(folder.path)
        if advice is not None:
            error.log_message += f" {advice}"
        raise
    validate_directory_name(config, folder.name)
    validate_model(config)
    if settings.disable_auto_complete:
        # The configuration is final; otherwise the model may add to its tensors, and they are checked after that.
        raise_first(io_problems(config))
    absent = absent_files(folder.path)
    if absent:
        log.warning("model '%s' lacks %s", folder.name, absent)
    if settings.gpu_to_cpu and gpu_groups(given, usable_gpus(config.backend, gpus)):
        log.warning("model '%s': %s", folder.name, RUNS_ON_CPU)
    return Candidate(folder, config, written is not None, override, contents, gpus=gpus)


def find_candidate(
    folder: ModelFolder, settings: RepositorySettings, override: str | None, served: Candidate | None
) -> Candidate:
    """A model of the repository.

    The override of `served` counts until a file of the model changes. Raises ServeError.
    """
    contents = contents_of(folder.path)
    if override is None and served is not None and served.contents == contents:
        override = served.override
    return read_candidate(folder, settings, override, contents)


def make_candidate(
    name: str, settings: RepositorySettings, override: str | None, files: Mapping[str, bytes]
) -> Candidate:
    """A model made of `files`, by path in the model's folder. Raises ServeError; then its folder is removed."""
    if override is None:
        raise invalid("Load parameter 'config' must be specified for model file override")
    with _new_home() as home:
        _write(home, files)
        return read_candidate(ModelFolder(name, home, home.parent), settings, override)


def copy_candidate(served: Candidate, settings: RepositorySettings) -> Candidate:
    """A copy of a candidate that has a folder made for it. Raises ServeError, or OSError; then nothing is left."""
    with _new_home() as home:
        shutil.copytree(served.folder.path, home, dirs_exist_ok=True)
        return read_candidate(ModelFolder(served.folder.name, home, home.parent), settings, served.override)


@contextlib.contextmanager
def _new_home() -> Iterator[Path]:
    """A folder for one load; it is removed if the load fails here."""
    home = Path(tempfile.mkdtemp(prefix="stubserve-model-"))
    try:
        yield home
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def _normal(path: str) -> str:
    """The path of a file parameter within the model's folder; a leading slash stands for that folder."""
    return os.path.normpath(path.lstrip("/"))


def _write(home: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        file = home / _normal(path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        except OSError as error:
            raise internal(f"cannot write file parameter 'file:{path}': {error.strerror}") from None

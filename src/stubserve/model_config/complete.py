"""The defaults that a model gets before it is validated and loaded: backend, file name, policies, instance groups.

Upstream does this in three places (backend fields and defaults when the repository is read, instance groups when the
model is created, defaults again after the backend's auto-complete). `normalise` does the first two, `normalise_again`
the third; both are idempotent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stubserve_stub.backends.card import EITHER, FOLDER, ON_CPUS, ON_GPUS_IF_ASKED, Card, ModelFile
from stubserve_stub.backends.cards import all_cards, card_of, model_files

from stubserve.errors import Code, ServeError, internal, invalid
from stubserve.gpus import NO_GPUS, Gpus
from stubserve.model_config.proto import ENSEMBLE_PLATFORM, ModelConfig, model_config_pb2

_IDLE_MICROSECONDS = 1_000_000

# How many files of a folder an error names
_MOST_NAMED = 5
# Endings of files for which `stubserve init --from` writes a model.py
_FOR_INIT = (".pkl", ".pickle", ".joblib", ".ubj", ".json")

_GROUP = model_config_pb2.ModelInstanceGroup

_PYTHON_RUNTIME = "model.py"


@dataclass(frozen=True)
class InstanceSpec:
    """One model instance to start. `device_id` is the GPU's number, 0 for kinds CPU and MODEL.

    `traits` are its device and its group (serialized) without name and count: instances that share them can replace
    each other. The rate limiter uses `resources`, (name, whether all devices share it, how much), and `priority`.
    """

    name: str
    kind: Literal["CPU", "GPU", "MODEL"]
    device_id: int
    passive: bool
    traits: tuple[int, bytes] = field(default=(0, b""), compare=False)
    resources: tuple[tuple[str, bool, int], ...] = field(default=(), compare=False)
    priority: int = field(default=1, compare=False)


def normalise(
    config: ModelConfig, model_name: str, model_dir: Path, *, gpu_to_cpu: bool = False, gpus: Gpus = NO_GPUS
) -> ModelConfig:
    """A completed copy of `config`, which may be empty (a model without config.pbtxt).

    `model_dir` is the model's folder, searched for the backend; `gpus` are those that models may run on. With
    `gpu_to_cpu` instance groups for GPUs that are not there become KIND_CPU. Raises ServeError INVALID_ARG (the backend
    is unknown), INTERNAL (the folder can not be read).
    """
    completed = copy_of(config)
    if not completed.name:
        completed.name = model_name
    try:
        _fill_backend(completed, model_name, functools.cache(lambda: _entries_of(model_dir)))
    except ServeError as error:
        if error.code is Code.INVALID_ARG:
            error.log_message += _what_is_missing(model_dir)
        raise
    _fill_defaults(completed)
    usable = usable_gpus(completed.backend, gpus)
    if gpu_to_cpu:
        for index in gpu_groups(completed, usable):
            completed.instance_group[index].kind = _GROUP.KIND_CPU
            completed.instance_group[index].ClearField("gpus")
    _fill_instance_groups(completed, usable.numbers)
    return completed


def copy_of(config: ModelConfig) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def usable_gpus(backend: str, gpus: Gpus) -> Gpus:
    """The GPUs of `gpus` that models of this backend can run on: all, or none."""
    return NO_GPUS if card_of(backend).devices == ON_CPUS else gpus


def gpu_groups(config: ModelConfig, usable: Gpus) -> list[int]:
    """The indices of the instance groups that need GPUs which are not there, also those that only name some."""
    return [
        index
        for index, group in enumerate(config.instance_group)
        if (group.kind == _GROUP.KIND_GPU or (group.kind == _GROUP.KIND_AUTO and group.gpus))
        and not (usable.numbers and set(group.gpus) <= set(usable.numbers))
    ]


def normalise_again(config: ModelConfig) -> ModelConfig:
    """A copy of `config` with the defaults that depend on fields from auto-complete."""
    completed = copy_of(config)
    _fill_defaults(completed)
    return completed


def with_runtime(config: ModelConfig, runtime: str) -> ModelConfig:
    """`config` itself if it has this `runtime` already, else a copy that has it."""
    if config.runtime == runtime:
        return config
    completed = copy_of(config)
    completed.runtime = runtime
    return completed


def without_instances(config: ModelConfig) -> ModelConfig:
    """A copy without instance groups and version policy: the part that cannot change while a model serves."""
    rest = copy_of(config)
    rest.ClearField("instance_group")
    rest.ClearField("version_policy")
    return rest


def with_instances(config: ModelConfig, other: ModelConfig) -> ModelConfig:
    """A copy of `config` with the instance groups and the version policy of `other`."""
    changed = without_instances(config)
    changed.instance_group.extend(other.instance_group)
    changed.version_policy.CopyFrom(other.version_policy)
    return changed


def instances_of(config: ModelConfig) -> list[InstanceSpec]:
    """The instances of a normalised configuration in starting order; none for an ensemble.

    Copy `i` of a group is named `<group>_<i>`. A KIND_GPU group has each copy once on each of its GPUs, all with one
    name.
    """
    specs = []
    for group in config.instance_group:
        kind = _KIND_NAME[group.kind]
        devices = list(group.gpus) if kind == "GPU" else [0]
        traits = _GROUP()
        traits.CopyFrom(group)
        traits.ClearField("name")
        traits.ClearField("count")
        limits = group.rate_limiter
        resources = (
            () if group.passive else tuple((one.name, getattr(one, "global"), one.count) for one in limits.resources)
        )
        serialized = traits.SerializeToString(deterministic=True)
        specs += [
            InstanceSpec(
                f"{group.name}_{copy}",
                kind,
                device,
                group.passive,
                (device, serialized),
                resources,
                limits.priority or 1,
            )
            for copy in range(group.count)
            for device in devices
        ]
    return specs


def members_of(config: Any) -> tuple[str, ...]:
    """The names of the models in an ensemble's steps; none for any other model."""
    if config.platform != ENSEMBLE_PLATFORM:
        return ()
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


_KIND_NAME: dict[int, Literal["CPU", "GPU", "MODEL"]] = {
    _GROUP.KIND_CPU: "CPU",
    _GROUP.KIND_GPU: "GPU",
    _GROUP.KIND_MODEL: "MODEL",
}


# Name -> whether it is a directory
_Entries = Callable[[], dict[str, bool]]


def _first_version(folder: Path) -> str:
    """The name of a model's first version folder; empty if there is none.

    First means lexicographic, as upstream. But upstream takes the first folder of any name (`.ipynb_checkpoints` sorts
    before `1` and hides the model). Here folders with a number go first and hidden ones never count.
    """
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_dir()]
    return min(names, key=lambda name: (not (name.isascii() and name.isdigit()), name), default="")


def _entries_of(folder: Path) -> dict[str, bool]:
    """The entries of a model's first version folder."""
    try:
        version = _first_version(folder)
        if not version:
            return {}
        folder = folder / version
        return {entry.name: entry.is_dir() for entry in folder.iterdir()}
    except OSError as error:
        raise internal(f"failed to open directory {folder}: {error.strerror}") from None


def _what_is_missing(folder: Path) -> str:
    """Sentences for the log about a version folder that has no file of a model."""
    version = _first_version(folder)
    if not version:
        return ""
    # A model.py is what most people are about to write.
    known, there = sorted(model_files(), key=lambda file: file != "model.py"), sorted(_entries_of(folder))
    text = f" There is no {', '.join(known[:-1])} or {known[-1]} in {version}/"
    text += f", only {', '.join(there[:_MOST_NAMED])}." if there else ", which is empty."
    for name in there:
        ending = Path(name).suffix.lower()
        if ending in _FOR_INIT:
            return f"{text} `stubserve init NAME --from {version}/{name}` writes a folder for a model of this file."
        meant = [file for file in known if Path(file).suffix == ending]
        if meant:
            return f"{text} Rename {name} to {meant[0]}, or name it in config.pbtxt (default_model_filename)."
    return text


def _has(entries: _Entries, file: ModelFile) -> bool:
    is_folder = entries().get(file.name)
    return is_folder is not None and (file.shape == EITHER or is_folder == (file.shape == FOLDER))


def _fill_backend(config: Any, model_name: str, entries: _Entries) -> None:
    card, file = _meant(config, entries)
    if file is not None:
        if not config.default_model_filename and _fills_name(config, card, file):
            config.default_model_filename = file.name
        config.backend = card.name
        config.platform = config.platform or file.platform
    elif not (config.backend or config.platform or config.default_model_filename):
        _, dot, backend = model_name.partition(".")
        if not dot:
            raise invalid(
                f"Invalid model name: Could not determine backend for model '{model_name}' with no backend in model "
                "configuration. Expected model name of the form 'model.<backend_name>'."
            )
        config.backend = backend
        config.default_model_filename = f"model.{backend}"


def _fills_name(config: Any, card: Card, file: ModelFile) -> bool:
    """Whether the name of a model's file becomes part of the configuration."""
    if card.has_python_runtime and config.runtime == _PYTHON_RUNTIME:  # this runtime looks for a module first
        return False
    return file.fills_name or bool(config.backend and not config.platform)


def _meant(config: Any, entries: _Entries) -> tuple[Card, ModelFile | None]:
    """The backend that a configuration means, and the file of its models; no file if that is unknown."""
    if config.backend:
        card = card_of(config.backend)
        return card, _file_of(card, config, entries)
    for card in all_cards():
        for file in card.files:
            if config.platform and config.platform in (file.platform, file.alias):
                return card, file
            if _is_there(config, entries, file):
                return card, file
    return card_of(""), None


def _file_of(card: Card, config: Any, entries: _Entries) -> ModelFile | None:
    files = card.files
    if config.platform:
        # A platform of another backend still gets this backend's file name; validation then names the pair.
        files = tuple(file for file in files if file.platform == config.platform) or files
    elif card.needs_file:
        files = tuple(file for file in files if _is_there(config, entries, file))
    return files[0] if files else None


def _is_there(config: Any, entries: _Entries, file: ModelFile) -> bool:
    """Whether the configuration names the file, or its folder has the file and the configuration says nothing."""
    if config.platform or config.default_model_filename:
        return bool(config.default_model_filename == file.name)
    return _has(entries, file)


def _fill_defaults(config: Any) -> None:
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    scheduler = None
    if config.HasField("dynamic_batching"):
        scheduler = config.dynamic_batching
    elif config.HasField("sequence_batching"):
        if config.sequence_batching.max_sequence_idle_microseconds == 0:
            config.sequence_batching.max_sequence_idle_microseconds = _IDLE_MICROSECONDS
        if config.sequence_batching.HasField("oldest"):
            scheduler = config.sequence_batching.oldest
    if scheduler is not None and not scheduler.preferred_batch_size and config.max_batch_size > 0:
        scheduler.preferred_batch_size.append(config.max_batch_size)
    if not config.HasField("ensemble_scheduling"):
        for memory in ("input_pinned_memory", "output_pinned_memory"):
            if not config.optimization.HasField(memory):
                getattr(config.optimization, memory).enable = True


def _fill_instance_groups(config: Any, gpus: Sequence[int]) -> None:
    if config.HasField("ensemble_scheduling"):
        return
    card = card_of(config.backend)
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        if not group.name:
            group.name = f"{config.name}_{index}"
        if group.kind == _GROUP.KIND_AUTO:
            asked = group.gpus or card.devices != ON_GPUS_IF_ASKED
            group.kind = _GROUP.KIND_GPU if asked and gpus and set(group.gpus) <= set(gpus) else _GROUP.KIND_CPU
        if group.kind == _GROUP.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
        if group.count < 1:
            group.count = card.instances_on_cpu if group.kind == _GROUP.KIND_CPU else 1

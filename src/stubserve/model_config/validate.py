"""Upstream's checks of a normalised configuration, in upstream's order and words.

They come in three parts because upstream reports them at different moments: `validate_model` when the repository is
read (the load then fails with "failed to poll from model repository"), `validate_instance_groups` when the model is
created, and those of its tensors after auto-complete, so inputs may be missing until then. `validate` does everything
at once. All raise ServeError INVALID_ARG unless said otherwise. Checks that need other models (an ensemble's steps) are
made where ensembles are loaded.

A server fails a load with the first error, as upstream; an author of a configuration wants all of them. So each check
is a generator of errors that goes on if it can, every error knows its field (`ServeError.path`), and the `validate...`
functions raise the first one.

The checks of sequences and of ensembles are imported with the first configuration that has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from stubserve_stub.backends.cards import card_of

from stubserve import parts
from stubserve.errors import ServeError, internal, invalid, raise_first, within
from stubserve.gpus import NO_GPUS, Gpus
from stubserve.model_config.complete import usable_gpus
from stubserve.model_config.proto import ENSEMBLE_PLATFORM, ModelConfig, model_config_pb2
from stubserve.model_config.validate_io import io_problems

_GROUP = model_config_pb2.ModelInstanceGroup
_DELAY = model_config_pb2.ModelQueuePolicy.DELAY

# Each is a process. Far fewer already fill a machine; far more would make even their list too large.
MOST_INSTANCES = 1024

# Labels are the tags behind an underscore, and two underscores are Prometheus' own.
_METRIC_TAG = re.compile(r"(?!_)[a-zA-Z0-9_]*")

# Added to upstream's words
_ON_THE_CPU = "; --gpu-fallback=cpu serves the model on the CPU"


def problems(config: ModelConfig, gpus: Gpus = NO_GPUS) -> Iterator[ServeError]:
    """All errors of a configuration that is final, where models may run on these GPUs."""
    yield from model_problems(config)
    yield from instance_group_problems(config, gpus)
    yield from io_problems(config)
    if config.sequence_batching.state and parts.is_installed("sequences"):
        from stubserve.sequences.problems import state_problems

        yield from state_problems(config)
    yield from parts.problems(config)


def validate(config: ModelConfig, gpus: Gpus = NO_GPUS) -> None:
    """Raises the first of the `problems`."""
    raise_first(problems(config, gpus))


def validate_model(config: ModelConfig) -> None:
    """Checks all but tensors and instance groups."""
    raise_first(model_problems(config))


def validate_instance_groups(config: ModelConfig, gpus: Gpus = NO_GPUS) -> None:
    """Checks kinds and GPUs of the instance groups."""
    raise_first(instance_group_problems(config, gpus))


def validate_directory_name(config: ModelConfig, directory: str) -> None:
    """A model's name is its directory's, even if config.pbtxt has another."""
    if config.name != directory:
        raise invalid(
            f"unexpected directory name '{directory}' for model '{config.name}', directory name must equal model name"
        ).at("name")


def model_problems(config: ModelConfig) -> Iterator[ServeError]:
    """All errors except those of tensors and instance groups."""
    if not config.name:
        yield invalid("model configuration must specify 'name'").at("name")
    yield from _backend_problems(config)
    if config.max_batch_size < 0:
        yield invalid(f"'max_batch_size' must be non-negative value for {config.name}").at("max_batch_size")
    if not config.HasField("version_policy"):
        yield invalid(f"must specify 'version policy' for {config.name}")
    if config.HasField("dynamic_batching"):
        yield from within(_dynamic_batching_problems(config), "dynamic_batching")
    if config.HasField("sequence_batching"):
        if config.response_cache.enable:
            yield _cache_unsupported(config.name, "sequence batching scheduler")
        if parts.is_installed("sequences"):
            from stubserve.sequences.problems import sequence_problems

            yield from sequence_problems(config)
        else:
            yield parts.not_installed("sequences").at("sequence_batching")
    if config.HasField("ensemble_scheduling"):
        if parts.is_installed("ensembles"):
            from stubserve.ensembles.problems import ensemble_problems

            yield from ensemble_problems(config)
        else:
            yield parts.not_installed("ensembles").at("ensemble_scheduling")
    elif config.platform == ENSEMBLE_PLATFORM:
        text = f"ensemble scheduling must be set for ensemble {config.name} whose platform is {ENSEMBLE_PLATFORM}"
        yield invalid(text).at("platform")
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        yield _cache_unsupported(config.name, "'decoupled' transaction policy")
    for index, control in enumerate(config.model_metrics.metric_control):
        yield from within(_metric_problems(control), "model_metrics", "metric_control", index)
    for tag in config.metric_tags:
        if _METRIC_TAG.fullmatch(tag) is None:
            # Real Triton ends here; printed, the tag would make the metrics of all models unreadable.
            yield invalid(
                f"metric tag '{tag}' for {config.name} cannot be part of a label: use letters, digits and underscores, "
                "and no underscore at the beginning"
            ).at("metric_tags")


def _backend_problems(config: ModelConfig) -> Iterator[ServeError]:
    if not config.backend:
        if config.platform != ENSEMBLE_PLATFORM:
            yield invalid(f"unexpected platform type '{config.platform}' for {config.name}").at("platform")
    elif config.platform == ENSEMBLE_PLATFORM:
        yield invalid(
            f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE_PLATFORM}' and empty backend type"
        ).at("backend")
    elif config.platform not in (card_of(config.backend).platforms or (config.platform,)):
        text = f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}"
        yield invalid(text).at("platform")


def _dynamic_batching_problems(config: ModelConfig) -> Iterator[ServeError]:
    name, batching = config.name, config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            yield invalid(f"dynamic batching preferred size must be positive for {name}").at("preferred_batch_size")
        if size > config.max_batch_size:
            error = invalid(f"dynamic batching preferred size must be <= max batch size for {name}")
            yield error.at("preferred_batch_size")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            error = invalid(f"default priority level must be in range [1, {levels}] for {name}")
            yield error.at("default_priority_level")
        if not all(1 <= level <= levels for level in batching.priority_queue_policy):
            error = invalid(f"priority queue policy must have priority level in range [1, {levels}] for {name}")
            yield error.at("priority_queue_policy")
    if batching.preserve_ordering:
        if levels > 1:
            error = invalid(f"Only one priority level is allowed when 'preserve_ordering' is true for {name}")
            yield error.at("preserve_ordering")
        for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
            if policy.default_timeout_microseconds and policy.timeout_action == _DELAY:
                yield invalid(
                    "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for " + name
                ).at("preserve_ordering")


def _cache_unsupported(name: str, what: str) -> ServeError:
    return invalid(
        f"Response Cache does not currently support model {name} with {what}. Please disable the response cache."
    ).at("response_cache")


def _metric_problems(control: Any) -> Iterator[ServeError]:
    if not control.HasField("metric_identifier"):
        yield invalid("metric control must specify 'metric_identifier'")
    elif not control.metric_identifier.family:
        yield invalid("metric identifier must specify non-empty 'family'")
    if not control.HasField("histogram_options"):
        yield invalid("metric control must specify 'histogram_options'")
    elif not control.histogram_options.buckets:
        yield invalid("histogram options must specify non-empty 'buckets'")


def instance_group_problems(config: ModelConfig, gpus: Gpus = NO_GPUS) -> Iterator[ServeError]:
    """The errors of the instance groups, which must be normalised, where models may run on these GPUs.

    A group whose kind is still KIND_AUTO is an INTERNAL error.
    """
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        yield invalid(f"must specify one or more 'instance group's for {config.name}").at("instance_group")
    instances = sum(group.count * max(len(group.gpus), 1) for group in config.instance_group)
    if instances > MOST_INSTANCES:
        text = f"model {config.name} asks for {instances} instances, and stubserve starts at most {MOST_INSTANCES}"
        yield invalid(text).at("instance_group")
    for index, group in enumerate(config.instance_group):
        where = f"instance group {group.name} of model {config.name}"
        here = ("instance_group", index)
        if group.kind == _GROUP.KIND_GPU:
            wrong = _gpu_problems(group, where, config.backend, gpus)
            yield from within(wrong, *here, "gpus" if group.gpus else "kind")
        elif group.kind in (_GROUP.KIND_CPU, _GROUP.KIND_MODEL):
            if group.gpus:
                error = invalid(f"{where} has kind {_GROUP.Kind.Name(group.kind)} but specifies one or more GPUs")
                yield error.at(*here, "gpus")
        else:
            yield internal(f"{where} has unexpected kind KIND_AUTO").at(*here)
        if group.profile:
            yield from within(_profile_problems(config, group.profile, where), *here, "profile")


def _gpu_problems(group: Any, where: str, backend: str, gpus: Gpus) -> Iterator[ServeError]:
    if gpus.numbers and not usable_gpus(backend, gpus).numbers:
        yield invalid(f"{where} has kind KIND_GPU, and the {backend} backend runs on CPUs only{_ON_THE_CPU}")
        return
    if not group.gpus:
        yield invalid(f"{where} has kind KIND_GPU but no GPUs are available{_ON_THE_CPU}")
    for gpu in group.gpus:
        if gpu not in gpus.numbers:
            yield invalid(
                f"{where} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of {gpus.least_capability:.6f} are: {', '.join(map(str, gpus.numbers))}"
                f"{_ON_THE_CPU}"
            )


def _profile_problems(config: ModelConfig, profiles: Sequence[str], where: str) -> Iterator[ServeError]:
    where = f"{where} and platform {config.platform}"
    if not card_of(config.backend).has_engines:
        # The missing space is upstream's.
        yield invalid(f"{where}specifies profile field which is only supported for TensorRT models")
        return
    for profile in profiles:
        if not (profile.isascii() and profile.isdigit()):
            yield invalid(
                f"{where} specifies invalid profile {profile}. The field should contain the string representation of "
                "a non-negative integer."
            )

"""Upstream's checks of a normalised configuration, in upstream's order and words.

They come in three parts because upstream reports them at different moments: `validate_model` when the repository is
read (the load then fails with "failed to poll from model repository"), `validate_instance_groups` and `validate_io`
when the model is created, the latter after auto-complete, which is why inputs may be missing until then. `validate`
does everything at once. All raise ServeError INVALID_ARG unless said otherwise. What needs other models to be known
(an ensemble's steps) is checked where ensembles are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stubserve.errors import ServeError, internal, invalid
from stubserve.model_config.proto import ModelConfig, model_config_pb2
from stubserve.model_config.validate_ensemble import ENSEMBLE_PLATFORM, validate_ensemble
from stubserve.model_config.validate_io import validate_io
from stubserve.model_config.validate_sequence import validate_sequence_batching

__all__ = ["validate", "validate_directory_name", "validate_instance_groups", "validate_io", "validate_model"]

_GROUP = model_config_pb2.ModelInstanceGroup
_DELAY = model_config_pb2.ModelQueuePolicy.DELAY

# A backend that is listed here serves only these platforms, and a platform that is listed only its backend.
_PLATFORMS = {
    "tensorflow": ("tensorflow_savedmodel", "tensorflow_graphdef"),
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", "libtorch", "torch_aoti"),
}

# Upstream's default for --min-supported-compute-capability in GPU builds; only ever printed here.
MIN_COMPUTE_CAPABILITY = 7.5


def validate(config: ModelConfig, *, gpu_ids: Sequence[int] = ()) -> None:
    """Every check of a configuration that is as complete as it will get."""
    validate_model(config)
    validate_instance_groups(config, gpu_ids=gpu_ids)
    validate_io(config)


def validate_directory_name(config: ModelConfig, directory: str) -> None:
    """A model's name is its directory's, also where config.pbtxt says another."""
    if config.name != directory:
        raise invalid(
            f"unexpected directory name '{directory}' for model '{config.name}', directory name must equal model name"
        )


def validate_model(config: ModelConfig) -> None:
    """Everything but tensors and instance groups."""
    if not config.name:
        raise invalid("model configuration must specify 'name'")
    _validate_backend(config)
    if config.max_batch_size < 0:
        raise invalid(f"'max_batch_size' must be non-negative value for {config.name}")
    if not config.HasField("version_policy"):
        raise invalid(f"must specify 'version policy' for {config.name}")
    if config.HasField("dynamic_batching"):
        _validate_dynamic_batching(config)
    if config.HasField("sequence_batching"):
        if config.response_cache.enable:
            raise _cache_unsupported(config.name, "sequence batching scheduler")
        validate_sequence_batching(config)
    if config.HasField("ensemble_scheduling"):
        validate_ensemble(config)
    elif config.platform == ENSEMBLE_PLATFORM:
        raise invalid(
            f"ensemble scheduling must be set for ensemble {config.name} whose platform is {ENSEMBLE_PLATFORM}"
        )
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        raise _cache_unsupported(config.name, "'decoupled' transaction policy")
    for control in config.model_metrics.metric_control:
        _validate_metric(control)


def _validate_backend(config: ModelConfig) -> None:
    if not config.backend:
        if config.platform != ENSEMBLE_PLATFORM:
            raise invalid(f"unexpected platform type '{config.platform}' for {config.name}")
    elif config.platform == ENSEMBLE_PLATFORM:
        raise invalid(
            f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE_PLATFORM}' and empty backend type"
        )
    elif config.platform not in _PLATFORMS.get(config.backend, (config.platform,)):
        raise invalid(f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}")


def _validate_dynamic_batching(config: ModelConfig) -> None:
    name, batching = config.name, config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise invalid(f"dynamic batching preferred size must be positive for {name}")
        if size > config.max_batch_size:
            raise invalid(f"dynamic batching preferred size must be <= max batch size for {name}")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            raise invalid(f"default priority level must be in range [1, {levels}] for {name}")
        if not all(1 <= level <= levels for level in batching.priority_queue_policy):
            raise invalid(f"priority queue policy must have priority level in range [1, {levels}] for {name}")
    if batching.preserve_ordering:
        if levels > 1:
            raise invalid(f"Only one priority level is allowed when 'preserve_ordering' is true for {name}")
        for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
            if policy.default_timeout_microseconds and policy.timeout_action == _DELAY:
                raise invalid(
                    "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for " + name
                )


def _cache_unsupported(name: str, what: str) -> ServeError:
    return invalid(
        f"Response Cache does not currently support model {name} with {what}. Please disable the response cache."
    )


def _validate_metric(control: Any) -> None:
    if not control.HasField("metric_identifier"):
        raise invalid("metric control must specify 'metric_identifier'")
    if not control.metric_identifier.family:
        raise invalid("metric identifier must specify non-empty 'family'")
    if not control.HasField("histogram_options"):
        raise invalid("metric control must specify 'histogram_options'")
    if not control.histogram_options.buckets:
        raise invalid("histogram options must specify non-empty 'buckets'")


def validate_instance_groups(
    config: ModelConfig,
    *,
    gpu_ids: Sequence[int] = (),
    min_compute_capability: float = MIN_COMPUTE_CAPABILITY,
) -> None:
    """Kinds and GPUs of the instance groups, which must be normalised; `gpu_ids` are the GPUs the server may use.

    Raises: ServeError INTERNAL for a group whose kind is still KIND_AUTO.
    """
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        raise invalid(f"must specify one or more 'instance group's for {config.name}")
    for group in config.instance_group:
        where = f"instance group {group.name} of model {config.name}"
        if group.kind == _GROUP.KIND_GPU:
            _validate_gpus(group, where, gpu_ids, min_compute_capability)
        elif group.kind in (_GROUP.KIND_CPU, _GROUP.KIND_MODEL):
            if group.gpus:
                raise invalid(f"{where} has kind {_GROUP.Kind.Name(group.kind)} but specifies one or more GPUs")
        else:
            raise internal(f"{where} has unexpected kind KIND_AUTO")
        if group.profile:
            _validate_profiles(config.platform, group.profile, where)


def _validate_gpus(group: Any, where: str, gpu_ids: Sequence[int], min_compute_capability: float) -> None:
    if not group.gpus:
        lack = "specifies no GPUs" if gpu_ids else "no GPUs are available"
        raise invalid(f"{where} has kind KIND_GPU but {lack}")
    for gpu in group.gpus:
        if gpu not in gpu_ids:
            raise invalid(
                f"{where} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of {min_compute_capability:.6f} are: {', '.join(map(str, gpu_ids))}"
            )


def _validate_profiles(platform: str, profiles: Sequence[str], where: str) -> None:
    where = f"{where} and platform {platform}"
    if platform != "tensorrt_plan":
        # The missing space is upstream's.
        raise invalid(f"{where}specifies profile field which is only supported for TensorRT models")
    for profile in profiles:
        if not (profile.isascii() and profile.isdigit()):
            raise invalid(
                f"{where} specifies invalid profile {profile}. The field should contain the string representation of "
                "a non-negative integer."
            )

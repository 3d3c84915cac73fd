"""Makes a model's folder a model that a test can execute: the steps of a load, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from stubserve_stub.backends.python.model import ContractBroken, Model, import_model

from stubserve.errors import unsupported
from stubserve.gpus import supported
from stubserve.inference.signature import Signature
from stubserve.instances.launcher import initialize_arguments
from stubserve.loading.program import find_program
from stubserve.model_config.complete import copy_of, instances_of, normalise, with_runtime
from stubserve.model_config.proto import ModelConfig
from stubserve.model_config.render import conclude_auto_complete, render_json, to_json_dict
from stubserve.model_config.validate import validate, validate_directory_name, validate_instance_groups, validate_model
from stubserve.repository.folder import ModelFolder, available_versions, read_config
from stubserve.settings.groups import DEFAULT_BACKEND_DIRECTORY
from stubserve.testing.calls import Target
from stubserve.testing.model import LoadedModel
from stubserve.testing.surroundings import Surroundings


def load(
    folder: str | PathLike[str],
    *,
    version: int | None = None,
    kind: Literal["CPU", "GPU", "MODEL"] | None = None,
    bls: Mapping[str, Target] | None = None,
    check: bool = True,
    backend_directory: Path = DEFAULT_BACKEND_DIRECTORY,
) -> LoadedModel:
    """Imports and initializes the model in `folder` (the folder with config.pbtxt and the version folders).

    Without `version` it is the latest that the configuration allows; `kind` replaces the configured instance groups.
    `bls` are the models that this one may call, by name: functions that take the InferenceRequest and return an
    InferenceResponse, or arrays by output name, or for a decoupled call any number of either; or other loaded models.
    With `check` responses must fit the configuration. The model runs in the test's environment. Raises ServeError for a
    configuration with which the model could not be served, and all exceptions of the model's own code.
    """
    path = Path(folder).resolve()
    if not path.is_dir():
        raise FileNotFoundError(f"there is no model's folder {path}")
    found = ModelFolder(path.name, path, path.parent)
    written = read_config(found)
    config = copy_of(written) if written is not None else ModelConfig()
    if kind is not None:
        config.ClearField("instance_group")
        config.instance_group.add(kind=f"KIND_{kind}")
    gpus = supported()
    config = normalise(config, found.name, path, gpus=gpus)
    validate_directory_name(config, found.name)
    version = version if version is not None else available_versions(found, config)[-1]
    validate_model(config)
    validate_instance_groups(config, gpus)
    if config.platform == "ensemble":
        raise unsupported(f"model '{found.name}' is an ensemble: it has no code to test")
    program = find_program(config, path, version, backend_directory)
    if program.file is None:
        raise unsupported(f"model '{found.name}' is run by the backend '{program.backend}': it has no code to test")
    config = with_runtime(config, program.runtime)
    surroundings = Surroundings(found.name, program.search_path, found.version_path(version))
    try:
        with surroundings.active():
            model = Model(import_model(str(program.file), program.module, []), str(program.file))
            config_json = render_json(config)
            if model.completes_config:
                config, config_json = _complete(model, config, has_config_file=written is not None)
            validate(config, gpus)
            arguments = initialize_arguments(instances_of(config)[0], config.name, config_json, path, str(version))
            model.initialize(arguments)
            loaded = LoadedModel(
                model,
                Signature(found.name, version, config),
                surroundings,
                arguments,
                to_json_dict(config),
                bls or {},
                check,
            )
    except BaseException:
        surroundings.close()
        raise
    return loaded


def _complete(model: Model, config: Any, *, has_config_file: bool) -> tuple[Any, str]:
    """The configuration after `auto_complete_config`, and args["model_config"].

    If the result is useless a server uses the configured one. Here it is an error, because the author is watching.
    """
    try:
        returned = model.complete_config(config.name, render_json(config))
    except ContractBroken as broken:
        raise AssertionError(str(broken)) from None
    config, config_json, wrong = conclude_auto_complete(config, returned, has_config_file=has_config_file)
    if wrong is not None:
        raise wrong
    return config, config_json

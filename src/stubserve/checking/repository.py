"""Everything that is wrong with a repository, found without starting a process of it.

The checks are those of a load, with its texts; but a load stops at the first error, and this goes on. Only a running
model shows the rest (imports, `initialize`); `stubserve env check` finds some of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stubserve_stub.backends.card import Card
from stubserve_stub.backends.cards import card_of

from stubserve import parts
from stubserve.checking.files import config_problems, file_problems
from stubserve.checking.problems import Problem, Report, log_as_problems
from stubserve.environments.environment import environment_in
from stubserve.environments.probe import EnvironmentUnusable, inspect_file
from stubserve.environments.resolve import PARAMETER, named_in, place_of
from stubserve.errors import ServeError, internal
from stubserve.gpus import Gpus, supported
from stubserve.inference.signature import Signature
from stubserve.instances.execution_watch import execute_timeout
from stubserve.loading.ensembles import circle
from stubserve.loading.launchers import instances_per_stub, threads_per_instance
from stubserve.loading.program import check_python_parameters, idle_parts, locate_program
from stubserve.loading.source_check import completes_config, source_problems
from stubserve.model_config.complete import copy_of, gpu_groups, members_of, normalise, usable_gpus
from stubserve.model_config.parse import decode_text, find_templates
from stubserve.model_config.proto import ENSEMBLE_PLATFORM, ModelConfig
from stubserve.model_config.reading import Reading, read_leniently
from stubserve.model_config.validate import problems, validate_directory_name
from stubserve.model_config.validate_io import repeated_tensors
from stubserve.repository.candidate import RUNS_ON_CPU
from stubserve.repository.folder import (
    CONFIG_FILE,
    ModelFolder,
    available_versions,
    read_config,
    read_labels,
    survey,
)
from stubserve.repository.model_files import absent_files
from stubserve.schedulers.factory import create_scheduler
from stubserve.serving.warm_up_samples import sample_problems
from stubserve.settings.groups import DEFAULT_AGENT_DIRECTORY

# A backend's texts name the parameter that they are about.
_PARAMETER = re.compile(r"\bparameter '([^']+)'")


def check_repositories(
    repositories: Sequence[Path],
    backend_directory: Path,
    gpu_to_cpu: bool = False,
    agent_directory: Path = DEFAULT_AGENT_DIRECTORY,
) -> Report:
    """Checks all models, `gpu_to_cpu` as `serve --gpu-fallback=cpu` does. Raises ServeError for a bad repository."""
    found: list[Problem] = []
    with log_as_problems("", repositories[0], found):
        folders = survey(repositories).models
    for folder in folders.values():
        problems_of_model = _Check(folder, folders, (backend_directory, agent_directory), gpu_to_cpu).run()
        found += sorted(problems_of_model, key=lambda problem: (problem.file, problem.line))
    return Report(tuple(folders), tuple(found))


class _Check:
    def __init__(
        self, folder: ModelFolder, models: Mapping[str, ModelFolder], directories: tuple[Path, Path], gpu_to_cpu: bool
    ) -> None:
        self._folder = folder
        self._models = models
        self._backend_directory, self._agent_directory = directories
        self._gpu_to_cpu = gpu_to_cpu
        self._file = folder.path / CONFIG_FILE
        self._reading = Reading(ModelConfig(), None)
        self._found: list[Problem] = []
        # False for a backend that needs no packages, for which environments mean nothing
        self._in_environment = True
        # Whether the backend has an environment for models that name none
        self._brings_environment = False

    def run(self) -> list[Problem]:
        absent = absent_files(self._folder.path)
        if absent:
            self._note(self._folder.path, f"lacks {absent}", is_warning=True)
        if not self._read():
            return self._found
        try:
            gpus = supported()
            config = normalise(
                self._reading.config, self._folder.name, self._folder.path, gpu_to_cpu=self._gpu_to_cpu, gpus=gpus
            )
        except ServeError as error:
            if self._reading.unread.isdisjoint(("backend", "platform", "default_model_filename")):
                self._add(error)
            self._versions(self._reading.config)
            return self._found
        self._attempt(validate_directory_name, config, self._folder.name)
        self._agents(config)
        versions = self._versions(config)
        files = self._programs(config, versions)
        may_grow = any(completes_config(file) for file in files)
        is_unsure = may_grow or not self._reading.unread.isdisjoint(("input", "output"))
        unsure = {error.message for error in parts.problems(config)} if is_unsure else set()
        for wrong in self._certain_problems(config, gpus):
            # What auto_complete_config may still fill in is not wrong yet.
            unfilled = wrong.path[:1] in (("input",), ("output",)) and "must specify" in wrong.message
            if not ((may_grow and unfilled) or wrong.message in unsure):
                self._add(wrong)
        for file in files:
            if file.suffix != ".py":
                continue  # this is wrong already
            for problem in source_problems(file, runs_here=not (named_in(config) or self._brings_environment)):
                self._note(file, problem.text, problem.line, problem.is_warning)
        if not self._reading.mistakes:
            self._files(config, card_of(config.backend), versions)
        self._labels(config)
        self._environment(config)
        if config.platform == ENSEMBLE_PLATFORM:
            self._steps(config)
        fine = not self._errors()
        if fine and config.platform != ENSEMBLE_PLATFORM:
            # These checks need a configuration that is right so far.
            self._attempt(create_scheduler, config)
            if config.sequence_batching.state:
                from stubserve.sequences.problems import initial_state_problems

                with log_as_problems(self._folder.name, self._file, self._found):
                    for wrong in initial_state_problems(config, self._folder.path):
                        self._add(wrong)
            self._attempt(threads_per_instance, config, 1, os.environ)
            self._attempt(execute_timeout, config, 0.0)
            self._attempt(instances_per_stub, config, {})
        # Inputs that a model may still complete cannot be compared.
        if fine and config.input and not may_grow:
            for wrong in sample_problems(config, Signature(config.name, 1, config), self._folder.path):
                self._add(wrong)
        for wrong in repeated_tensors(config):
            self._note(self._file, wrong.message, self._reading.line_of(wrong.path), wrong.path[0] == "output")
        for path, words in idle_parts(config):
            self._warn(words, path)
        if self._gpu_to_cpu:
            for index in gpu_groups(self._reading.config, usable_gpus(config.backend, gpus))[:1]:
                self._warn(RUNS_ON_CPU, ("instance_group", index, "kind"))
        return self._found

    def _read(self) -> bool:
        """Reads config.pbtxt; whether enough of it is readable to go on."""
        try:
            text = decode_text(self._file.read_bytes())
        except FileNotFoundError:
            return True
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"no UTF-8 at byte {error.start}"
            self._note(self._file, f"cannot be read: {reason}")
            return False
        self._reading = read_leniently(text)
        for mistake in self._reading.mistakes:
            self._note(self._file, mistake.text, mistake.line)
        for template in find_templates(text, in_string=True):
            self._note(self._file, template.remark, template.line, is_warning=True)
        return self._reading.complete

    def _certain_problems(self, config: Any, gpus: Gpus) -> Iterator[ServeError]:
        """The errors of the configuration that do not follow from what of it cannot be read."""
        doubtful: set[str] = set()
        if self._reading.mistakes and config.HasField("ensemble_scheduling") and parts.is_installed("ensembles"):
            from stubserve.ensembles.problems import ensemble_problems

            # A tensor that is missing in one step may make errors of all other steps.
            doubtful = {error.message for error in ensemble_problems(config)}
        if "max_batch_size" in self._reading.unread:
            batched = copy_of(config)
            batched.max_batch_size = 1 << 20
            always = {error.message for error in problems(batched, gpus)}
            doubtful |= {error.message for error in problems(config, gpus)} - always
        return (error for error in problems(config, gpus) if error.message not in doubtful)

    def _agents(self, config: Any) -> None:
        agents = config.model_repository_agents.agents
        if not agents:
            return
        if not parts.is_installed("agents"):
            self._add(parts.not_installed("agents").at("model_repository_agents"))
            return
        from stubserve.repository.agents.chain import check_digests, is_built_in
        from stubserve.repository.agents.process import agent_file

        for index, agent in enumerate(agents):
            here = ("model_repository_agents", "agents", index)
            try:
                if is_built_in(agent.name, self._agent_directory):
                    check_digests(self._folder.path, agent.parameters)
                else:
                    agent_file(agent.name, self._agent_directory)
                    self._warn(f"the agent '{agent.name}' is not asked here, and may give the model other files", here)
            except ServeError as error:
                self._add(error.at(*here))

    def _programs(self, config: Any, versions: list[int]) -> list[Path]:
        if config.platform == ENSEMBLE_PLATFORM or not config.backend:
            return []
        self._attempt(check_python_parameters, config)
        programs = []
        for version in versions:
            program = self._attempt(locate_program, config, self._folder.path, version, self._backend_directory)
            if program is None:
                break  # the other versions would only repeat it
            self._in_environment = card_of(program.backend).in_environments
            self._brings_environment = program.default_environment is not None
            if program.file is not None:
                programs.append(program.file)
        return list(dict.fromkeys(programs))

    def _versions(self, config: Any) -> list[int]:
        noted: list[Problem] = []
        with log_as_problems(self._folder.name, self._folder.path, noted):
            versions = self._attempt(available_versions, self._folder, config)
        # A version that is missing is a warning where others are served. Where there is no other, the error says it.
        self._found += [replace(one, is_warning=True) for one in noted if one.is_warning or versions]
        return versions or []

    def _files(self, config: Any, card: Card, versions: list[int]) -> None:
        """What a backend would refuse."""
        for text, is_warning in config_problems(card, config):
            parameter = _PARAMETER.search(text)
            path = ("parameters", parameter[1]) if parameter is not None else ()
            self._note(self._file, text, self._reading.line_of(path), is_warning)
        for version in versions:
            for file, text, is_warning in file_problems(card, config, self._folder.version_path(version)):
                self._note(Path(file), text, is_warning=is_warning)

    def _labels(self, config: Any) -> None:
        for index, output in enumerate(config.output):
            try:
                read_labels(self._folder, ModelConfig(output=[output]))
            except ServeError as error:
                self._add(error.at("output", index, "label_filename"))

    def _environment(self, config: Any) -> None:
        value = named_in(config)
        if not value or not self._in_environment:
            return
        try:
            place = place_of(value, self._folder.path.absolute())
            if place.is_dir():
                inspect_file(Path(environment_in(place).interpreter))
        except ServeError as error:
            self._add(error.at("parameters", PARAMETER))
        except EnvironmentUnusable as error:
            self._add(internal(f"environment '{place}' cannot run a model: {error}").at("parameters", PARAMETER))

    def _steps(self, config: Any) -> None:
        """What an ensemble needs of other models, as far as their configurations are on disk."""
        if not (config.HasField("ensemble_scheduling") and parts.is_installed("ensembles")):
            return
        from stubserve.ensembles.problems import member_problems
        from stubserve.ensembles.start import version_not_loaded

        for index, step in enumerate(config.ensemble_scheduling.step):
            if step.model_name and step.model_name not in self._models and not step.model_namespace:
                line = self._reading.line_of(("ensemble_scheduling", "step", index, "model_name"))
                text = f"step {index} uses model '{step.model_name}', which is in none of the repositories"
                self._note(self._file, text, line)
            if step.model_version != -1 and step.model_version not in self._versions_on_disk(step):
                error = version_not_loaded(config.name, step)
                self._add(error.at("ensemble_scheduling", "step", index, "model_version"))

        members = members_of(config)
        closed = circle(config.name, members, lambda name: members_of(self._config_on_disk(name) or ModelConfig()))
        if closed is not None:
            self._add(closed.at("ensemble_scheduling"))
        if not self._errors():
            configs = {name: self._config_on_disk(name) for name in members}
            whole = {name: found for name, found in configs.items() if found is not None}
            if whole.keys() == configs.keys():
                for wrong in member_problems(config, whole):
                    self._add(wrong)

    def _versions_on_disk(self, step: Any) -> Collection[int]:
        """The versions of a step's model that would be served; the step's own version if that is unknown."""
        folder = self._models.get(step.model_name)
        if folder is None:
            return (step.model_version,)
        try:
            # Odd versions are reported with that model
            with log_as_problems(folder.name, folder.path, []):
                return available_versions(
                    folder, normalise(read_config(folder) or ModelConfig(), folder.name, folder.path)
                )
        except ServeError:
            return (step.model_version,)

    def _config_on_disk(self, name: str) -> Any:
        """Another model's configuration; None if there is none, or the model or its backend may still complete it."""
        folder = self._models.get(name)
        if folder is None:
            return None
        try:
            config = read_config(folder)
        except ServeError:
            return None  # reported with that model
        if config is None or not (config.input and config.output):
            return None
        if any(completes_config(file) for file in folder.path.glob("*/*.py")):
            return None
        config.name = name
        return config

    def _attempt(self, check: Any, *arguments: Any) -> Any:
        """The result of a check; None if it refuses, with its error noted."""
        try:
            return check(*arguments)
        except ServeError as error:
            self._add(error)
            return None

    def _add(self, error: ServeError) -> None:
        if error.path and self._reading.follows_from_mistake(error.path):
            return
        exists = self._reading.source is not None
        file = self._file if exists or error.path else self._folder.path
        problem = Problem(self._folder.name, file, self._reading.line_of(error.path), error.log_message)
        if problem not in self._found:
            self._found.append(problem)

    def _note(self, file: Path, text: str, line: int = 0, is_warning: bool = False) -> None:
        self._found.append(Problem(self._folder.name, file, line, text, is_warning))

    def _warn(self, text: str, path: tuple[str | int, ...]) -> None:
        self._note(self._file, text, self._reading.line_of(path), is_warning=True)

    def _errors(self) -> int:
        return sum(not problem.is_warning for problem in self._found)

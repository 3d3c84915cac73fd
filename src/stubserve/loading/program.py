"""The program of a model version's stubs: the model's own `model.py`, that of a backend written in Python, or a
built-in backend.

A backend named `X` without a compiled library lies in `<backend directory>/X/model.py` and serves every model with
`backend: "X"`; the version folders of these models hold the files that it reads. The rules are upstream's, from real
Triton 2.51: a library `libtriton_X.so` goes before `model.py` and is searched in the version's folder, the model's and
the backend's; `runtime` in the configuration names the file and ends the search; a served model's `runtime` is
`model.py`. Libraries cannot be loaded here, so a found library is refused by name.

A built-in backend (`stubserve_stub.backends`) replaces the library of that name, for instance in the backend directory
of a Triton installation. A lone `model.py` there goes before it, and so does a library of the model's own. It runs in
the server's own environment, or in the model's if it needs packages. A built-in backend that also serves modules in
Python (pytorch) replaces a missing `model.py` in that directory, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stubserve_stub.backends.cards import PYTHON, all_cards, card_of

from stubserve.environments.environment import Environment
from stubserve.environments.resolve import Environments, named_in
from stubserve.errors import ServeError, internal, invalid, unsupported
from stubserve.inference.latencies import FIRST_RESPONSE
from stubserve.instances.launcher import Program

_RUNTIME = "model.py"
# The parts of `optimization` that the server itself looks at
_PINNED = ("input_pinned_memory", "output_pinned_memory")
_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"


def find_program(config: Any, model_dir: Path, version: int, backend_directory: Path) -> Program:
    """The program for a model with normalised configuration. Raises ServeError; UNSUPPORTED for a compiled backend."""
    program = locate_program(config, model_dir, version, backend_directory)
    check_python_parameters(config)
    return program


def locate_program(config: Any, model_dir: Path, version: int, backend_directory: Path) -> Program:
    """`find_program` without the checks of parameters. Raises ServeError."""
    version_dir = model_dir / str(version)
    if config.backend == PYTHON and not config.runtime:
        file_name = config.default_model_filename or _RUNTIME
        return Program(version_dir / file_name, f"{version}.{Path(file_name).stem}", (version_dir, model_dir))
    return _program_of_backend(config, (version_dir, model_dir), backend_directory)


def check_python_parameters(config: Any) -> None:
    """The checks that upstream's Python backend makes before it starts a stub. Raises ServeError."""
    file = config.default_model_filename
    if config.backend == PYTHON and file and not file.endswith(".py"):
        raise internal(f"Model name must end with '.py'. Model name is \"{file}\".").at("default_model_filename")
    force = config.parameters[_FORCE_CPU].string_value if _FORCE_CPU in config.parameters else "yes"
    if force not in ("yes", "no"):
        raise unsupported(f"Incorrect value for {_FORCE_CPU}: {force}'").at("parameters", _FORCE_CPU)


def _program_of_backend(config: Any, model_dirs: tuple[Path, ...], backend_directory: Path) -> Program:
    backend, runtime = config.backend, config.runtime
    if not backend or not _is_plain(backend):
        raise _no_backend(backend)
    folder = backend_directory.absolute() / backend
    places = (*model_dirs, folder)
    library_name = f"libtriton_{backend}.so"
    card = card_of(backend)
    built_in = bool(card.program) and backend != PYTHON
    if (folder / _RUNTIME).is_file() and not (folder / library_name).is_file():
        built_in = False
    if not runtime or (built_in and runtime == library_name):
        for library in (place / library_name for place in (model_dirs if built_in else places)):
            if library.is_file():
                raise _compiled(backend, library)
        if built_in:
            return Program(None, backend=backend)
        if not (folder / _RUNTIME).is_file():
            raise _no_backend(backend)
        runtime = _RUNTIME
    file = folder / runtime
    if built_in and runtime == _RUNTIME and card.has_python_runtime and not file.is_file():
        return Program(None, runtime=runtime, backend=backend)
    if not (_is_plain(runtime) and runtime.endswith(".py") and file.is_file()):
        raise _no_runtime(config.name, runtime, places)
    packed = folder / f"pb_exec_env_{runtime}.tar.gz"
    return Program(file, file.stem, (folder,), runtime, packed if packed.is_file() else None)


def _is_plain(name: str) -> bool:
    """Whether a name stays in its own folder."""
    return "/" not in name and name not in (".", "..") and "\0" not in name


def _no_backend(backend: str) -> ServeError:
    return invalid(
        f"unable to find backend library for backend '{backend}', try specifying runtime on the model configuration."
        f"{_advice(backend)}"
    ).at("backend")


def _advice(backend: str) -> str:
    """What to do about a backend that is not there, in a sentence behind upstream's; empty for a name like no other."""
    import difflib  # not at the top: a server whose models load needs neither
    from importlib.metadata import PackageNotFoundError, metadata

    known = [card.name for card in all_cards()]
    if backend in known:
        return f" The backend '{backend}' is Triton's, and stubserve does not have it."
    with contextlib.suppress(PackageNotFoundError):
        if backend in (metadata("stubserve").get_all("Provides-Extra") or ()):
            return f" The backend '{backend}' is not installed: pip install 'stubserve[{backend}]'"
    meant = difflib.get_close_matches(backend, known, 1)
    return f" Did you mean '{meant[0]}'?" if meant else ""


def _no_runtime(model: str, runtime: str, places: tuple[Path, ...]) -> ServeError:
    if runtime == _RUNTIME:
        return invalid(
            f"unable to find Python backend based backend library '{runtime}' for model '{model}', "
            f"searched: '{places[-1] / runtime}'"
        ).at("runtime")
    if _is_plain(runtime):
        for library in (place / runtime for place in places):
            if library.is_file():
                return _compiled(runtime, library)
    searched = "".join(f"'{place}' " for place in places)
    text = f"unable to find backend library '{runtime}' for model '{model}', searched: {searched}"
    return invalid(text).at("runtime")


def _compiled(what: str, library: Path) -> ServeError:
    return unsupported(
        f"backend '{what}' is a compiled library ({library}), and stubserve runs backends in Python only. If there is "
        'a model.py beside it, runtime: "model.py" in config.pbtxt chooses that.'
    ).at("backend")


async def environment_of(program: Program, environments: Environments, config: Any, model_dir: Path) -> Environment:
    """The environment of the configuration, else that of its backend, else the server's. Raises ServeError."""
    if not card_of(program.backend).in_environments:
        return Environment()
    return await environments.find(named_in(config) or str(program.default_environment or ""), model_dir)


def idle_parts(config: Any, limits: bool = False, caches: bool = False) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The fields of a configuration that have no effect, with the reason: (path, text).

    `limits` and `caches` say whether the server has a rate limiter and a response cache.
    """
    card, backend = card_of(config.backend), config.backend or config.platform
    why = f"has no effect with backend '{backend}'"
    # In Triton these fields have no effect with other backends either.
    for part in () if card.gathers else ("batch_input", "batch_output"):
        if getattr(config, part):
            yield (part,), f"'{part}' {why}, which gets each request by itself"
    for field, _ in config.optimization.ListFields():
        if field.name not in (*_PINNED, *card.optimizations):
            yield ("optimization", field.name), f"'optimization {{ {field.name} }}' {why}"
    if config.model_operations.op_library_filename and not card.takes_operations:
        yield ("model_operations",), f"'model_operations' {why}"
    if config.cc_model_filenames:
        yield ("cc_model_filenames",), "'cc_model_filenames' has no effect: 'default_model_filename' names the file"
    idle = {"host_policy": "has no effect: instances are processes, which the system places"}
    if not card.has_engines:
        idle["secondary_devices"] = why
    if not limits:
        idle["rate_limiter"] = "has no effect without --rate-limit=execution_count"
    for name, reason in idle.items():
        for index, group in enumerate(config.instance_group):
            if any(field.name == name for field, _ in group.ListFields()):
                yield ("instance_group", index, name), f"'{name}' {reason}"
                break  # the other groups would only repeat it
    if config.response_cache.enable and not caches:
        text = "'response_cache' has no effect without a cache; --cache-config=local,size=256M gives one"
        yield ("response_cache",), text
    for index, control in enumerate(config.model_metrics.metric_control):
        family = control.metric_identifier.family
        if family != FIRST_RESPONSE:
            yield (
                ("model_metrics", "metric_control", index),
                f"Metric family '{family}' in 'metric_identifier' is not a customizable metric in Triton core. "
                "'model_metrics' has no effect on it.",
            )

"""The parts of a server: what optional features add to it. Each is a folder, and a line here that names the folder.

The module `part` of such a folder says all that a feature adds to a server: a subclass of `Part`, named PART. All
servers import these modules, so they are light: a part that its settings leave off imports nothing more. The settings
and flags of parts stay with the others (`settings/`, `flags/`): they are the vocabulary in which a server says that a
part is not installed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stubserve.errors import ServeError, unsupported
from stubserve.inference.served_model import ServedModel
from stubserve.settings.groups import Settings

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp

# The folders of parts, below `stubserve`
PARTS = (
    "observability.traces",
    "observability.gpu_metrics",
    "observability.memory_pressure",
    "response_cache",
    "commands",
    "http.pages",
    "http.openai",
    "http.platforms",
)
# Those of parts that add nothing to a server itself, and have no module `part`: what asks for them imports them.
IMPORTED_BY_NEED = (
    "repository.cloud",
    "repository.agents",
    "sequences",
    "ensembles",
    "rate_limiter",
    "redis_store",
)

# Finds a model version by name and version, for a request. Raises ServeError.
Find = Callable[[str, str], ServedModel]
# A family of metrics (`observability/families.py`), labels, and the value
Sample = tuple[str, tuple[tuple[str, str], ...], float]
# A page on the port of metrics: its path, whether reading it needs the rights for metrics, and the answer
MetricsPage = tuple[str, bool, "Callable[[], Awaitable[Response]]"]


class Port(NamedTuple):
    """One more port for HTTP: its name in the log and its protocol's name in flags, its number, and its app.

    With `own_connections` our connections read its requests, with these rules of `access` for inference.
    """

    name: str
    protocol: str
    number: int
    app: Callable[[], ASGIApp]
    own_connections: bool = False
    access: Any = None


class Part:
    """What a feature adds to one server, which is `server` here. The settings say whether the part is on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = type(self).__module__.split(".")[-2]

    @staticmethod
    def problems(config: Any) -> Iterable[ServeError]:
        """What is wrong with that of a model's configuration which only this part reads."""
        return ()

    async def start(self) -> None:
        """Called before the first load."""

    async def load(self, model: ServedModel, folder: Path) -> None:
        """A step of each load: the model has its configuration, and no instances yet. Raises ServeError."""

    async def close(self) -> None:
        """Called when the models are gone."""

    def finder(self, find: Find) -> Find:
        """What finds the model of a request to infer, made of what does so otherwise."""
        return find

    def routes(self, server: Any) -> Iterable[Route]:
        """Routes on the port of HTTP."""
        return ()

    def metrics_pages(self, server: Any) -> Iterable[MetricsPage]:
        return ()

    def ports(self, server: Any) -> Iterable[Port]:
        return ()

    def hint(self, path: str) -> str:
        """The flag that a path of HTTP needs, in a sentence; empty if no flag would make a difference."""
        return ""

    def addresses(self, http: str, metrics: str, models: Sequence[ServedModel]) -> Mapping[str, str]:
        """What people are told at the end of a start, by title. One of the two ports has its URL here, the other ''."""
        return {}

    def samples(self) -> Iterable[Sample]:
        """Current values of the metrics that this part has."""
        return ()


def parts_of(settings: Settings) -> list[Part]:
    return [kind(settings) for kind in _kinds()]


def is_installed(name: str) -> bool:
    """Whether there is a part with a folder of this name."""
    return any(folder.rpartition(".")[2] == name for folder in (*PARTS, *IMPORTED_BY_NEED))


def not_installed(name: str) -> ServeError:
    return unsupported(f"the part '{name}' of stubserve is not installed here")


def require(name: str) -> None:
    """Raises ServeError UNSUPPORTED if a part is not installed."""
    if not is_installed(name):
        raise not_installed(name)


def problems(config: Any) -> Iterator[ServeError]:
    """What the parts find wrong with a model's configuration."""
    for kind in _kinds():
        yield from kind.problems(config)


@functools.cache
def _kinds() -> Sequence[type[Part]]:
    return [importlib.import_module(f"stubserve.{folder}.part").PART for folder in PARTS]

"""What people are told of a start: progress, and the table at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.errors import ServeError
from stubserve.model_config.proto import ModelConfig
from stubserve.repository.registry import Registry, VersionState
from stubserve.server.starting import progress, shown


def ready(registry: Registry, name: str, count: int = 1, version: int = 1) -> None:
    config = ModelConfig(name=name)
    if count:
        config.instance_group.add(name=name, count=count, kind="KIND_CPU")
    model: Any = SimpleNamespace(name=name, version=version, config=config)
    registry.set_version(name, version, VersionState.READY, model=cast(Any, model))


def table(registry: Registry, width: int = 100) -> list[str]:
    return [line.rstrip() for line in shown(registry, {}, width, colored=False).splitlines() if line.strip()]


def test_progress_counts_and_names_what_is_left_where_that_is_little() -> None:
    registry = Registry()
    registry.expect([f"m{number}" for number in range(1000)])
    registry.pending -= {f"m{number}" for number in range(610)}
    assert progress(registry) == "loading models: 610/1000"
    registry.pending &= {"m998", "m999"}
    assert progress(registry) == "loading models: 998/1000, waiting for 'm998', 'm999'"


def test_a_model_that_is_to_come_is_loading_and_another_one_unknown() -> None:
    registry = Registry()
    registry.expect(["m"])
    for version in ("", "1"):
        with pytest.raises(ServeError, match=r"^model 'm' is loading$") as raised:
            registry.find("m", version)
        assert raised.value.code.http_status == 503
    with pytest.raises(ServeError, match="'other' is not found") as raised:
        registry.find("other", "")
    assert raised.value.code.http_status == 404
    registry.pending.discard("m")
    with pytest.raises(ServeError, match="'m' is not found"):
        registry.find("m", "")


def test_what_serves_already_is_found_while_its_start_goes_on() -> None:
    registry = Registry()
    registry.expect(["m"])
    ready(registry, "m")
    assert registry.find("m", "").name == "m"


def test_rows_have_instances_states_and_the_first_line_of_reasons() -> None:
    registry = Registry()
    ready(registry, "two", count=2)
    ready(registry, "ensemble", count=0)
    registry.set_version("broken", 3, VersionState.UNAVAILABLE, "Internal: KeyError: 'a'\n\nAt:\n  model.py(3): f\n")
    registry.entry("doubled").reason = "model appears in two or more repositories"
    head, _, *rows = table(registry)
    assert head.split() == ["Model", "Version", "Instances", "State", "Reason"]
    assert [row.split() for row in rows] == [
        ["broken", "3", "UNAVAILABLE", "Internal:", "KeyError:", "'a'"],
        ["doubled", "UNAVAILABLE", "model", "appears", "in", "two", "or", "more", "repositories"],
        ["ensemble", "1", "READY"],
        ["two", "1", "2", "READY"],
    ]


def test_instances_on_gpus_say_so() -> None:
    registry = Registry()
    for name, groups in (("both", "GC"), ("gpus", "G")):
        config = ModelConfig(name=name)
        for kind in groups:
            gpus = [0, 2] if kind == "G" else []
            config.instance_group.add(name=kind, count=1, gpus=gpus, kind="KIND_GPU" if gpus else "KIND_CPU")
        model: Any = SimpleNamespace(name=name, version=1, config=config)
        registry.set_version(name, 1, VersionState.READY, model=cast(Any, model))
    assert [line.split("READY")[0].split(None, 2)[2].rstrip() for line in table(registry)[-2:]] == [
        "3 on GPU 0, 2 and CPU",
        "2 on GPU 0, 2",
    ]


def test_of_many_models_only_those_are_listed_that_are_not_ready() -> None:
    registry = Registry()
    for number in range(100):
        ready(registry, f"m{number}")
    registry.set_version("broken", 1, VersionState.UNAVAILABLE, "why")
    _, _, *rows = table(registry)
    assert [row.split() for row in rows] == [["broken", "1", "UNAVAILABLE", "why"], ["100", "models", "READY"]]


def test_without_models_there_are_addresses() -> None:
    text = shown(Registry(), {"HTTP": "http://localhost:8000/v2/models", "gRPC": "localhost:8001"}, 100, colored=False)
    assert text.split() == ["HTTP", "http://localhost:8000/v2/models", "gRPC", "localhost:8001"]

"""Models of the same name from several repositories: with `--model-namespacing`, and without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import Answer, Serving, eventually, write_model
from tests.server.ensembles import load, run, unload, values, write_chain
from tests.server.test_model_control import NUMBER

AMBIGUOUS = (
    "There are 2 identifiers of model 'both' in global map, model namespace must be provided to resolve ambiguity."
)
CALLER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            call = pb_utils.InferenceRequest(
                model_name="both", requested_output_names=["OUTPUT0"], inputs=requests[0].inputs()
            )
            return [call.exec()]
"""


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("namespaces")
    first, second = home / "first", home / "second"
    write_model(first, "both", NUMBER.format(1, 1))
    write_model(second, "both", NUMBER.format(2, 2))
    write_model(first, "single", NUMBER.format(3, 3))
    write_model(second, "calls", CALLER)
    write_chain(first, "ends_in_first", "single", "both")
    write_chain(second, "ends_in_second", "single", "both")
    return first, second


@pytest.fixture(scope="module")
def server(repositories: tuple[Path, Path]) -> Iterator[Serving]:
    flags = ("--model-namespacing=true", "--model-control-mode=explicit", "--load-model=*")
    with Serving(repositories[0], f"--model-repository={repositories[1]}", *flags) as server:
        yield server


def index(server: Serving) -> list[tuple[str, str]]:
    rows = server.request("POST", "/v2/repository/index").json()
    return [(row["name"], row["state"]) for row in rows]


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.error


def test_all_are_served_and_those_of_one_name_are_ambiguous(server: Serving) -> None:
    names = ["both", "both", "calls", "ends_in_first", "ends_in_second", "single"]
    assert index(server) == [(name, "READY") for name in names]
    assert values(run(server, "single", 0)) == [3]
    assert refused(run(server, "both", 0)) == (400, AMBIGUOUS)
    assert refused(server.get("/v2/models/both")) == (400, AMBIGUOUS)
    assert refused(server.get("/v2/models/nosuch")) == (400, "Request for unknown model: 'nosuch' is not found")
    assert server.get("/v2/models/single").json()["versions"] == ["1"]
    assert server.get("/v2/health/ready").status == 200
    assert len(server.get("/v2/models/stats").json()["model_stats"]) == len(names)


def test_ensembles_and_calls_mean_the_model_beside_them_or_the_only_one(server: Serving) -> None:
    assert values(run(server, "ends_in_first", 0)) == [1]
    assert values(run(server, "ends_in_second", 0)) == [2]
    assert values(run(server, "calls", 0)) == [2]


def test_metrics_tell_them_apart(server: Serving, repositories: tuple[Path, Path]) -> None:
    text = server.metrics().body.decode()
    for repository in repositories:
        assert f'nv_inference_count{{model="both",namespace="{repository}",version="1"}} ' in text


def test_a_name_loads_and_unloads_all_that_it_stands_for(server: Serving, repositories: tuple[Path, Path]) -> None:
    assert unload(server, "both").status == 200
    eventually(lambda: index(server).count(("both", "UNAVAILABLE")) == 2)
    # Who needed them is gone, too, and comes back with them.
    assert refused(run(server, "ends_in_second", 0))[0] == 404
    assert load(server, "both").status == 200
    eventually(lambda: index(server).count(("both", "READY")) == 2)
    assert values(run(server, "ends_in_second", 0)) == [2]
    answer = load(server, "nosuch")
    assert answer.status == 500
    assert answer.error.startswith("failed to load 'nosuch', failed to poll from model repository")
    write_model(repositories[1], "both", NUMBER.format(22, 22))
    assert load(server, "both").status == 200
    assert [values(run(server, f"ends_in_{place}", 0)) for place in ("first", "second")] == [[1], [22]]
    write_model(repositories[1], "both", NUMBER.format(2, 2))
    assert load(server, "both").status == 200


def test_without_it_a_name_in_two_repositories_is_served_from_neither(repositories: tuple[Path, Path]) -> None:
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with Serving(repositories[0], f"--model-repository={repositories[1]}", *flags) as server:
        assert refused(run(server, "both", 0))[0] == 404
        rows = {row["name"]: row for row in server.request("POST", "/v2/repository/index").json()}
        assert rows["both"] == {
            "name": "both",
            "state": "UNAVAILABLE",
            "reason": "model appears in two or more repositories",
        }
        assert values(run(server, "single", 0)) == [3]
        assert re.search(r"'both': not unique across all model repositories", server.output)

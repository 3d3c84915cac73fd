"""Thread limits: which are set, who may override them, and that they arrive in the libraries."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stubserve.errors import ServeError
from stubserve.loading.launchers import allowed_cores, thread_variables, threads_per_instance, visible_cores
from stubserve.model_config.parse import parse_text
from tests.real_server import Serving, io_config, write_model

ALL = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PLAIN = parse_text('name: "m"', "c")


def with_parameter(value: str) -> object:
    return parse_text(
        f'name: "m" parameters {{ key: "THREADS_PER_INSTANCE" value {{ string_value: "{value}" }} }}', "c"
    )


@pytest.mark.parametrize(
    ("allowed", "visible", "instances", "expected"),
    [
        (8, 8, 1, 0),  # nothing to share, nothing to set
        (8, 8, 2, 4),
        (8, 8, 3, 2),
        (8, 8, 16, 1),
        (1, 1, 4, 0),
        (2, 64, 1, 2),  # a container's share
        (2, 64, 4, 1),
    ],
)
def test_cores_are_shared(allowed: int, visible: int, instances: int, expected: int) -> None:
    assert threads_per_instance(PLAIN, instances, {}, allowed=allowed, visible=visible) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", None), ("150000 100000", 2), ("10000 100000", 1), ("9900000000 100000", None), ("", None)],
)
def test_the_share_of_a_container(text: str, expected: int | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    seen = visible_cores()
    assert allowed_cores(tmp_path / "cpu.max") == (seen if expected is None else min(expected, seen))


def test_variables() -> None:
    assert thread_variables(PLAIN, 4, {}) == dict.fromkeys(ALL, "4")
    assert thread_variables(PLAIN, 0, {}) == {}


def test_the_users_own_variables_stay() -> None:
    # MKL and OpenBLAS go by this one too, so nothing may be set over it.
    own = {"OMP_NUM_THREADS": "3"}
    assert threads_per_instance(PLAIN, 2, own, allowed=8, visible=8) == 0
    own = {"MKL_NUM_THREADS": "3"}
    assert threads_per_instance(PLAIN, 2, own, allowed=8, visible=8) == 4
    assert thread_variables(PLAIN, 4, own) == {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4"}


def test_the_models_parameter_goes_first() -> None:
    own = dict.fromkeys(ALL, "3")
    config = with_parameter("5")
    assert threads_per_instance(config, 2, own, allowed=8, visible=8) == 5
    assert thread_variables(config, 5, own) == dict.fromkeys(ALL, "5")
    assert threads_per_instance(with_parameter("0"), 2, {}, allowed=8, visible=8) == 0


@pytest.mark.parametrize("value", ["", "-1", "many", "1.5", "²"])
def test_a_parameter_that_is_no_number(value: str) -> None:
    with pytest.raises(ServeError) as caught:
        threads_per_instance(with_parameter(value), 1, {})
    assert caught.value.status_text == (
        "Invalid argument: parameter 'THREADS_PER_INSTANCE' of model 'm' must be a number of threads, or 0 for no "
        f"limit. Got '{value}'"
    )


REPORT = """
    import json, os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
            print("LIMITS", args["model_instance_name"], json.dumps([os.environ.get(name) for name in names]))

        def execute(self, requests):
            pass
"""


def test_stubs_get_their_limits(repository: Path) -> None:
    count = visible_cores() + 1
    write_model(repository, "many", REPORT, io_config(extra=f"instance_group {{ count: {count} kind: KIND_CPU }}"))
    parameter = 'parameters { key: "THREADS_PER_INSTANCE" value { string_value: "7" } }'
    write_model(repository, "told", REPORT, io_config(extra=parameter))
    unset = {name: value for name, value in os.environ.items() if name not in ALL}
    serving = Serving(repository)
    serving.environment = unset
    with serving as server:
        for index in range(count):
            assert json.loads(server.wait_for(rf"LIMITS many_0_{index} (.*)")[1]) == ["1", "1", "1"]
        assert json.loads(server.wait_for(r"LIMITS told_0 (.*)")[1]) == ["7", "7", "7"]
        memory = server.statistics("told")["memory_usage"]
        (row,) = memory
        assert (row["type"], row["id"]) == ("CPU", 0)
        # An interpreter with numpy: well above a megabyte, well below what its mapped libraries and the arena take.
        assert 2 << 20 < row["byte_size"] < 200 << 20
        (rows,) = server.statistics("many")["memory_usage"]
        assert rows["byte_size"] > 2 * row["byte_size"]
    serving = Serving(repository)
    serving.environment = unset | {"OMP_NUM_THREADS": "3"}
    with serving as server:
        assert json.loads(server.wait_for(r"LIMITS many_0_0 (.*)")[1]) == ["3", None, None]
        assert json.loads(server.wait_for(r"LIMITS told_0 (.*)")[1]) == ["7", "7", "7"]

"""The picture of an ensemble's time line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.real_server import Serving, io_config, write_model
from tools.timeline import WIDTH, Step, drawn, timed

ROOT = Path(__file__).parents[2]

FORK = """
platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "last" model_version: -1
      input_map { key: "INPUT0" value: "t" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
    },
    {
      model_name: "first" model_version: -1
      input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "t" }
    }
  ]
}
"""


def step(model: str, inputs: str, outputs: str) -> dict[str, object]:
    return {
        "model_name": model,
        "input_map": {name: name for name in inputs.split()},
        "output_map": {name: name for name in outputs.split()},
    }


def test_steps_begin_when_their_inputs_are_there() -> None:
    steps = [step("join", "u v", "OUT"), step("short", "t", "u"), step("long", "t", "v"), step("first", "IN", "t")]
    milliseconds = {"first": (1, 9), "short": (0, 5), "long": (10, 20), "join": (0, 10)}
    spent = {name: {"queue": 2 * q * 10**6, "compute": 2 * c * 10**6} for name, (q, c) in milliseconds.items()}
    assert timed(steps, spent, 2) == [
        Step("first", 0, 1, 9),
        Step("short", 10, 0, 5),
        Step("long", 10, 10, 20),
        Step("join", 40, 0, 10),
    ]


def test_a_model_in_two_steps_has_its_time_shared() -> None:
    steps = [step("m", "IN", "t"), step("m", "t", "OUT")]
    assert timed(steps, {"m": {"queue": 0, "compute": 8_000_000}}, 1) == [Step("m", 0, 0, 4), Step("m", 4, 0, 4)]


def test_the_picture() -> None:
    first, second = drawn([Step("a", 0, WIDTH / 2, WIDTH / 4), Step("long", 3 * WIDTH / 4, 0, WIDTH / 4)])
    assert first.startswith("a     " + "." * (WIDTH // 2) + "#" * (WIDTH // 4) + " ")
    assert second.startswith("long  " + " " * (3 * WIDTH // 4) + "#" * (WIDTH // 4) + " ")
    assert second.endswith(f"queue 0.0 ms, compute {WIDTH / 4:.1f} ms")


def test_of_a_server(repository: Path) -> None:
    write_model(repository, "first", config=io_config())
    write_model(repository, "last", config=io_config())
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(FORK)
    ask = "import urllib.request as r; r.urlopen('http://{}/v2/models/{}/infer', data=b'{}').read()"
    body = '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}'
    with Serving(repository) as server:
        url = f"127.0.0.1:{server.port}"

        def run(ensemble: str, *command: str) -> subprocess.CompletedProcess[str]:
            words = [sys.executable, "-m", "tools.timeline", "--url", url, ensemble, *command]
            return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)

        done = run("both", sys.executable, "-c", ask.format(url, "both", body))
        assert done.returncode == 0, done.stderr
        head, *lines = done.stdout.splitlines()
        assert head == "both: mean of 1 request"
        assert [line.split()[0] for line in lines] == ["first", "last"]
        for ensemble, command, error in (
            ("first", ("true",), "first is no ensemble"),
            ("both", ("true",), "no request of both was answered meanwhile"),
            ("both", ("false",), "timeline stopped"),
            ("nosuch", ("true",), "timeline stopped"),
            ("both", (), "a command that sends requests is missing"),
        ):
            done = run(ensemble, *command)
            assert done.returncode != 0
            assert error in done.stderr

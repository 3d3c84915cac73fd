"""Backends of packages in a real server: what `ArrayBackend` does for them, and what their cards say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.packages import install
from tests.real_server import WORK_S, Serving, write_model

SOURCE = """
import os
import numpy as np
from stubserve_stub.backends.arrays import ArrayBackend
from stubserve_stub.backends.card import Card, ModelFile

CARD = Card(
    "forest", "forest:Forest", files=(ModelFile("model.forest"),), gathers=True, package={package!r},
    checks_config={check!r}, checks_files={check!r},
    limits_threads="forest:limit", variables=(("FOREST", "evergreen"), ("FOREST_SET", "card")),
)
limits = []

def limit(threads):
    limits.append(threads)

class Forest(ArrayBackend):
    def load(self, config, version_dir):
        with open(os.path.join(version_dir, "model.forest")) as file:
            self.compute_outputs = eval(file.read())

    def predict(self, inputs, outputs):
        return self.compute_outputs(inputs)
"""
STATE = """
sequence_batching { state {
  input_name: "OLD" output_name: "NEW" data_type: TYPE_FP32 dims: [ 2 ]
  initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }
} }
"""


def write_forest(repository: Path, name: str, source: str, datatype: str = "FP32", extra: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.forest").write_text(f"lambda inputs: {source}")
    (repository / name / "config.pbtxt").write_text(f"""
        backend: "forest"
        max_batch_size: 4
        input [ {{ name: "INPUT0" data_type: TYPE_{datatype} dims: [ 2 ] }} ]
        output [ {{ name: "OUTPUT0" data_type: TYPE_{datatype} dims: [ 2 ] }} ]
        {extra}
    """)


def site_of(tmp_path: Path, package: str = "", check: str = "") -> Path:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "trees", "forest=forest:CARD", SOURCE.format(package=package, check=check))
    return site


def test_what_arrays_become(tmp_path: Path, repository: Path) -> None:
    write_forest(repository, "sums", "dict.fromkeys(('OUTPUT0', 'NEW'), inputs['INPUT0'] + inputs['OLD'])", extra=STATE)
    write_forest(repository, "nothing", "None")
    threads = 'parameters { key: "THREADS_PER_INSTANCE" value { string_value: "3" } }'
    facts = "[[limits[0], os.environ['FOREST'] == 'evergreen' and os.environ['FOREST_SET'] == 'server']]"
    write_forest(repository, "facts", f"{{'OUTPUT0': np.array({facts}, np.float32)}}", extra=threads)
    environment = {"PYTHONPATH": str(site_of(tmp_path)), "FOREST_SET": "server"}
    with Serving(repository, environment=environment) as server:

        def ask(model: str, **parameters: object) -> list[float]:
            tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
            answer = server.infer_json(model, [tensor], parameters=parameters)
            assert answer.status == 200, answer
            values: list[float] = answer.json()["outputs"][0]["data"]
            return values

        assert ask("sums", sequence_id=1, sequence_start=True) == [1, 2]
        assert ask("sums", sequence_id=1, sequence_end=True) == [2, 4]
        assert ask("facts") == [3, 1]
        refused = server.infer_array("nothing", np.ones((1, 2), np.float32))
        assert refused.error == "model 'nothing' has not made outputs by their names, but a NoneType"


def test_bf16_is_never_another_types_bytes(tmp_path: Path, repository: Path) -> None:
    pytest.importorskip("ml_dtypes")
    write_forest(repository, "halves", "{'OUTPUT0': inputs['INPUT0'] / inputs['INPUT0'].dtype.type(2)}", "BF16")
    write_forest(repository, "wide", "{'OUTPUT0': np.ones((1, 2))}", "BF16")
    with Serving(repository, environment={"PYTHONPATH": str(site_of(tmp_path))}) as server:
        halved = server.infer_array("halves", np.array([[0x4080, 0x4000]], np.uint16), "BF16")
        assert halved.body.endswith(np.array([0x4000, 0x3F80], np.uint16).tobytes()), halved
        wide = server.infer_array("wide", np.zeros((1, 2), np.uint16), "BF16")
        assert wide.status == 500
        assert "expects datatype TYPE_BF16 for output 'OUTPUT0', model 'wide' provides an array of" in wide.error


def check(repository: Path, site: Path) -> str:
    command = [sys.executable, "-m", "stubserve", "check", str(repository)]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, capture_output=True, text=True, timeout=WORK_S, env=environment).stdout


def test_check_goes_on_after_a_check_that_fails(tmp_path: Path, repository: Path) -> None:
    write_forest(repository, "a", "{}")
    write_model(repository, "b", "def")
    told = check(repository, site_of(tmp_path, package="nothing.like_it", check="forest:missing"))
    failed = "the check forest:missing of the backend 'forest' has failed: AttributeError: module 'forest' has no"
    assert f"a/config.pbtxt: warning: {failed}" in told
    assert f"a/1: warning: {failed}" in told
    assert "the backend forest needs the package nothing.like_it, which the environment" in told
    assert "does not have: install it there, or the parameter" in told
    assert "b/1/model.py:1: error: " in told

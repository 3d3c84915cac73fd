"""Backends written in Python: one `model.py` in the backend directory serves many models."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.environments.made import venv
from tests.real_server import Serving, binary_output

# Scales by the factor in the version folder's model.json, and says what it was given.
SCALE = """
import json, os, sys
import triton_python_backend_utils as pb_utils
import scale_helper

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(4)
        return config

    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
            self.factor = json.load(file)["factor"]
        facts = {"module": __name__, "package": __package__, "path": sys.path[-1], "args": args}
        facts["runtime"] = json.loads(args.pop("model_config"))["runtime"]
        print("FACTS " + json.dumps(facts), flush=True)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("OUTPUT0", scale_helper.scale(request.inputs()[0].as_numpy(), self.factor))
            ])
            for request in requests
        ]
"""


def test_one_backend_serves_many_models(tmp_path: Path) -> None:
    backend = tmp_path / "backends" / "scale"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(SCALE)
    (backend / "scale_helper.py").write_text("def scale(array, factor):\n    return array * array.dtype.type(factor)\n")
    repository = tmp_path / "models"
    # The last one has no configuration at all: its name ends in the backend's.
    for name, version, config in (
        ("double", 1, 'backend: "scale"'),
        ("triple", 3, 'backend: "scale"\nruntime: "model.py"'),
        ("tenfold.scale", 1, None),
    ):
        folder = repository / name / str(version)
        folder.mkdir(parents=True)
        factor = {"double": 2, "triple": 3, "tenfold.scale": 10}[name]
        (folder / "model.json").write_text(json.dumps({"factor": factor}))
        if config is not None:
            (repository / name / "config.pbtxt").write_text(config)
    array = np.arange(3, dtype=np.float32).reshape(1, 3)
    with Serving(repository, f"--backend-directory={tmp_path / 'backends'}") as server:
        for name, factor in (("double", 2), ("triple", 3), ("tenfold.scale", 10)):
            np.testing.assert_array_equal(binary_output(server.infer_array(name, array)), array * factor)
        config = server.get("/v2/models/double/config").json()
        assert (config["backend"], config["runtime"], config["default_model_filename"]) == ("scale", "model.py", "")
        assert config["max_batch_size"] == 4
        line = server.wait_for(r'FACTS (.*"triple_0".*)')[1]
    facts = json.loads(line)
    assert facts == {
        "module": "model",
        "package": "",
        "path": str(backend),
        "runtime": "model.py",
        "args": {
            "model_instance_kind": "CPU",
            "model_instance_name": "triple_0",
            "model_instance_device_id": "0",
            "model_repository": str(repository / "triple"),
            "model_version": "3",
            "model_name": "triple",
        },
    }


def test_an_error_in_the_backend_fails_its_models_only(tmp_path: Path) -> None:
    for backend, source in (("good", SCALE.replace("import scale_helper", "")), ("bad", "import nosuchmodule\n")):
        (tmp_path / "backends" / backend).mkdir(parents=True)
        (tmp_path / "backends" / backend / "model.py").write_text(source)
        folder = tmp_path / "models" / backend / "1"
        folder.mkdir(parents=True)
        (folder / "model.json").write_text('{"factor": 1}')
        (folder.parent / "config.pbtxt").write_text(f'backend: "{backend}"')
    with Serving(
        tmp_path / "models", f"--backend-directory={tmp_path / 'backends'}", "--exit-on-error=false"
    ) as server:
        index = {row["name"]: row for row in server.request("POST", "/v2/repository/index").json()}
        assert index["good"]["state"] == "READY"
        reason = index["bad"]["reason"]
        assert reason.startswith("Internal: ModuleNotFoundError: No module named 'nosuchmodule'\n\nAt:\n")
        assert f"  {tmp_path / 'backends' / 'bad' / 'model.py'}(1): <module>\n" in reason


@pytest.mark.long
def test_a_backend_brings_its_environment(tmp_path: Path) -> None:
    environment = venv("3.10", "1.23.5")
    backend = tmp_path / "backends" / "scale"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(SCALE.replace("import scale_helper", "print('PREFIX', sys.prefix)"))
    packed = backend / "pb_exec_env_model.py.tar.gz"
    with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
        archive.add(environment, ".")
    # The second model names an environment itself, which goes before.
    own = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    for name, parameters in (("given", ""), ("own", own)):
        folder = tmp_path / "models" / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.json").write_text('{"factor": 1}')
        (folder.parent / "config.pbtxt").write_text(f'backend: "scale" {parameters}')
    cache = tmp_path / "cache"
    with Serving(
        tmp_path / "models", f"--backend-directory={tmp_path / 'backends'}", f"--environment-cache={cache}"
    ) as server:
        server.wait_for(f"Using Python execution env {packed}")
        server.wait_for(f"PREFIX {cache}/")
        server.wait_for(f"PREFIX {environment}\n")
        server.wait_for_all("Extracting Python execution env", 1)

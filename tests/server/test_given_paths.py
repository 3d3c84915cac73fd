"""What `stubserve serve` may be given in place of a repository: one model, its file, or a folder close to one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.real_server import Serving, binary_output, io_config, refused, write_model

HELPED = """
    import helper
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
            config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
            return config

        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + helper.MORE)])]
"""


@pytest.mark.parametrize("given", ["echo", "echo/1", "echo/1/model.py"])
def test_one_model_of_a_repository_is_served_alone(repository: Path, given: str) -> None:
    write_model(repository, "echo")
    write_model(repository, "other")
    with Serving(repository / given) as server:
        assert server.infer_array("echo", np.ones(2, np.float32)).status == 200
        assert [row["name"] for row in server.request("POST", "/v2/repository/index").json()] == ["echo"]


@pytest.mark.parametrize(("given", "name"), [("lone", "lone"), ("lone/model.py", "lone"), ("lone/net.py", "net")])
def test_a_file_without_a_version_is_served(tmp_path: Path, given: str, name: str) -> None:
    write_model(tmp_path, "lone", HELPED)
    folder = tmp_path / "lone"
    shutil.move(folder / "1" / "model.py", folder / Path(given).name if given.endswith(".py") else folder / "model.py")
    shutil.rmtree(folder / "1")
    (folder / "config.pbtxt").unlink()
    (folder / "helper.py").write_text("MORE = 3\n")
    with Serving(tmp_path / given) as server:
        answer = server.infer_array(name, np.ones(2, np.float32))
        np.testing.assert_array_equal(binary_output(answer), [4, 4])


@pytest.mark.parametrize("stray", ["config.pbtxt", "model.py", "1"])
def test_a_stray_file_beside_models_does_not_hide_them(repository: Path, stray: str) -> None:
    """As upstream, which looks at folders only; a folder without a model's file is a model that cannot be loaded."""
    write_model(repository, "echo")
    if stray == "1":
        (repository / "1").mkdir()
    else:
        shutil.copy(next((repository / "echo").rglob(stray)), repository / stray)
    with Serving(repository, "--exit-on-error=false") as server:
        assert server.infer_array("echo", np.ones(2, np.float32)).status == 200
        if stray == "config.pbtxt":
            server.wait_for(rf"ignore '{repository}/config.pbtxt': it belongs in the folder of a model")


def test_an_empty_repository_says_what_belongs_there(repository: Path) -> None:
    with Serving(repository) as server:
        server.wait_for(rf"there are no models in {repository}\. .*stubserve init {repository}/NAME")
        assert server.get("/v2/health/ready").status == 200


def test_a_folder_above_the_repository_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "project" / "docs").mkdir(parents=True)
    write_model(tmp_path / "project" / "models", "echo")
    server = refused(tmp_path / "project")
    server.wait_for(rf"but there are in {tmp_path}/project/models: name that one")


def test_a_folder_that_is_not_there_may_be_misspelt(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    server = refused(tmp_path / "model")
    server.wait_for(rf"'{tmp_path}/model' does not exist\. Did you mean '{tmp_path}/models'\?")


def test_a_failing_model_gets_no_advice_on_folders(repository: Path) -> None:
    write_model(repository, "broken", config=io_config(datatype="FP33"))
    assert "stubserve init" not in refused(repository).output

"""The backend in a real server: `pip install -e .` first, so that the server finds it."""

import pytest

from stubserve import testing


@pytest.fixture
def repository(tmp_path):
    version = tmp_path / "models" / "triple" / "1"
    version.mkdir(parents=True)
    (version / "model.newbackend").write_text("3\n")
    return tmp_path / "models"


def test_a_model_without_a_configuration(repository):
    with testing.serve(repository) as server:
        assert server.infer("triple", INPUT=[[1, 2], [3, 4]])["OUTPUT"].tolist() == [[3, 6], [9, 12]]


def test_a_parameter(repository):
    config = 'backend: "newbackend"\nparameters { key: "FACTOR" value { string_value: "5" } }\n'
    (repository / "triple" / "config.pbtxt").write_text(config)
    with testing.serve(repository) as server:
        assert server.infer("triple", INPUT=[[1, 2]])["OUTPUT"].tolist() == [[5, 10]]

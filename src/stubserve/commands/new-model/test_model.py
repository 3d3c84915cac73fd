"""Tests of the model in this process, without a server: python -m pytest (which `pip install pytest` brings)."""

from pathlib import Path

import pytest

from stubserve import testing


@pytest.fixture
def model():
    with testing.load(Path(__file__).parent) as loaded:
        yield loaded


def test_numbers_are_doubled(model):
    assert model.infer(X=[[1, 2, 3]])["Y"].tolist() == [[2, 4, 6]]


def test_requests_of_a_batch_are_answered_in_their_order(model):
    first, second = model.execute([{"X": [[1]]}, {"X": [[2], [3]]}])
    assert first["Y"].tolist() == [[2]]
    assert second["Y"].tolist() == [[4], [6]]

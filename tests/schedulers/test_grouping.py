from __future__ import annotations

import struct

import pytest

from stubserve.inference.tensor import Tensor
from stubserve.inference.work import Grouping

from .requests import INT32, request


@pytest.mark.parametrize(
    ("grouping", "one", "other", "together"),
    [
        pytest.param(Grouping(), request(width=2), request(width=3), True, id="nothing to compare"),
        pytest.param(Grouping(["IN"]), request(width=2), request(width=2), True, id="same shape"),
        pytest.param(Grouping(["IN"]), request(width=2), request(width=3), False, id="other shape"),
        pytest.param(Grouping(["IN"]), request(size=1), request(size=4), True, id="batch dimension does not count"),
        pytest.param(Grouping(["OPT"]), request(width=2), request(width=3), True, id="IN is not variable"),
        pytest.param(Grouping([], [], True), request(), request(optional=1), False, id="more inputs"),
        pytest.param(Grouping([], [], True), request(optional=1), request(), False, id="fewer inputs"),
        pytest.param(Grouping([], [], True), request(optional=1), request(optional=1), True, id="same inputs"),
        pytest.param(
            Grouping([], [], True), request(optional=1), request(optional=2), True, id="only presence of OPT counts"
        ),
        pytest.param(
            Grouping(["OPT"], [], True), request(optional=1), request(optional=2), False, id="OPT optional and variable"
        ),
        pytest.param(Grouping(["OPT"], [], True), request(), request(optional=1), False, id="variable OPT missing"),
    ],
)
def test_who_may_share_a_batch(grouping, one, other, together):
    assert (grouping.key(one) == grouping.key(other)) is together


def test_the_order_of_inputs_and_the_type_of_shapes_do_not_matter():
    grouping = Grouping(["IN", "OPT"])
    one, other = request(optional=2), request(optional=2)
    other.inputs.reverse()
    for tensor in other.inputs:
        tensor.shape = tuple(tensor.shape)
    assert grouping.key(one) == grouping.key(other)


def test_shape_tensors_are_compared_by_value():
    grouping = Grouping([], ["SHAPE"])

    def with_shape(*values: int):
        r = request()
        r.inputs.append(Tensor("SHAPE", INT32, [len(values)], struct.pack(f"<{len(values)}i", *values)))
        return grouping.key(r)

    assert with_shape(2, 3) == with_shape(2, 3)
    assert with_shape(2, 3) != with_shape(3, 2)
    assert with_shape(2, 3) != with_shape(2)
    # A shape tensor has no batch dimension, so its first dimension counts, too.
    assert with_shape() != with_shape(0)


def test_trivial_says_that_keys_are_always_equal():
    assert Grouping().trivial
    assert not Grouping(["IN"]).trivial
    assert not Grouping([], ["IN"]).trivial
    assert not Grouping([], [], True).trivial

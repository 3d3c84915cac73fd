"""What traces keep of tensors."""

from __future__ import annotations

import gc

import pytest

from stubserve.errors import ServeError
from stubserve.inference.tensor import Tensor
from stubserve.inference.trace import BACKEND_OUTPUT, MOST_KEPT, QUEUE_INPUT, TENSOR_BYTES, Trace
from stubserve.memory.client_regions import ClientRegions
from stubserve.memory.regions import RegionSpan
from tests.client_memory import SharedFile
from tests.inference.models import request, zeros
from tests.inference.traces import Collected


def test_what_is_under_way_keeps_no_more_than_the_bound() -> None:
    collected = Collected(TENSOR_BYTES)
    trace = Trace(collected, "m", 1, "HTTP", 1)
    child = trace.child("other", 1, 1)
    large = zeros("IN", (TENSOR_BYTES,), itemsize=1)
    count = MOST_KEPT // TENSOR_BYTES
    # With the names and shapes of all of them the last has no room.
    trace.capture(QUEUE_INPUT, [large] * (count // 2))
    child.capture(QUEUE_INPUT, [large] * (count // 2))
    child.capture(BACKEND_OUTPUT, [zeros("OUT", (1,))])
    assert (len(trace.tensors), len(child.tensors), child.left_out) == (count // 2, count // 2, 1)
    request(trace=child).end_trace()
    other = Trace(collected, "m", 1, "HTTP", 1)
    other.capture(QUEUE_INPUT, [large])
    assert (len(other.tensors), other.left_out) == (0, 1)
    request(trace=trace).end_trace()
    other.capture(QUEUE_INPUT, [large] * count)
    assert (len(other.tensors), other.left_out) == (count - 1, 2)
    request(trace=other).end_trace()
    assert [len(tree) for tree in collected.trees] == [2, 1]


def test_what_was_collected_is_gone_without_pythons_collector() -> None:
    """Else tensors of a tree would be kept until that comes by, and count nowhere."""
    collected = Collected(TENSOR_BYTES)
    gc.collect()
    gc.disable()
    try:
        trace = Trace(collected, "gone", 1, "HTTP", 1)
        child = trace.child("gone", 1, 1)
        request(trace=child).end_trace()
        request(trace=trace).end_trace()
        assert [one.model for tree in collected.trees for one in tree] == ["gone", "gone"]
        collected.trees.clear()
        del trace, child
        assert [one for one in gc.get_objects() if isinstance(one, Trace) and one.model == "gone"] == []
    finally:
        gc.enable()


def test_copies_without_data_count_too() -> None:
    trace = Trace(Collected(0), "m", 1, "HTTP", 1)
    tensor = zeros("IN", (0,) * 50_000)
    for _ in range(40):
        trace.capture(BACKEND_OUTPUT, [tensor])
    assert trace.left_out
    request(trace=trace).end_trace()


def test_names_and_shapes_are_had_without_a_look_at_the_data() -> None:
    trace = Trace(Collected(0), "m", 1, "HTTP", 1)
    regions = ClientRegions()
    with SharedFile(4096) as file:
        regions.register("in", file.key, 0, 4096)
        gone = Tensor("IN", 11, (2, 512), None, RegionSpan(regions.find("in", 0, 4096)))
        file.shrink(0)
    with pytest.raises(ServeError):
        assert gone.buffer
    trace.capture(QUEUE_INPUT, [gone])
    regions.unregister("")
    [copy] = trace.tensors
    assert (copy.name, copy.shape, copy.data, copy.nbytes) == ("IN", (2, 512), b"", 4096)
    request(trace=trace).end_trace()


@pytest.mark.parametrize("wanted", [64, TENSOR_BYTES])
def test_no_more_is_read_of_a_region_than_is_kept(wanted: int) -> None:
    """What lies behind it is gone, and is not missed."""
    collected = Collected(wanted)
    trace = Trace(collected, "m", 1, "HTTP", 1)
    regions = ClientRegions()
    with SharedFile(bytes(range(64)) + bytes(TENSOR_BYTES + 4032)) as file:
        regions.register("in", file.key, 0, file.nbytes)
        tensor = Tensor("IN", 2, (file.nbytes - 16,), None, RegionSpan(regions.find("in", 16, file.nbytes - 16)))
        file.shrink(16 + wanted)
        trace.capture(QUEUE_INPUT, [tensor])
    regions.unregister("")
    [copy] = trace.tensors
    assert (copy.data, copy.nbytes) == ((bytes(range(16, 64)) + bytes(wanted))[:wanted], TENSOR_BYTES + 4080)
    request(trace=trace).end_trace()

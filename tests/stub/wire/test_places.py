"""Where a tensor is: every kind of place in its bytes, and back."""

from __future__ import annotations

from typing import Any

import pytest
from stubserve_stub.wire import messages, places, strings
from stubserve_stub.wire.layout import INLINE_BYTES, LISTED_STRINGS
from stubserve_stub.wire.places import DEVICE_BASE, AsList, InArena, InRegion, Lent, OnDevice, Place, Shared, Zeros

# The format, to the byte: whoever changes one of these changes WIRE_VERSION as well.
GOLDEN: list[tuple[Place, str]] = [
    (b"", "c400"),
    (b"\1\2", "c4020102"),
    (InArena(4096, 1025), "9301cd1000cd0401"),
    (InArena(1 << 40, 1 << 33), "9301cf0000010000000000cf0000000200000000"),
    (Shared(4096, 1025), "9302cd1000cd0401"),
    (Lent(4160, 1025, 4096), "9403cd1040cd0401cd1000"),
    (InRegion(7, 64, 1025), "94040740cd0401"),
    (OnDevice(DEVICE_BASE + 256, 1025, 1), "9405cf2000000000000100cd040101"),
    (AsList((b"a", b"\xff\0", b"")), "920793c40161c402ff00c400"),
    (Zeros(1025), "9208cd0401"),
]


@pytest.mark.parametrize(("place", "golden"), GOLDEN)
def test_the_bytes_of_a_place(place: Place, golden: str) -> None:
    packed = messages.pack(place)
    assert packed.hex() == golden
    read = places.unpack(messages.unpack(packed))
    assert read == place
    assert type(read) is type(place)


def test_a_place_names_its_fields() -> None:
    lent = places.unpack((3, 4160, 1025, 4096))
    assert isinstance(lent, Lent)
    assert (lent.offset, lent.nbytes, lent.within) == (4160, 1025, 4096)
    region = places.unpack((4, 7, 64, 1025))
    assert isinstance(region, InRegion)
    assert (region.region, region.offset, region.nbytes) == (7, 64, 1025)


def test_kinds_with_the_same_fields_are_not_equal() -> None:
    assert places.unpack((1, 64, 128)) != places.unpack((2, 64, 128))


@pytest.mark.parametrize(
    "wire",
    [
        None,
        7,
        "text",
        (),
        (0, 1, 2),
        (6, 1),
        (6, "[]"),
        (6, b"[]", 2),
        (7, "a"),
        (7, b"a"),
        (7, (b"a", "b")),
        (7, (b"a",), 2),
        (8, 1, 2),
        (8, -1),
        (8, b""),
        ("1", 1, 2),
        (1, 64),
        (1, 64, 128, 192),
        (1, -64, 128),
        (1, 64, -1),
        (1, 64, 128.0),
        (1, True, 128),
        (3, 64, 128),
        (5, 2, 1, b"handle", 0, 128),
        [1, 64, 128],
        {1: 64},
        ([], 1),
    ],
)
def test_what_is_no_place_is_refused(wire: Any) -> None:
    with pytest.raises(ValueError, match="no place of a tensor"):
        places.unpack(wire)


def test_what_is_refused_where_nobody_can_use_it() -> None:
    assert places.refusal(InRegion(7, 0, 64)) == "lies in a client's shared memory (region 7), of which nobody has told"
    assert places.refusal(AsList([])) == "is a list of strings, which only a tensor of BYTES may be"
    assert places.refusal(Zeros(8)) == "is zeros that lie nowhere, which only inputs of empty slots may be"
    assert not places.refusal(b"")
    assert not places.refusal(InArena(0, 64))


@pytest.mark.parametrize(
    ("elements", "are_listed"),
    [
        ([], False),
        ([b"alone"], False),
        ([b"", b""], True),
        ([b"x"] * LISTED_STRINGS, True),
        ([b"x"] * (LISTED_STRINGS + 1), False),
        ([b"x" * (INLINE_BYTES - 8), b""], True),
        ([b"x" * (INLINE_BYTES - 7), b""], False),
    ],
)
def test_which_strings_travel_one_by_one(elements: list[bytes], are_listed: bool) -> None:
    nbytes = len(strings.join(elements))
    assert places.are_listed(len(elements), nbytes) == are_listed
    assert places.AsList(elements).nbytes == nbytes

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block
from stubserve.response_cache.entry import ENTRY_BYTES, OUTPUT_BYTES, CacheEntry, fill, lent, with_room
from stubserve.response_cache.key import APART_BYTES, is_quick, key_of
from stubserve.response_cache.local import LocalStore
from stubserve.response_cache.serialized import BadEntry, from_bytes, to_bytes
from tests.inference.models import request as make

FP32, BYTES, INT32 = 11, 13, 8

OUTPUTS = ["O", "P"]


def key(one: Request) -> bytes:
    return key_of(b"m", OUTPUTS, one)


def request(*inputs: Tensor, **more: Any) -> Request:
    return make(*inputs or [tensor()], **more)


def tensor(name: str = "I", data: bytes = b"abcdefgh", shape: tuple[int, ...] = (2,), datatype: int = FP32) -> Tensor:
    return Tensor(name, datatype, shape, data)


@dataclass
class Arena:
    """Blocks that are counted; there are as many as `room` says."""

    room: int = 100
    live: list[Block] = field(default_factory=list)

    def spare(self, nbytes: int) -> Block | None:
        if len(self.live) >= self.room:
            return None
        block = Block(64, nbytes, memoryview(bytearray(nbytes)), self.live.remove)
        self.live.append(block)
        return block

    def tensor(self, data: bytes, name: str = "O") -> Tensor:
        block = self.spare(len(data))
        assert block is not None
        block.view[:] = data
        return Tensor(name, FP32, (len(data) // 4,), None, block.whole())


def test_equal_requests_have_one_key_whoever_asks() -> None:
    a = request(id="a", priority=3, timeout_us=7)
    b = request(id="b")
    assert key(a) == key(b)


def test_shapes_as_lists_and_parameters_in_any_order_make_no_difference() -> None:
    listed = Tensor("I", FP32, [2], b"abcdefgh")
    assert key(request(listed)) == key(request())
    assert key(request(parameters={"a": 1, "b": 2})) == key(request(parameters={"b": 2, "a": 1}))
    assert key(request(parameters={})) == key(request())


def test_bytes_of_the_arena_have_the_key_of_bytes_in_the_message() -> None:
    for size in (16, APART_BYTES + 4):
        data = bytes(range(256)) * (size // 256 + 1)
        inline = Tensor("O", FP32, (size // 4,), data[:size])
        assert key(request(Arena().tensor(data[:size]))) == key(request(inline))


@pytest.mark.parametrize(
    "other",
    [
        request(tensor(data=b"abcdefgX")),
        request(tensor(shape=(1, 2))),
        request(tensor(datatype=INT32)),
        request(tensor(name="J")),
        request(tensor(), tensor("J")),
        request(parameters={"a": 1}),
        request(parameters={"a": True}),
        request(parameters={"a": 1.0}),
        request(parameters={"a": "1"}),
        request(requested_outputs=["O"]),
        request(requested_outputs=["O", "Q"]),
        request(requested_outputs=[]),
        request(correlation_id=1),
        request(correlation_id="1"),
        request(flags=1),
    ],
)
def test_whatever_may_change_the_answer_changes_the_key(other: Request) -> None:
    assert key(other) != key(request())
    assert key(other) != key(request(parameters={"b": 1}))


def test_who_names_no_outputs_wants_all() -> None:
    assert key(request(requested_outputs=["P", "O"])) == key(request(requested_outputs=["O", "P"])) == key(request())


def test_keys_do_not_run_together() -> None:
    ab = request(tensor("a", b"bc"), tensor("d", b"e"))
    others = [
        request(tensor("a", b"b"), tensor("d", b"ce")),
        request(tensor("ab", b"c"), tensor("d", b"e")),
        request(tensor("d", b"e"), tensor("a", b"bc")),
    ]
    assert len({key(one) for one in (ab, *others)}) == 4
    assert key_of(b"other model", OUTPUTS, ab) != key(ab)


def test_a_large_input_is_not_for_the_event_loop() -> None:
    assert is_quick(request(tensor(data=b"x" * 60_000)))
    assert not is_quick(request(tensor(data=b"x" * 40_000), tensor(data=b"x" * 40_000)))


def test_an_entry_has_memory_of_its_own_and_nobody_may_write_to_what_it_gives() -> None:
    stub, ingress = Arena(), Arena()
    response = Response([stub.tensor(b"12345678"), Tensor("P", FP32, (1,), b"abcd")], {"n": 1})
    given = lent(response)
    kept = with_room(given, ingress.spare)
    assert kept is not None
    fill(kept, given)
    given.drop()
    for one in response.outputs:
        if one.span is not None:
            one.span.drop()
    assert not stub.live  # the entry pins no memory of a stub
    first, second = kept.response(), kept.response()
    assert [bytes(one.buffer) for one in first.outputs] == [b"12345678", b"abcd"]
    assert [(one.name, one.datatype, one.shape) for one in first.outputs] == [("O", FP32, (2,)), ("P", FP32, (1,))]
    assert first.outputs[0].span is not None
    assert first.outputs[0].span.shared
    assert first.parameters == {"n": 1}
    assert first.parameters is not second.parameters
    kept.drop()
    assert len(ingress.live) == 1  # two readers still have it
    for one in (*first.outputs, *second.outputs):
        if one.span is not None:
            one.span.drop()
    assert not ingress.live


def test_an_entry_that_finds_no_room_leaves_nothing_behind() -> None:
    stub, ingress = Arena(), Arena(room=1)
    given = lent(Response([stub.tensor(b"1234"), stub.tensor(b"5678", "P")]))
    assert with_room(given, ingress.spare) is None
    assert not ingress.live


def entry(nbytes: int) -> CacheEntry:
    return CacheEntry([Tensor("O", 2, (nbytes,), b"x" * nbytes)], None)


def test_who_was_asked_for_longest_ago_goes_first() -> None:
    size = ENTRY_BYTES + OUTPUT_BYTES + 100
    store = LocalStore(3 * size)
    for key in (b"a", b"b", b"c"):
        store.put(key, entry(100))
    assert store.used == 3 * size
    assert store.get(b"a") is not None
    store.put(b"d", entry(100))
    assert [store.get(key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert (len(store), store.evictions, store.used) == (3, 1, 3 * size)
    assert (store.hits, store.misses) == (4, 1)


def test_a_store_never_passes_its_limit_and_takes_nothing_larger_than_itself() -> None:
    store = LocalStore(5000)
    store.put(b"a", entry(100))
    store.put(b"b", entry(5000))
    assert store.get(b"b") is None
    assert store.get(b"a") is not None
    store.put(b"c", entry(4000))
    assert len(store) == 1
    assert store.used <= store.limit
    assert not store.takes(5001)


def test_the_first_of_two_answers_stays_and_a_store_gives_memory_back() -> None:
    arena = Arena()
    store = LocalStore(10_000)
    store.put(b"small", entry(10))
    for key in (b"a", b"a", b"b"):
        store.put(key, CacheEntry([arena.tensor(b"12345678")], None))
    assert len(arena.live) == 2
    assert store.give_way()
    assert store.get(b"a") is None
    assert store.get(b"small") is not None  # what lies in the heap gives no memory of the arena
    assert store.give_way()
    assert not store.give_way()
    store.put(b"c", CacheEntry([arena.tensor(b"12345678")], None))
    store.clear()
    assert not arena.live
    assert store.used == len(store) == 0


def whole() -> CacheEntry:
    return CacheEntry(
        [Tensor("O", FP32, (1, 2), b"12345678"), Tensor("S", BYTES, (1,), b"\1\0\0\0x")], {"n": 1, "t": "ü"}
    )


def test_an_entry_as_bytes_is_itself_again() -> None:
    read = from_bytes(b"key", to_bytes(b"key", whole()))
    assert [(one.name, one.datatype, one.shape, one.data) for one in read.outputs] == [
        ("O", FP32, (1, 2), b"12345678"),
        ("S", BYTES, (1,), b"\1\0\0\0x"),
    ]
    assert read.parameters == {"n": 1, "t": "ü"}
    assert from_bytes(b"k", to_bytes(b"k", CacheEntry([], None))).parameters is None


def test_every_changed_byte_is_noticed() -> None:
    good = to_bytes(b"key", whole())
    for at in range(len(good)):
        with pytest.raises(BadEntry):
            from_bytes(b"key", good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(BadEntry):
            from_bytes(b"key", good[:at])
    with pytest.raises(BadEntry):
        from_bytes(b"key", good + b"x")
    with pytest.raises(BadEntry, match="checksum"):
        from_bytes(b"another key", good)
    with pytest.raises(BadEntry, match="not one of this server's"):
        from_bytes(b"key", b"\x80\x04\x95 a pickle")


@pytest.mark.parametrize(
    "forge",
    [
        lambda outputs: outputs.__setitem__(0, ["O", FP32, [1, 2], 12]),
        lambda outputs: outputs.__setitem__(0, ["O", FP32, [1, 3], 8]),
        lambda outputs: outputs.__setitem__(0, ["O", FP32, [-1, -2], 8]),
        lambda outputs: outputs.__setitem__(0, ["O", 99, [1, 2], 8]),
        lambda outputs: outputs.__setitem__(0, [7, FP32, [1, 2], 8]),
        lambda outputs: outputs.__setitem__(0, ["O", True, [8], 8]),
        lambda outputs: outputs.__setitem__(0, ["O", FP32, "12", 8]),
        lambda outputs: outputs.__setitem__(1, ["S", BYTES, [1], -5]),
        lambda outputs: outputs.__setitem__(0, None),
        lambda outputs: outputs.append(["T", FP32, [1], 4]),
    ],
)
def test_an_entry_with_a_right_checksum_and_wrong_fields_is_refused(forge: Callable[[list[Any]], None]) -> None:
    from stubserve.response_cache import serialized

    outputs: list[Any] = [["O", FP32, [1, 2], 8], ["S", BYTES, [1], 5]]
    forge(outputs)
    header = msgpack.packb((outputs, {}))
    rest = len(header).to_bytes(4, "little") + header + b"12345678" + b"\1\0\0\0x"
    with pytest.raises(BadEntry):
        from_bytes(b"key", b"SRC1" + serialized._digest(b"key", rest) + rest)


def test_an_entry_that_has_no_form_in_bytes_says_so() -> None:
    with pytest.raises(ValueError, match=r"(?i)int"):
        to_bytes(b"key", CacheEntry([], {"n": 1 << 80}))

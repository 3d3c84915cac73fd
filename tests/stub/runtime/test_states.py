"""States of sequences in a stub's own memory: who is given what, what becomes of it, and that nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api.tensors import state_tensor
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.states import SEQUENCE_END, SEQUENCE_START, States, specs_of
from stubserve_stub.wire import codes
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.datatypes import BY_NAME

from .stub_memory import StubMemory, stub_memory

FP32, INT32 = BY_NAME["FP32"].number, BY_NAME["INT32"].number
LARGE = 10_000


@pytest.fixture
def stub() -> Iterator[StubMemory]:
    with stub_memory(4 << 20) as made:
        yield made


def states_of(stub: StubMemory, *states: dict[str, Any], batch: int = 0, folder: str = "") -> States:
    config = {"name": "m", "max_batch_size": batch, "sequence_batching": {"state": list(states)}}
    return States("m", specs_of(config, folder), stub.channel)


def state(name: str = "S", data_type: str = "TYPE_FP32", dims: Any = (-1,), **more: Any) -> dict[str, Any]:
    return {"input_name": name, "output_name": name + "_NEW", "data_type": data_type, "dims": list(dims), **more}


def one(states: States, sequence: int, flags: int = 0) -> Any:
    return states.updates([sequence], [flags])[0]


def numbers(states: States, update: Any) -> list[float]:
    (tensor,) = update.tensors
    return np.frombuffer(states.memory(tensor), np.float32).tolist()


def floats(value: float, size: int) -> Any:
    return (FP32, (size,), np.full(size, value, np.float32))


def live(stub: StubMemory) -> int:
    return stub.channel.memory.live_blocks


def test_where_requests_iterate_only_the_server_ends_a_sequence(stub: StubMemory) -> None:
    states = States("m", specs_of({"sequence_batching": {"state": [state()]}}, ""), stub.channel, iterative=True)
    first = one(states, 7, SEQUENCE_START | SEQUENCE_END)
    first.keep_only({}, stub.channel)
    with pytest.raises(Refusal, match="has answered output 'Y' for a request that it wants to execute again"):
        first.keep_only({"Y": floats(1, 1), "S_NEW": floats(1, 1)}, stub.channel)
    first.keep_only({"S_NEW": floats(3, LARGE)}, stub.channel)
    first.end()
    assert numbers(states, one(states, 7)) == [3.0] * LARGE
    states.drop([7])
    assert (states.sequences, live(stub)) == (0, 0)


@pytest.mark.parametrize("size", [1, LARGE])
def test_what_is_kept_is_given_to_the_next_update(stub: StubMemory, size: int) -> None:
    states = states_of(stub, state())
    first = one(states, 7, SEQUENCE_START)
    assert numbers(states, first) == [0.0]
    first.keep({"S_NEW": floats(1, size)}, stub.channel)
    second = one(states, 7)
    assert numbers(states, second) == [1.0] * size
    second.keep({"S_NEW": floats(2, size)}, stub.channel)
    other = one(states, 8, SEQUENCE_START)
    assert numbers(states, other) == [0.0]
    assert numbers(states, one(states, 7)) == [2.0] * size
    assert live(stub) == (size == LARGE)
    # It begins anew, and is over.
    assert numbers(states, one(states, 7, SEQUENCE_START)) == [0.0]
    assert live(stub) == 0
    states.drop([7, 8, 99])
    assert states.sequences == 0


def test_10000_sequences_leave_nothing(stub: StubMemory) -> None:
    states = states_of(stub, state(), state("U", use_same_buffer_for_input_output=True))
    for sequence in range(1, 10_001):
        begun = one(states, sequence, SEQUENCE_START)
        begun.keep({"S_NEW": floats(sequence, 3000), "U_NEW": floats(sequence, 4)}, stub.channel)
        begun.end()
        assert np.frombuffer(states.memory(begun.tensors[0]), np.float32)[-1] == sequence
        if sequence % 2:
            last = one(states, sequence, SEQUENCE_END)
            last.keep({"S_NEW": floats(0, 3000), "U_NEW": floats(0, 4)}, stub.channel)
            last.end()
        else:
            states.drop([sequence])
    assert states.sequences == 0
    assert live(stub) == 0


def test_a_state_that_is_left_out_stays_and_the_log_says_so_once(stub: StubMemory) -> None:
    told: list[tuple[int, str, int, str]] = []
    config = {"sequence_batching": {"state": [state(), state("U")]}}
    states = States("m", specs_of(config, ""), stub.channel, log=lambda *line: told.append(line))
    one(states, 7, SEQUENCE_START).keep({"S_NEW": floats(1, LARGE), "U_NEW": floats(2, LARGE)}, stub.channel)
    one(states, 7).keep({"S_NEW": floats(3, LARGE)}, stub.channel, partly=True)
    # After the last one nobody is given it.
    one(states, 8, SEQUENCE_START | SEQUENCE_END).keep({}, stub.channel)
    assert not told
    for _ in range(3):
        one(states, 7).keep({"S_NEW": floats(4, LARGE)}, stub.channel)
    given = [np.frombuffer(states.memory(tensor), np.float32)[0] for tensor in one(states, 7).tensors]
    assert given == [4.0, 2.0]
    assert live(stub) == 2
    [(level, _, _, line)] = told
    assert level == codes.LOG_WARNING
    assert line.startswith("model 'm' has not answered output 'U_NEW', the new state of 'U'; its sequence keeps the ")


def test_what_comes_late_is_for_nobody(stub: StubMemory) -> None:
    """A sender may answer when its sequence is over."""
    states = states_of(stub, state())
    late = one(states, 7, SEQUENCE_START)
    states.drop([7])
    late.keep({"S_NEW": floats(1, LARGE)}, stub.channel)
    ended = one(states, 8, SEQUENCE_START | SEQUENCE_END)
    ended.end()
    ended.keep({"S_NEW": floats(1, LARGE)}, stub.channel)
    assert (states.sequences, live(stub)) == (0, 0)


def test_all_states_of_an_update_or_none(stub: StubMemory) -> None:
    states = states_of(stub, state(), state("U"))
    update = one(states, 7, SEQUENCE_START)
    update.keep({"S_NEW": floats(1, LARGE), "U_NEW": floats(1, LARGE)}, stub.channel)
    for answered, text in (
        (
            {"S_NEW": floats(2, 1), "U_NEW": (INT32, (1,), b"1234")},
            "as TYPE_INT32 .1., but its configuration says TYPE",
        ),
        ({"S_NEW": floats(2, 1), "U_NEW": (FP32, (1, 1), b"1234")}, "as TYPE_FP32 .1, 1., but its configuration says "),
    ):
        with pytest.raises(Refusal, match=text):
            one(states, 7).keep(answered, stub.channel)
    # Room for one of the two
    whole = np.ones(400_000, np.float32)
    with pytest.raises(ArenaFull):
        one(states, 7).keep({"S_NEW": (FP32, whole.shape, whole), "U_NEW": (FP32, whole.shape, whole)}, stub.channel)
    assert live(stub) == 2
    assert [states.memory(tensor).nbytes for tensor in one(states, 7).tensors] == [LARGE * 4] * 2
    one(states, 7).keep({"U_NEW": floats(3, 1)}, stub.channel, partly=True)
    assert live(stub) == 1
    assert numbers(states, type(update)(states, 7, one(states, 7).tensors[1:], False)) == [3.0]


def test_an_output_in_the_room_of_a_batch_stays_where_it_is(stub: StubMemory) -> None:
    states = states_of(stub, state())
    memory = Batch(stub.channel, 1, ())
    room = memory.reserve(LARGE * 8).view(np.float32)
    room[:] = np.arange(LARGE * 2)
    updates = states.updates([1, 2], [SEQUENCE_START] * 2)
    for update, rows in zip(updates, (room[:LARGE], room[LARGE:]), strict=True):
        update.keep({"S_NEW": (FP32, (LARGE,), rows)}, memory)
    memory.prepare_result([None, None])
    assert live(stub) == 1
    del room
    assert numbers(states, one(states, 2))[0] == LARGE
    one(states, 1, SEQUENCE_END).end()
    assert numbers(states, one(states, 2))[-1] == 2 * LARGE - 1
    one(states, 2, SEQUENCE_END).end()
    assert live(stub) == 0


def test_memory_of_a_request_is_copied(stub: StubMemory) -> None:
    states = states_of(stub, state())
    place = stub.give(np.full(LARGE, 5, np.float32).tobytes())
    memory = Batch(stub.channel, 1, ())
    _, view = memory.input("X", tuple(place), writable=False)
    one(states, 7, SEQUENCE_START).keep({"S_NEW": (FP32, (LARGE,), np.frombuffer(view, np.float32))}, memory)
    memory.prepare_result([None])
    stub.arena.view(place.offset, place.nbytes)[:] = bytes(place.nbytes)
    assert numbers(states, one(states, 7)) == [5.0] * LARGE


def test_a_state_in_place_stays_where_it_is_and_is_freed_when_nobody_sees_it(stub: StubMemory) -> None:
    states = states_of(stub, state(use_same_buffer_for_input_output=True))
    one(states, 7, SEQUENCE_START).keep({"S_NEW": floats(1, LARGE)}, stub.channel)
    update = one(states, 7)
    array = states.own_memory(update.tensors[0]).view(np.float32)
    array += 1
    before = update.tensors[0][3]
    update.keep({"S_NEW": (FP32, array.shape, array)}, stub.channel)
    assert one(states, 7).tensors[0][3] == before
    assert numbers(states, one(states, 7)) == [2.0] * LARGE
    one(states, 7, SEQUENCE_END).end()
    one(states, 8, SEQUENCE_START)
    assert live(stub) == 1
    del array
    one(states, 8)
    assert live(stub) == 0


def test_empty_places_have_zeros_in_the_shapes_of_the_others(stub: StubMemory) -> None:
    states = states_of(stub, state(dims=[-1, 2]), state("T", "TYPE_STRING", [1]), batch=4)
    empty, _ = states.updates([0, 7], [0, SEQUENCE_START])
    given = [(tensor[2], states.memory(tensor)) for tensor in empty.tensors]
    assert given == [([1, 1, 2], bytes(8)), ([1, 1], bytes(4))]
    values = np.ones((1, LARGE, 2), np.float32)
    one(states, 7).keep({"S_NEW": (FP32, values.shape, values), "T_NEW": (13, (1, 1), b"\1\0\0\0x")}, stub.channel)
    empty, there = states.updates([0, 7], [0, 0])
    assert [tensor[2] for tensor in empty.tensors] == [(1, LARGE, 2), (1, 1)]
    assert [bytes(states.memory(tensor)) for tensor in empty.tensors] == [bytes(8 * LARGE), bytes(4)]
    # What a model is given of it is its own.
    seen = [state_tensor(states, empty.tensors[0], in_place).as_numpy() for in_place in (False, True)]
    seen[0][:] = 1
    assert [array.any() for array in seen] == [True, False]
    assert there.tensors[1][3] == b"\1\0\0\0x"


@pytest.mark.parametrize(("batch", "shape"), [(0, [2, 3]), (8, [1, 2, 3])])
def test_initial_states(stub: StubMemory, tmp_path: Path, batch: int, shape: list[int]) -> None:
    folder = tmp_path / "initial_state"
    folder.mkdir()
    (folder / "f").write_bytes(np.arange(6, dtype=np.float32).tobytes() + b"more than is needed")
    (folder / "strings").write_bytes(b"\2\0\0\0ab\0\0\0\0")
    # Numbers of 64 bits are strings in JSON.
    dims = ["2", "3"]
    states = states_of(
        stub,
        state("F", dims=[-1, 3], initial_state=[{"dims": dims, "data_file": "f"}]),
        state("Z", dims=[2, -1], initial_state=[{"dims": dims, "zero_data": True}]),
        state("N", dims=[2, 3]),
        state("B", "TYPE_STRING", [2], initial_state=[{"dims": ["2"], "data_file": "strings"}]),
        batch=batch,
        folder=str(tmp_path),
    )
    from_file, zero, nothing, strings = one(states, 1, SEQUENCE_START).tensors
    assert from_file == ("F", FP32, shape, np.arange(6, dtype=np.float32).tobytes())
    assert zero == ("Z", FP32, shape, bytes(24))
    assert nothing == ("N", FP32, shape, bytes(24))
    assert strings[3] == b"\2\0\0\0ab\0\0\0\0"


def test_a_file_that_is_gone(tmp_path: Path, stub: StubMemory) -> None:
    with pytest.raises(Refusal, match=r"initial state of 'S': '.*initial_state/f' cannot be read: No such file"):
        states_of(stub, state(initial_state=[{"dims": [1], "data_file": "f"}]), folder=str(tmp_path))

"""Clients' regions as a stub has them: private inputs, outputs in place, and memory that goes away."""

from __future__ import annotations

import gc
import mmap
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stubserve_stub.runtime import region_window
from stubserve_stub.runtime.client_regions import MappedRegion, MappedRegions
from stubserve_stub.runtime.region_window import RegionGone

from tests.client_memory import PAGE, SharedFile

SIZE = 16 * PAGE
BYTE, PLACE = st.integers(0, 255), st.integers(0, SIZE - 1)


def numbers(first: int = 0, nbytes: int = SIZE) -> np.ndarray:
    return (np.arange(nbytes) + first).astype(np.uint8)


@pytest.fixture
def file() -> Any:
    with SharedFile(numbers()) as made:
        yield made


def region(file: SharedFile, start: int = 0, nbytes: int = SIZE) -> MappedRegion:
    return MappedRegion(os.dup(file.descriptor), start, nbytes)


def test_a_write_is_not_seen_by_the_client(file: SharedFile) -> None:
    array, loan = region(file).lend(100, 2 * PAGE)
    assert (array == numbers()[100 : 100 + 2 * PAGE]).all()
    array[:] = 7
    assert (file.array(np.uint8) == numbers()).all()
    assert not loan.window.torn


def test_the_next_input_is_what_the_client_has_written_by_then(file: SharedFile) -> None:
    """Also where the model has written to the one before, whose mapping is used again."""
    shared = region(file)
    for first in (1, 2, 3):
        file.put(numbers(first))
        array, loan = shared.lend(0, SIZE)
        assert (array == numbers(first)).all()
        address = loan.window.address
        if first == 2:
            array[3 * PAGE] = 99
        del array, loan
        assert [window.address for window in shared._kept] == [address]


def test_without_a_page_map_it_is_the_same(file: SharedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_window, "_pagemap", os.open("/dev/null", os.O_RDONLY))
    shared = region(file)
    array, loan = shared.lend(0, SIZE)
    array[:] = 1
    del array, loan
    assert (shared.lend(0, SIZE)[0] == numbers()).all()
    os.close(region_window._pagemap)


@pytest.mark.parametrize("are_counted", [True, False])
def test_pages_are_looked_at_where_there_may_have_been_a_page_fault(
    file: SharedFile, monkeypatch: pytest.MonkeyPatch, are_counted: bool
) -> None:
    """Or where the kernel counts none."""
    looks = []
    written = region_window._written
    faults = 3
    monkeypatch.setattr(region_window, "_page_faults", lambda: faults)
    monkeypatch.setattr(region_window, "_faults_are_counted", lambda: are_counted)
    monkeypatch.setattr(region_window, "_written", lambda *pages: looks.append(pages) or written(*pages))
    shared = region(file)

    def looks_of_the_next() -> int:
        before = len(looks)
        shared.lend(0, SIZE)
        return len(looks) - before

    assert looks_of_the_next() == 0  # a new mapping
    assert looks_of_the_next() == 1
    assert looks_of_the_next() == (0 if are_counted else 1)
    faults += 1
    assert looks_of_the_next() == 1


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(BYTE, PLACE, PLACE, st.sets(PLACE, max_size=3)), max_size=8))
def test_any_inputs_one_after_the_other(file: SharedFile, inputs: list[tuple[int, int, int, set[int]]]) -> None:
    """What the model has written to one is not in the next, whether or not pages were looked at."""
    shared = region(file)
    for first, offset, size, written in inputs:
        file.put(numbers(first))
        nbytes = min(size + 1, SIZE - offset)
        array, loan = shared.lend(offset, nbytes)
        assert (array == numbers(first)[offset : offset + nbytes]).all()
        for place in written:
            array[place % nbytes] ^= 0xFF
        del array, loan


def test_page_faults_are_counted_here() -> None:
    assert region_window._faults_are_counted()
    page = mmap.mmap(-1, PAGE)
    before = region_window._page_faults()
    thread = threading.Thread(target=page.__setitem__, args=(0, 1))
    thread.start()
    thread.join()
    assert region_window._page_faults() > before


def test_two_inputs_at_a_time_do_not_see_each_other(file: SharedFile) -> None:
    shared = region(file)
    one, other = shared.lend(0, SIZE), shared.lend(0, SIZE)
    one[0][:] = 1
    assert (other[0] == numbers()).all()


def test_a_region_need_not_begin_at_a_page(file: SharedFile) -> None:
    shared = region(file, PAGE + 3, 2 * PAGE)
    assert (shared.lend(5, PAGE)[0] == numbers()[PAGE + 8 : 2 * PAGE + 8]).all()
    shared.write(5, b"\xff" * PAGE)
    expected = numbers()
    expected[PAGE + 8 : 2 * PAGE + 8] = 255
    assert (file.array(np.uint8) == expected).all()


def test_what_a_model_keeps_does_not_change(file: SharedFile) -> None:
    shared = region(file)
    array, loan = shared.lend(10, 3 * PAGE)
    kept = array[1:]
    loan.window.detach()
    file.put(numbers(50))
    assert (kept == numbers()[11 : 10 + 3 * PAGE]).all()
    # Its memory is not lent to anybody until it is let go of.
    assert (shared.lend(10, 3 * PAGE)[0] == numbers(50)[10 : 10 + 3 * PAGE]).all()


def test_mappings_end_with_their_last_view(file: SharedFile) -> None:
    shared = region(file)
    array, loan = shared.lend(0, SIZE)
    shared.write(0, numbers(1))
    before = len(region_window._live)
    shared.close()
    assert len(region_window._live) == before - 1
    view = memoryview(array)[5:]
    del array, loan
    assert view[0] == 6
    view.release()
    del view
    gc.collect()
    shared._kept.clear()
    assert len(region_window._live) == before - 2


@pytest.mark.parametrize("on_a_thread", [False, True])
def test_what_the_client_has_taken_away_reads_as_zeros(file: SharedFile, on_a_thread: bool) -> None:
    shared = region(file)
    array, loan = shared.lend(0, SIZE)
    file.shrink(2 * PAGE)
    found: list[np.ndarray] = []
    if on_a_thread:
        thread = threading.Thread(target=lambda given: found.append(given.copy()), args=(array,))
        thread.start()
        thread.join()
        del thread
    else:
        found.append(array.copy())
    assert loan.window.torn
    assert (found[0][: 2 * PAGE] == numbers()[: 2 * PAGE]).all()
    assert not found[0][2 * PAGE :].any()
    with pytest.raises(RegionGone, match="smaller"):
        shared.lend(0, SIZE)
    # When it is as large again, what is there then counts.
    file.put(numbers(9))
    del array, loan
    again, loan = shared.lend(0, SIZE)
    assert (again == numbers(9)).all()
    assert not loan.window.torn


def test_what_is_held_when_the_memory_goes_is_torn_too(file: SharedFile) -> None:
    _, loan = region(file).lend(0, SIZE)
    file.shrink(0)
    loan.window.detach()
    assert loan.window.torn


def test_what_a_model_keeps_does_not_go_away_with_the_file(file: SharedFile) -> None:
    shared = region(file)
    array, loan = shared.lend(10, 3 * PAGE)
    array[5] = 99
    loan.window.keep()
    file.shrink(0)
    file.put(numbers(50))
    expected = numbers()[10 : 10 + 3 * PAGE]
    expected[5] = 99
    assert (array == expected).all()
    assert not loan.window.torn
    # It is a window no more, and nobody else is lent it.
    del array, loan
    assert (shared.lend(10, 3 * PAGE)[0] == numbers(50)[10 : 10 + 3 * PAGE]).all()


def test_what_is_kept_when_the_memory_has_gone_is_torn(file: SharedFile) -> None:
    _, loan = region(file).lend(0, SIZE)
    file.shrink(0)
    loan.window.keep()
    file.put(numbers())
    assert loan.window.torn


def test_a_system_call_that_meets_what_is_gone(file: SharedFile) -> None:
    """There is no signal then; the size of the file tells."""
    array, loan = region(file, PAGE, 8 * PAGE).lend(PAGE, PAGE)
    file.shrink(3 * PAGE)
    assert not loan.window.torn
    file.shrink(2 * PAGE)
    with pytest.raises(OSError, match="Bad address"), SharedFile(0) as other:
        os.write(other.descriptor, array)
    assert loan.window.torn


def test_an_output_into_memory_that_goes_away(file: SharedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = region(file)
    shared.write(0, numbers(1))
    file.shrink(PAGE)
    with pytest.raises(RegionGone, match="smaller"):
        shared.write(0, numbers(2))
    # Between looking and writing
    monkeypatch.setattr(shared, "_check", lambda offset, nbytes: None)
    with pytest.raises(RegionGone, match="smaller"):
        shared.write(0, numbers(2))
    file.put(numbers())
    shared.write(0, numbers(3))
    assert (file.array(np.uint8) == numbers(3)).all()


def test_any_other_bus_error_is_what_it_was() -> None:
    """It is fatal, and Python's own handler says where."""
    program = """
import faulthandler, mmap, os, tempfile
import numpy as np
from stubserve_stub.runtime.client_regions import MappedRegion
faulthandler.enable()
with tempfile.TemporaryFile() as file:
    file.truncate(8192)
    region = MappedRegion(os.dup(file.fileno()), 0, 8192)
    array, loan = region.lend(0, 8192)
    file.truncate(0)
    assert not array.any() and loan.window.torn
    file.truncate(8192)
    other = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    other[0]
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == -7, done
    assert "Fatal Python error: Bus error" in done.stderr


def test_overlaps(file: SharedFile) -> None:
    one, other = region(file), region(file, PAGE)
    assert one.overlaps(PAGE, 10, other, 5, 10)
    assert not one.overlaps(PAGE, 5, other, 5, 10)
    with SharedFile(10) as another:
        assert not one.overlaps(0, 10, region(another, 0, 10), 0, 10)


def test_regions_come_over_a_socket(file: SharedFile) -> None:
    server, stub = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    regions = MappedRegions(stub.detach())
    with pytest.raises(RegionGone, match="could not pass it on"):
        regions.find(5)
    socket.send_fds(server, [msgpack.packb((5, PAGE, PAGE))], [file.descriptor])
    found = regions.find(5)
    assert regions.find(5) is found
    assert (found.copy(0, PAGE) == numbers()[PAGE : 2 * PAGE]).all()
    regions.forget(5)
    regions.forget(6)
    with pytest.raises(RegionGone):
        regions.find(5)
    server.close()
    with pytest.raises(RegionGone):
        regions.find(7)
    regions._socket.close()

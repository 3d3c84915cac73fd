"""Which frames are picked, and how old they are, with numbers for the clock."""

from __future__ import annotations

import pytest
from stubserve_stub.backends.video.picking import Ages, Rate


def picked(rate: float, times: list[float]) -> list[float]:
    choice = Rate(rate)
    return [time for time in times if choice.picks(time)]


def test_all_without_a_rate() -> None:
    assert picked(0, [0.0, 0.0, 0.1]) == [0.0, 0.0, 0.1]


def test_a_rate_is_met_on_average() -> None:
    assert picked(5, [number / 25 for number in range(26)]) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert len(picked(10, [number / 25 for number in range(2500)])) == 1000
    # No multiple of the source's: the grid stays.
    assert len(picked(7, [number / 30 for number in range(3000)])) == 700


def test_a_source_that_is_slower_than_the_rate() -> None:
    times = [float(number) for number in range(10)]
    assert picked(5, times) == times


def test_after_a_gap_frames_do_not_come_in_a_burst() -> None:
    assert picked(5, [0.0, 3.0, 3.04, 3.08, 3.2, 3.24]) == [0.0, 3.0, 3.2]


@pytest.mark.parametrize("jump", [100.0, -100.0, -1.0, 1e9])
def test_another_clock(jump: float) -> None:
    assert picked(5, [1000.0, 1000.04, 1000 + jump, 1000.04 + jump, 1000.2 + jump]) == [
        1000.0,
        1000 + jump,
        1000.2 + jump,
    ]


def ages(*arrivals: tuple[float, float, float]) -> list[float]:
    """Of frames with (time stamp, when they were read, how long that took), at that moment."""
    clock = Ages()
    found = []
    for time, now, read in arrivals:
        clock.arrived(time, now, read)
        found.append(round(clock.age(time, now), 3))
    return found


def test_a_source_that_is_on_time() -> None:
    assert ages((0, 50, 0.04), (0.04, 50.04, 0.04), (0.08, 50.08, 0.04)) == [0, 0, 0]


def test_a_frame_grows_old() -> None:
    clock = Ages()
    clock.arrived(7, 50, 1)
    assert clock.age(7, 53) == pytest.approx(3)


def test_what_has_waited_for_its_reader_is_late() -> None:
    """The reader was away for two seconds: frames of that time come without waiting, until it has caught up."""
    late = ages((0, 50, 0.04), (0.04, 52, 0.0), (0.08, 52, 0.0), (1.9, 52.01, 0.0), (2.1, 52.1, 0.08))
    assert late == [0, 1.96, 1.92, 0.11, 0]


def test_a_source_that_is_faster_than_its_time_stamps_say() -> None:
    assert ages((0, 50, 0.01), (0.04, 50.01, 0.0), (0.08, 50.02, 0.0)) == [0, 0, 0]


def test_a_source_that_is_slower_than_its_time_stamps_say() -> None:
    """It claims 25 frames a second and gives 5: each has to be waited for, and is new."""
    assert ages(*((number / 25, 50 + number / 5, 0.19) for number in range(100))) == [0] * 100


def test_time_stamps_that_jump() -> None:
    assert ages((0, 50, 0.0), (1000, 50, 0.0), (1000.04, 51, 0.0), (3, 51, 0.0)) == [0, 0, 0.96, 0]

from __future__ import annotations

from stubserve.inference.work import Work
from stubserve.schedulers.depth import QUICK_IN_A_ROW, QUICK_NS, Depth

from .requests import request


def executed(took_ns: int) -> Work:
    done = request()
    done.compute_input_end_ns, done.compute_infer_end_ns = 5, 5 + took_ns
    return Work([done])


def warmed(depth: Depth, instance: str, times: int = QUICK_IN_A_ROW) -> None:
    depth.join(instance)
    for _ in range(times):
        assert not depth.handed_out(instance)
        assert depth.done(instance, executed(QUICK_NS - 1))


def test_one_work_ahead_for_who_is_always_quick() -> None:
    depth = Depth(early=True)
    warmed(depth, "i")
    assert depth.handed_out("i")
    assert not depth.handed_out("i")  # one ahead, not two
    assert depth.done("i", executed(QUICK_NS - 1))
    assert not depth.handed_out("i")
    assert not depth.done("i", executed(QUICK_NS))  # too long: the next is handed out when it is idle
    assert depth.done("i", executed(0))


def test_nothing_ahead_before_it_is_known_to_be_quick() -> None:
    depth = Depth(early=True)
    warmed(depth, "i", QUICK_IN_A_ROW - 1)
    assert not depth.handed_out("i")


def test_nothing_ahead_where_the_queue_has_rules() -> None:
    depth = Depth(early=False)
    warmed(depth, "i")
    assert not depth.handed_out("i")
    assert depth.done("i", executed(0))


def test_nothing_ahead_past_another_instance() -> None:
    depth = Depth(early=True)
    warmed(depth, "i")
    depth.join("j")
    assert not depth.handed_out("i")
    depth.leave("j")
    assert depth.done("i", executed(0))
    assert depth.handed_out("i")


def test_a_new_stub_has_to_show_that_it_is_quick() -> None:
    depth = Depth(early=True)
    warmed(depth, "i")
    depth.leave("i")
    depth.join("i")
    assert not depth.handed_out("i")


def test_work_that_did_not_get_there_leaves_room() -> None:
    depth = Depth(early=True)
    depth.join("i")
    depth.join("j")
    depth.handed_out("i")
    assert depth.idle() == ["j"]
    assert depth.handed_back("i")
    assert depth.idle() == ["i", "j"]
    assert len(depth) == 2


def test_who_has_left_gets_nothing() -> None:
    depth = Depth(early=True)
    depth.join("i")
    depth.handed_out("i")
    depth.leave("i")
    depth.leave("i")
    assert not depth.done("i", executed(0))
    assert not depth.handed_back("i")
    assert len(depth) == 0

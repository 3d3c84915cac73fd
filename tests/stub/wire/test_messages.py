"""The format of every message, to the byte. Whoever changes one of these changes WIRE_VERSION as well."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.options import RequestOptions
from stubserve_stub.wire.places import InArena, Lent, Shared

REQUEST: messages.WireRequest = (
    "id",
    RequestOptions(7, 1, 2, 1_000_000, {"p": True}),
    (9, "c"),
    ["OUT"],
    [("IN", 11, [1, 2], b"\1\2\3\4\5\6\7\x08"), ("BIG", 2, (2000,), InArena(4096, 2000)), ("S", 2, (9,), Shared(1, 9))],
)
REQUEST_HEX = (
    "95a26964950701"
    "02ce000f424081a170c39209a16391a34f555493"
    "94a2494e0b920102c4080102030405060708"
    "94a34249470291cd07d09301cd1000cd07d0"
    "94a15302910993020109"
)
RESPONSE: messages.WireResponse = (
    None,
    [("OUT", 11, (1,), b"\0\0\0\0"), ("BACK", 2, (9,), Lent(64, 9, 32))],
    {"n": 1.5},
)
RESPONSE_HEX = "93c09294a34f55540b9101c4040000000094a44241434b029109940340092081a16ecb3ff8000000000000"
FAILED: messages.WireResponse = (("wrong", 2), (), None)
FAILED_HEX = "9392a577726f6e670290c0"

# What is packed, its bytes, the method that hears of it, and what that method is given
TO_STUB: list[tuple[bytes, str, str, dict[str, Any]]] = [
    (
        messages.pack_execute(5, [4096, 8192], [REQUEST]),
        "94010592cd1000cd200091" + REQUEST_HEX,
        "on_execute",
        {"number": 5, "frees": (4096, 8192)},
    ),
    (
        messages.pack_execute(5, [], [None]),
        "9401059091c0",
        "on_execute",
        {"number": 5, "frees": (), "requests": (None,)},
    ),
    (
        messages.pack_execute(5, [], [REQUEST, None], [300, 0]),
        "9501059092" + REQUEST_HEX + "c092cd012c00",
        "on_execute",
        {"number": 5, "frees": (), "sequences": (300, 0)},
    ),
    (messages.pack_stop(), "9102", "on_stop", {}),
]
TO_PARENT: list[tuple[bytes, str, str, dict[str, Any]]] = [
    (
        messages.pack_result(5, 1_000, 2_000, [RESPONSE, None, messages.RESCHEDULED, FAILED], [4096], None),
        "970105cd03e8cd07d094" + RESPONSE_HEX + "c001" + FAILED_HEX + "91cd1000c0",
        "on_result",
        {"batch": 5, "start_ns": 1_000, "end_ns": 2_000, "held": (4096,), "error": None},
    ),
    (
        messages.pack_result(5, 1, 2, (), (), "broken"),
        "97010501029090a662726f6b656e",
        "on_result",
        {"batch": 5, "start_ns": 1, "end_ns": 2, "entries": (), "held": (), "error": "broken"},
    ),
    (
        messages.pack_response(5, 3, 1_000, FAILED, messages.FINAL, [64]),
        "97030503cd03e8" + FAILED_HEX + "019140",
        "on_response",
        {"batch": 5, "index": 3, "start_ns": 1_000, "response": (("wrong", 2), (), None), "flags": 1, "held": (64,)},
    ),
    (
        messages.pack_response(5, 3, 1, None, messages.ACKNOWLEDGE, ()),
        "9703050301c00290",
        "on_response",
        {"batch": 5, "index": 3, "start_ns": 1, "response": None, "flags": 2, "held": ()},
    ),
    (messages.pack_released([64, 4096]), "92029240cd1000", "on_released", {"offsets": (64, 4096)}),
    (
        messages.pack_call(9, True, False, "m", -1, REQUEST, [64]),
        "980409c3c2a16dff" + REQUEST_HEX + "9140",
        "on_call",
        {"call": 9, "blocking": True, "decoupled": False, "model": "m", "version": -1, "released": (64,)},
    ),
    (messages.pack_call_blocks(9), "920509", "on_call_blocks", {"call": 9}),
    (messages.pack_cancel(9), "920609", "on_cancel", {"call": 9}),
    (messages.pack_discard(9), "920709", "on_discard", {"call": 9}),
    (messages.pack_taken(9, 16, 300), "94080910cd012c", "on_taken", {"call": 9, "count": 16, "nbytes": 300}),
]


class Listener:
    """Both ends: remembers under which names the fields have arrived."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def on_execute(self, number: Any, frees: Any, requests: Any, sequences: Any = ()) -> None:
        fields = {"number": number, "frees": frees, "requests": requests, "sequences": sequences}
        self.heard.append(("on_execute", fields))

    def on_stop(self) -> None:
        self.heard.append(("on_stop", {}))

    def on_result(self, batch: Any, start_ns: Any, end_ns: Any, entries: Any, held: Any, error: Any) -> None:
        fields = {"batch": batch, "start_ns": start_ns, "end_ns": end_ns, "entries": entries, "held": held}
        self.heard.append(("on_result", {**fields, "error": error}))

    def on_response(self, batch: Any, index: Any, start_ns: Any, response: Any, flags: Any, held: Any) -> None:
        fields = {"batch": batch, "index": index, "start_ns": start_ns, "response": response, "flags": flags}
        self.heard.append(("on_response", {**fields, "held": held}))

    def on_released(self, offsets: Any) -> None:
        self.heard.append(("on_released", {"offsets": offsets}))

    def on_call(
        self, call: Any, blocking: Any, decoupled: Any, model: Any, version: Any, request: Any, released: Any
    ) -> None:
        fields = {"call": call, "blocking": blocking, "decoupled": decoupled, "model": model, "version": version}
        self.heard.append(("on_call", {**fields, "request": request, "released": released}))

    def on_call_blocks(self, call: Any) -> None:
        self.heard.append(("on_call_blocks", {"call": call}))

    def on_cancel(self, call: Any) -> None:
        self.heard.append(("on_cancel", {"call": call}))

    def on_taken(self, call: Any, count: Any, nbytes: Any) -> None:
        self.heard.append(("on_taken", {"call": call, "count": count, "nbytes": nbytes}))

    def on_discard(self, call: Any) -> None:
        self.heard.append(("on_discard", {"call": call}))


def test_what_a_long_message_is_made_in_is_let_go_of() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        messages.pack_execute(5, [], [(*REQUEST[:-1], [("IN", 2, (64 << 20,), bytes(64 << 20))])])
        messages.pack(["x" * (16 << 20)])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 << 20


def test_the_version_of_this_format() -> None:
    assert layout.WIRE_VERSION == 10


def test_nothing_is_left_out() -> None:
    listener = Listener()
    to_stub = {method for _, _, method, _ in TO_STUB}
    to_parent = {method for _, _, method, _ in TO_PARENT}
    assert {handler.__name__ for handler in messages.handlers_of_stub(listener).values()} == to_stub
    assert {handler.__name__ for handler in messages.handlers_of_parent(listener, listener).values()} == to_parent


@pytest.mark.parametrize(("packed", "golden", "method", "fields"), [*TO_STUB, *TO_PARENT])
def test_the_bytes_of_a_message(packed: bytes, golden: str, method: str, fields: dict[str, Any]) -> None:
    assert packed.hex() == golden
    listener = Listener()
    if method in ("on_execute", "on_stop"):
        handlers = messages.handlers_of_stub(listener)
    else:
        handlers = messages.handlers_of_parent(listener, listener)
    messages.deliver(handlers, [messages.unpack(packed)])
    [(heard, given)] = listener.heard
    assert heard == method
    assert {name: given[name] for name in fields} == fields


def test_requests_and_entries_come_out_as_they_went_in() -> None:
    listener = Listener()
    execute, result = TO_STUB[0][0], TO_PARENT[0][0]
    messages.deliver(messages.handlers_of_stub(listener), [messages.unpack(execute)])
    messages.deliver(messages.handlers_of_parent(listener, listener), [messages.unpack(result)])
    requests = listener.heard[0][1]["requests"]
    *head, names, inputs = requests[0]
    assert head == ["id", (7, 1, 2, 1_000_000, {"p": True}), (9, "c")]
    assert names == ("OUT",)
    assert [place for _, _, _, place in inputs] == [place for _, _, _, place in REQUEST[4]]
    response, open_, rescheduled, failed = listener.heard[1][1]["entries"]
    assert [place for _, _, _, place in response[1]] == [b"\0\0\0\0", Lent(64, 9, 32)]
    assert (open_, rescheduled) == (None, messages.RESCHEDULED)
    assert failed == FAILED


def test_the_bytes_of_an_answer() -> None:
    packed = messages.pack_answer(9, True, FAILED, [64])
    assert packed.hex() == "9409c3" + FAILED_HEX + "9140"
    assert messages.unpack(packed) == (9, True, FAILED, (64,))
    assert messages.pack_answer(9, True, None, ()).hex() == "9409c3c090"


def test_the_record_of_a_spilled_message() -> None:
    packed = messages.pack_spilled(InArena(4096, 40_000))
    assert packed.hex() == "9301cd1000cd9c40"
    assert messages.unpack_spilled(packed) == InArena(4096, 40_000)


@pytest.mark.parametrize("record", [Lent(64, 9, 32), Shared(64, 9), b"bytes", (64, 9), None])
def test_a_spilled_message_lies_in_the_arena(record: Any) -> None:
    with pytest.raises(ValueError, match=r"place|nowhere"):
        messages.unpack_spilled(messages.pack(record))


@pytest.mark.parametrize("text", ["\udcff\udc80", "ümlaut"])
def test_text_that_is_no_utf8_comes_out_as_it_went_in(text: str) -> None:
    assert messages.unpack(messages.pack(text)) == text


@pytest.mark.parametrize(
    "message", [(99,), (messages.STOP, 1, 2), (messages.RESULT, 1), (messages.CANCEL,), (), None, 7, ([],)]
)
def test_what_is_no_message_raises(message: Any) -> None:
    listener = Listener()
    for handlers in (messages.handlers_of_parent(listener, listener), messages.handlers_of_stub(listener)):
        with pytest.raises((KeyError, TypeError, IndexError)):
            messages.deliver(handlers, [message])
    assert not listener.heard

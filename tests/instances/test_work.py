"""Batches out and answers back over real rings, with a stub that says what the test wants."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
from stubserve_stub.runtime.channel import EXECUTING
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.places import DEVICE_BASE, InArena, InRegion, Lent, OnDevice, Shared
from stubserve_stub.wire.ring import MAX_RECORD

from stubserve.errors import ServeError
from stubserve.inference.request import BACKEND_FAILURE, SUCCESS
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.work import Work
from stubserve.memory.blocks import Span
from stubserve.schedulers.depth import MOST_AHEAD
from tests.instances.fakes import FP32, Stub, answer, on_a_loop, small, turn

FAILED: messages.WireResponse = (("wrong", 3), (), None)


@on_a_loop
async def test_a_result_answers_each_request_of_its_batch() -> None:
    with Stub() as stub:
        first, second = stub.request(), stub.request()
        number = stub.execute(first, second)
        assert not stub.work.is_empty
        await stub.result(number, [answer(b"\1\0\0\0"), FAILED])
        [(requests, finished)] = stub.owner.results
        assert requests == [first, second]
        (one, good), (other, bad) = finished
        assert (one, other) == (first, second)
        assert [tensor.data for tensor in good.outputs] == [b"\1\0\0\0"]
        assert bad.error is not None
        assert (bad.error.message, bad.error.code) == ("wrong", 3)
        assert first.outcome == second.outcome == SUCCESS
        assert (first.compute_input_end_ns, first.compute_infer_end_ns) == (1, 1 + 10**9)
        assert stub.work.is_empty
        assert stub.memory.stubs_at_work == 0


@on_a_loop
async def test_an_error_of_the_batch_fails_all_of_it() -> None:
    with Stub() as stub:
        requests = [stub.request(), stub.request()]
        number = stub.execute(*requests)
        await stub.result(number, (), error="broken")
        [(_, finished)] = stub.owner.results
        assert [str(response.error) for _, response in finished] == ["broken", "broken"]
        assert [request.outcome for request in requests] == [BACKEND_FAILURE, BACKEND_FAILURE]


@on_a_loop
async def test_outputs_in_the_stubs_segment_are_freed_when_they_have_been_read() -> None:
    with Stub() as stub:
        number = stub.execute(stub.request())
        place = stub.output()
        await stub.result(number, [answer(place)])
        [(_, [(_, response)])] = stub.owner.results
        [output] = response.outputs
        assert (output.offset, output.nbytes, output.span and output.span.shared) == (place.offset, 4096, False)
        stub.work.execute(Work([stub.request()]))
        assert stub.received()[1] == ()
        drop_blocks(response.outputs)
        stub.work.execute(Work([stub.request()]))
        assert stub.received()[1] == (place.offset,)


@on_a_loop
async def test_many_bytes_that_have_been_read_are_told_at_once() -> None:
    with Stub() as stub:
        number = stub.execute(stub.request())
        place = stub.output(33 << 20)
        await stub.result(number, [answer(place)])
        [(_, [(_, response)])] = stub.owner.results
        drop_blocks(response.outputs)
        assert stub.process.sent == []
        await stub.say(messages.pack_released(()))
        assert stub.process.sent == [("acknowledge", {"groups": [], "frees": [place.offset]})]


@on_a_loop
async def test_an_output_in_its_input_is_the_inputs_memory() -> None:
    with Stub() as stub:
        tensor = stub.large()
        number = stub.execute(stub.request(tensor))
        await stub.result(number, [answer(Lent(tensor.offset + 64, 128, tensor.offset))])
        [(_, [(request, response)])] = stub.owner.results
        [output] = response.outputs
        assert output.span is tensor.span
        assert (output.offset, output.nbytes, len(output.buffer)) == (tensor.offset + 64, 128, 128)
        drop_blocks(request.inputs)
        assert stub.ingress_bytes
        drop_blocks(response.outputs)
        assert not stub.ingress_bytes


@on_a_loop
async def test_one_memory_in_two_outputs_is_shared() -> None:
    with Stub() as stub:
        one, other = stub.large(), stub.large()
        number = stub.execute(stub.request(one, other))
        whole = Lent(one.offset, one.nbytes, one.offset)
        await stub.result(number, [answer(whole, whole, Lent(other.offset, other.nbytes, other.offset))])
        [(_, [(_, response)])] = stub.owner.results
        assert [output.span and output.span.shared for output in response.outputs] == [True, True, False]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (InArena(0, 64), "a stub named memory outside of its segment as its own"),
        (InArena(1 << 50, 64), "a stub named memory outside of its segment as its own"),
        (Lent(4096, 64, 4096), "output 'OUT' of stub 'model_0_0' is in memory that the stub was not given"),
        (Shared(4096, 64), "output 'OUT' of stub 'model_0_0' is in memory that a stub cannot name"),
        (OnDevice(DEVICE_BASE, 64), "output 'OUT' of stub 'model_0_0' lies in memory of a GPU, which cannot be read "
         "here"),
        (InRegion(3, 0, 64), "output 'OUT' of stub 'model_0_0' lies in a client's shared memory (region 3), of "
         "which nobody has told"),
    ],
)  # fmt: skip
@on_a_loop
async def test_a_bad_output_takes_nothing_with_it(bad: Any, text: str) -> None:
    with Stub() as stub:
        number = stub.execute(stub.request(), stub.request())
        place, next_place = stub.output(), stub.output()
        await stub.result(number, [answer(place, bad), answer(next_place)])
        [(_, [(_, response), (_, good)])] = stub.owner.results
        assert str(response.error) == text
        assert response.outputs == []
        # What lay before it is free again, and the segment goes back when the stub is gone.
        assert stub.outputs.take_frees() == [place.offset]
        drop_blocks(good.outputs)
        stub.end()
        assert await stub.given_back()


@on_a_loop
async def test_what_lies_behind_the_end_of_an_input_was_not_given() -> None:
    with Stub() as stub:
        body = stub.memory.store(bytes(8192))
        one, other = (Tensor("IN", FP32, (1024,), None, Span(body.hold(), body.offset + at, 4096)) for at in (0, 4096))
        body.drop()
        first, second = stub.request(one), stub.request(other)
        number = stub.execute(first)
        await stub.result(number, [answer(Lent(other.offset, 4096, one.offset))])
        [(_, [(_, response)])] = stub.owner.results
        assert str(response.error) == "output 'OUT' of stub 'model_0_0' is in memory that the stub was not given"
        drop_blocks([*first.inputs, *second.inputs])
        assert not stub.ingress_bytes


@on_a_loop
async def test_held_inputs_live_until_they_are_let_go_of() -> None:
    with Stub() as stub:
        tensor = stub.large()
        request = stub.request(tensor, small())
        number = stub.execute(request)
        await stub.result(number, [answer(b"")], held=[tensor.offset])
        drop_blocks(request.inputs)
        assert stub.ingress_bytes
        # The model may still answer with it.
        number = stub.execute(stub.request())
        await stub.result(number, [answer(Lent(tensor.offset, tensor.nbytes, tensor.offset))])
        [(_, response)] = stub.owner.results[1][1]
        assert response.outputs[0].span is tensor.span
        drop_blocks(response.outputs)
        await stub.say(messages.pack_released([tensor.offset]))
        assert not stub.ingress_bytes


@on_a_loop
async def test_held_inputs_go_with_the_stub() -> None:
    with Stub() as stub:
        request = stub.request(stub.large())
        number = stub.execute(request)
        await stub.result(number, [answer(b"")], held=[request.inputs[0].offset])
        drop_blocks(request.inputs)
        stub.end()
        assert not stub.ingress_bytes


# Several batches at a time


@on_a_loop
async def test_batches_are_announced_together() -> None:
    with Stub() as stub:
        requests = [stub.request() for _ in range(3)]
        for request in requests[:2]:
            stub.work.give(Work([request]))
        stub.work.ring.announce_soon()
        first, second = stub.channel.receive()
        assert [number for _, number, _, _ in (first, second)] == [1, 2]
        # It has work: the next is told at the end of this turn.
        stub.work.give(Work([requests[2]]))
        stub.work.ring.announce_soon()
        os.set_blocking(stub.process.doorbell_out, False)
        with pytest.raises(BlockingIOError):
            stub.channel.receive()
        await turn()
        [(_, number, _, _)] = stub.channel.receive()
        assert number == 3


@on_a_loop
async def test_results_of_one_wake_up_are_told_together_and_before_responses_behind_them() -> None:
    with Stub() as stub:
        requests = [stub.request() for _ in range(3)]
        numbers = [stub.execute(request) for request in requests]
        told: list[Any] = []
        stub.owner.on_results = lambda _, results: told.append([list(work.requests) for work, _ in results])  # type: ignore[method-assign]
        stub.owner.on_response = lambda _, request, response, start_ns: told.append(request)  # type: ignore[method-assign]
        for number, entry in zip(numbers[:2], [None, answer(b"")], strict=True):
            stub.channel.send(messages.pack_result(number, 1, 2, [entry], (), None))
        stub.channel.send(messages.pack_response(numbers[0], 0, 7, None, messages.FINAL, ()))
        await stub.result(numbers[2], [answer(b"")])
        assert told == [[[requests[0]], [requests[1]]], requests[0], [[requests[2]]]]


@on_a_loop
async def test_what_is_read_before_garbage_is_told() -> None:
    with Stub() as stub:
        numbers = [stub.execute(stub.request()) for _ in range(2)]
        stub.channel.send(messages.pack_result(numbers[0], 1, 2, [answer(b"")], (), None))
        await stub.result(77, [answer(b"")])
        assert len(stub.owner.results) == 1
        assert stub.process.condemned


@on_a_loop
async def test_a_batch_that_lay_ready_was_queued_while_others_were_executed() -> None:
    with Stub() as stub:
        first, second = stub.request(), stub.request()
        numbers = [stub.execute(first), stub.execute(second)]
        first.compute_start_ns = second.compute_start_ns = 100
        for number, start, end in zip(numbers, (150, 950), (900, 990), strict=True):
            stub.channel.send(messages.pack_result(number, start, end, [answer(b"")], (), None))
        await turn()
        assert (first.compute_start_ns, second.compute_start_ns) == (100, 900)


@on_a_loop
async def test_as_many_batches_as_may_be_in_flight_find_room_whatever_their_size() -> None:
    with Stub() as stub:
        request = stub.request(parameters={"text": "x" * (MAX_RECORD - 200)})
        for _ in range(1 + MOST_AHEAD):
            stub.work.give(Work([request]))
        stub.work.ring.announce_soon()
        received = stub.channel.receive()
        assert [number for _, number, _, _ in received] == list(range(1, 2 + MOST_AHEAD))
        assert {len(requests[0][1][4]["text"]) for _, _, _, requests in received} == {MAX_RECORD - 200}
        assert not stub.process.condemned


# Senders


@on_a_loop
async def test_responses_before_and_after_the_result() -> None:
    with Stub() as stub:
        before, after = stub.request(), stub.request()
        number = stub.execute(before, after)
        await stub.respond(number, 0, answer(b"\1\0\0\0"), flags=0)
        await stub.respond(number, 0, None)
        await stub.result(number, [None, None])
        assert stub.owner.results == [([before, after], [])]
        assert not stub.work.is_empty
        assert stub.work.has(after)
        assert not stub.work.has(before)
        await stub.respond(number, 1, answer(b"\2\0\0\0"))
        assert stub.work.is_empty
        heard = [(request, response.final, response.empty, start) for request, response, start in stub.owner.responses]
        assert heard == [(before, False, False, 7), (before, True, True, 7), (after, True, False, 7)]


@on_a_loop
async def test_a_failed_batch_does_not_answer_twice() -> None:
    with Stub() as stub:
        answered, other = stub.request(), stub.request()
        number = stub.execute(answered, other)
        await stub.respond(number, 0, answer(b""))
        await stub.result(number, (), error="broken")
        [(_, finished)] = stub.owner.results
        assert [request for request, _ in finished] == [other]


@on_a_loop
async def test_a_response_that_comes_too_late_is_dropped_with_its_memory() -> None:
    with Stub() as stub:
        number = stub.execute(stub.request())
        await stub.result(number, [answer(b"")])
        place = stub.output()
        await stub.respond(number, 0, answer(place))
        assert stub.owner.responses == []
        assert stub.outputs.take_frees() == [place.offset]


@on_a_loop
async def test_inputs_that_are_held_beyond_the_final_response() -> None:
    with Stub() as stub:
        tensor = stub.large()
        request = stub.request(tensor)
        number = stub.execute(request)
        await stub.result(number, [None])
        await stub.respond(number, 0, None, held=[tensor.offset])
        drop_blocks(request.inputs)
        assert stub.ingress_bytes
        await stub.say(messages.pack_released([tensor.offset]))
        assert not stub.ingress_bytes


@on_a_loop
async def test_groups_are_acknowledged_when_they_have_been_passed_on() -> None:
    with Stub() as stub:
        number = stub.execute(stub.request())
        await stub.respond(number, 0, answer(b""), flags=messages.ACKNOWLEDGE)
        await turn()
        assert stub.process.sent == [("acknowledge", {"groups": [(number, 0)], "frees": []})]


@on_a_loop
async def test_a_reader_that_is_behind_owes_the_acknowledgement() -> None:
    with Stub() as stub:
        request = stub.request()
        number = stub.execute(request)
        request.pause()
        await stub.respond(number, 0, answer(b""), flags=messages.ACKNOWLEDGE)
        await turn()
        assert stub.process.sent == []
        request.resume()
        await turn()
        assert stub.process.sent == [("acknowledge", {"groups": [(number, 0)], "frees": []})]


@on_a_loop
async def test_rescheduled_requests_are_told_before_the_results() -> None:
    with Stub() as stub:
        again, done, open_ = stub.request(), stub.request(), stub.request()
        number = stub.execute(again, done, open_)
        heard: list[str] = []
        stub.owner.on_rescheduled = lambda *_: heard.append("rescheduled")  # type: ignore[method-assign]
        stub.owner.on_results = lambda _, results: heard.append("results")  # type: ignore[method-assign]
        await stub.result(number, [messages.RESCHEDULED, answer(b""), None])
        assert heard == ["rescheduled", "results"]
        assert stub.work.has(open_)
        assert not stub.work.has(again)


@on_a_loop
async def test_a_stub_with_as_many_open_requests_as_it_may_have_is_full_until_one_ends() -> None:
    with Stub() as stub:
        stub.work.streams = 2
        told: list[int] = []
        stub.owner.on_results = lambda _, results: told.append(len(results))  # type: ignore[method-assign]
        number = stub.execute(stub.request(), stub.request(), stub.request())
        assert not stub.work.full
        await stub.result(number, [None, answer(b""), None])
        assert stub.work.full
        await stub.respond(number, 0, answer(b""), 0)
        assert stub.work.full
        await stub.respond(number, 0, None)
        assert not stub.work.full
        assert told == [1, 0]


@on_a_loop
async def test_a_cancellation_finds_its_request() -> None:
    with Stub() as stub:
        first, second, third = stub.request(), stub.request(), stub.request()
        number = stub.execute(None, first, second)
        stub.work.cancel(second)
        await stub.result(number, [None, None, answer(b"")])
        stub.work.cancel(first)
        stub.work.cancel(third)
        cancelled = [("cancel", {"batch": number, "indices": [index]}) for index in (2, 1)]
        assert stub.process.sent == cancelled


# Slots


@on_a_loop
async def test_an_empty_slot_keeps_its_place() -> None:
    with Stub() as stub:
        first, second = stub.request(), stub.request()
        stub.work.execute(Work.of_slots([first, None, second]))
        number, _, wire = stub.received()
        assert [slot is None for slot in wire] == [False, True, False]
        await stub.result(number, [answer(b"\1\0\0\0"), None, answer(b"\2\0\0\0")])
        [(requests, finished)] = stub.owner.results
        assert requests == [first, second]
        assert [(request, response.outputs[0].data) for request, response in finished] == [
            (first, b"\1\0\0\0"),
            (second, b"\2\0\0\0"),
        ]
        assert stub.work.is_empty


@on_a_loop
async def test_extra_inputs_come_behind_the_requests_own_and_are_held() -> None:
    with Stub() as stub:
        request, open_ = stub.request(small(1)), stub.request(small(2))
        extras = [[stub.large("STATE")], [stub.large("LOST")], [Tensor("READY", FP32, (1,), bytes(4)), stub.large("S")]]
        stub.work.execute(Work.of_slots([request, None, open_], extras))
        number, _, wire = stub.received()
        assert [slot and [name for name, _, _, _ in slot[4]] for slot in wire] == [
            ["IN", "STATE"],
            ["LOST"],
            ["IN", "READY", "S"],
        ]
        for tensors in extras:
            drop_blocks(tensors)
        state = extras[0][0]
        await stub.result(number, [answer(Lent(state.offset, 64, state.offset)), None, None], held=[state.offset])
        [(_, [(_, response)])] = stub.owner.results
        assert response.outputs[0].span is state.span
        drop_blocks(response.outputs)
        await stub.say(messages.pack_released([state.offset]))
        # Only what the sender's request was given is still there.
        assert stub.ingress_bytes
        await stub.respond(number, 2, None)
        assert not stub.ingress_bytes


@on_a_loop
async def test_extra_inputs_go_with_the_stub() -> None:
    with Stub() as stub:
        extras = [[stub.large()]]
        number = stub.execute(stub.request(), extras=extras)
        await stub.result(number, [None])
        more = [[stub.large()]]
        stub.execute(stub.request(), extras=more)
        drop_blocks([*extras[0], *more[0]])
        assert stub.ingress_bytes
        left = stub.end()
        assert (len(left.executing), len(left.open)) == (1, 1)
        assert not stub.ingress_bytes


# Long messages


@on_a_loop
async def test_a_batch_that_is_too_long_for_a_record() -> None:
    with Stub() as stub:
        request = stub.request()
        request.id = "i" * (MAX_RECORD + 1)
        stub.work.execute(Work([request]))
        number, _, [wire] = stub.received()
        assert wire[0] == request.id
        assert stub.ingress_bytes
        await stub.result(number, [answer(b"")])
        assert not stub.ingress_bytes


@on_a_loop
async def test_a_result_that_is_too_long_for_a_record() -> None:
    with Stub() as stub:
        number = stub.execute(stub.request())
        await stub.result(number, [answer(*[bytes(1000)] * 100)])
        [(_, [(_, response)])] = stub.owner.results
        assert [output.nbytes for output in response.outputs] == [1000] * 100
        # The message itself is the stub's again.
        assert len(stub.outputs.take_frees()) == 1


@on_a_loop
async def test_a_batch_that_finds_no_memory_was_never_there() -> None:
    with Stub() as stub:
        number = stub.execute(stub.request())
        place = stub.output()
        await stub.result(number, [answer(place)])
        drop_blocks(stub.owner.results[0][1][0][1].outputs)
        request = stub.request()
        request.id = "i" * (65 << 20)
        with pytest.raises(ServeError, match="no room for"):
            stub.work.execute(Work([request]))
        assert stub.work.is_empty
        assert not stub.ingress_bytes
        # The frees of the message that was not sent ride on the next.
        stub.work.execute(Work([stub.request()]))
        assert stub.received()[1] == (place.offset,)


# What is no message


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xc1",
        messages.pack("text"),
        messages.pack(()),
        messages.pack((99, 1)),
        messages.pack((messages.RESULT, 1)),
        messages.pack_result(77, 1, 2, (), (), None),
        messages.pack((messages.RESULT, 1, 1, 2, (), (), None)),
        messages.pack((messages.RESULT, 1, 1, 2, ((None, (("OUT", 11, (1,), (9, 9, 9)),), None),), (), None)),
        messages.pack((messages.RESULT, 1, 1, 2, ((("wrong", 999), (), None),), (), None)),
        messages.pack((messages.RESPONSE, 1, 5, 1, None, 0, ())),
        messages.pack((messages.RELEASED, 7)),
    ],
)
@on_a_loop
async def test_garbage_ends_the_stub_and_answers_its_requests(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with Stub() as stub:
        request = stub.request()
        assert stub.execute(request) == 1
        with caplog.at_level(logging.CRITICAL, "stubserve.instances"):
            await stub.say(garbage)
        assert stub.process.condemned == [
            "its ring holds something that is not a message; does its model write to memory of others?"
        ]
        assert stub.owner.results == []
        assert stub.work.over
        # It is not listened to any more.
        await stub.result(1, [answer(b"")])
        assert stub.owner.results == []
        assert stub.end() == ([request], [], [])


@pytest.mark.parametrize("after", [("OUT", 11, (1,), 7), "no output", ("OUT", 11)])
@on_a_loop
async def test_garbage_behind_good_outputs_leaves_no_memory(after: Any, caplog: pytest.LogCaptureFixture) -> None:
    with Stub() as stub:
        stub.execute(stub.request(), stub.request())
        good = ("OUT", FP32, (1024,), stub.output())
        entries = ((None, (good, good), None), (None, (good, after), None))
        with caplog.at_level(logging.CRITICAL, "stubserve.instances"):
            await stub.say(messages.pack((messages.RESULT, 1, 1, 2, entries, (), None)))
        assert len(stub.process.condemned) == 1
        stub.end()
        assert await stub.given_back()


@on_a_loop
async def test_a_garbled_long_message_leaves_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    with Stub() as stub:
        with caplog.at_level(logging.CRITICAL, "stubserve.instances"):
            await stub.say(b"\xc1" * (MAX_RECORD + 1))
        assert len(stub.process.condemned) == 1
        stub.end()
        assert await stub.given_back()


@on_a_loop
async def test_a_doorbell_that_somebody_else_rings(caplog: pytest.LogCaptureFixture) -> None:
    with Stub() as stub:
        with caplog.at_level(logging.CRITICAL, "stubserve.instances"):
            os.write(stub.process.doorbell_in, (1 << 31).to_bytes(8, "little"))
            await turn()
        assert len(stub.process.condemned) == 1


@on_a_loop
async def test_a_stub_that_has_lost_its_place_in_its_ring() -> None:
    with Stub() as stub:

        def fill() -> None:
            # More than two batches are only given to a stub that says it has taken none.
            while True:
                stub.work.execute(Work([stub.request(Tensor("IN", FP32, (250,), bytes(1000)))]))

        with pytest.raises(ServeError, match="the request ring of stub 'model_0_0' cannot be written to"):
            fill()
        assert stub.process.condemned == [
            "what it says of its ring makes no sense; does its model write to memory of others?"
        ]


# The end


@on_a_loop
async def test_death_tells_what_ran_and_what_was_open() -> None:
    with Stub() as stub:
        open_, answered, running, other = (stub.request() for _ in range(4))
        number = stub.execute(open_)
        await stub.result(number, [None])
        number = stub.execute(answered, None, running)
        stub.execute(other)
        await stub.respond(number, 0, None)
        assert stub.memory.stubs_at_work == 1
        assert stub.end() == ([running], [other], [open_])
        assert stub.work.executed == 1
        assert stub.memory.stubs_at_work == 0
        assert stub.work.is_empty


@pytest.mark.parametrize(("said", "begun"), [(0, 1), (1, 1), (2, 2), (3, 3), (99, 1)])
@on_a_loop
async def test_death_tells_what_had_not_begun(said: int, begun: int) -> None:
    with Stub() as stub:
        requests = [stub.request() for _ in range(3)]
        for request in requests:
            stub.execute(request)
        stub.channel.set_health(EXECUTING, said)
        assert stub.end() == (requests[:begun], requests[begun:], [])


@on_a_loop
async def test_of_a_stub_that_writes_over_its_words_nothing_is_known() -> None:
    with Stub() as stub:
        requests = [stub.request() for _ in range(3)]
        for request in requests:
            stub.execute(request)
        segment = stub.memory.arena.segment(stub.outputs.index)
        segment.stub_words[layout.CANARY] = 0
        assert stub.end() == (requests, [], [])


@on_a_loop
async def test_what_was_sent_before_death_counts() -> None:
    with Stub() as stub:
        request = stub.request()
        number = stub.execute(request)
        # No turn of the event loop comes between.
        stub.channel.send(messages.pack_result(number, 1, 2, [answer(b"\1\0\0\0")], (), None))
        assert stub.end() == ([], [], [])
        [(_, [(answered, _)])] = stub.owner.results
        assert answered is request


@on_a_loop
async def test_a_stub_is_told_to_stop_behind_its_batches() -> None:
    with Stub() as stub:
        stub.work.execute(Work([stub.request()]))
        stub.work.stop()
        assert [message[0] for message in stub.channel.receive()] == [messages.EXECUTE, messages.STOP]


@on_a_loop
async def test_only_a_small_lone_request_has_the_stub_look_for_the_next() -> None:
    with Stub() as stub:
        words = stub.memory.arena.segment(stub.outputs.index).parent_words
        number = stub.execute(stub.request())
        assert words[layout.ALONE] == 1
        await stub.result(number, [answer(b"")])
        number = stub.execute(stub.request(stub.large(nbytes=128 << 10)))
        assert words[layout.ALONE] == 0
        await stub.result(number, [answer(b"")])
        number = stub.execute(stub.request(), stub.request())
        assert words[layout.ALONE] == 0
        await stub.result(number, [answer(b""), answer(b"")])
        number = stub.execute(None, stub.request())
        assert words[layout.ALONE] == 1

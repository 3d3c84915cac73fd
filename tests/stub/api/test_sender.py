"""Response senders: what they allow when, what they send, and how they wait. The channel is a list of messages."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api.constants import REQUEST_RELEASE_RESCHEDULE
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import GROUP_BYTES, GROUP_RESPONSES, InferenceResponseSender, Senders
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.python.batch import ModelBatch
from stubserve_stub.backends.python.model import ContractBroken
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.wire import messages
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.options import NO_OPTIONS
from stubserve_stub.wire.places import InArena

FINAL = 1
CLOSED = "Unable to send response. Response sender has been closed."
MORE_THAN_ONE = "Unable to send response. Non-decoupled model cannot send more than one response."
FINAL_FIRST = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."


class Channel:
    """Stands for the rings: what is sent is kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.pokes = 0
        self.placed: list[int] = []
        self.news = threading.Condition()

    def send(self, message: tuple[Any, ...]) -> None:
        with self.news:
            self.sent.append(message)
            self.news.notify_all()

    def respond(self, key: tuple[int, int], start_ns: int, wire: Any, acknowledge: bool) -> None:
        self.send((*key, wire, messages.ACKNOWLEDGE if acknowledge else 0))

    def respond_last(self, key: tuple[int, int], start_ns: int, wire: Any, tensors: list[Any]) -> None:
        self.send((*key, wire, messages.FINAL))

    def place(self, buffer: Any) -> Any:
        if buffer.nbytes <= INLINE_BYTES:
            return buffer.tobytes()
        self.placed.append(len(self.placed))
        return InArena(self.placed[-1], buffer.nbytes)

    def free(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.placed.remove(offset)

    def poke(self) -> None:
        self.pokes += 1

    def wait_for(self, count: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: len(self.sent) >= count, 60)


class Bench:
    """A batch of requests to a model, before `execute` has returned."""

    def __init__(self, decoupled: bool, requests: int = 1) -> None:
        self.channel = Channel()
        self.senders = Senders(self.channel, decoupled)
        wire = [("id", NO_OPTIONS, None, None, [("IN", 11, [1], b"\0\0\0\0")]) for _ in range(requests)]
        self.batch = ModelBatch(Batch(self.channel, 7, wire), self.senders, ["OUT"])  # type: ignore[arg-type]
        self.requests = self.batch.requests

    @property
    def sender(self) -> InferenceResponseSender:
        return self.requests[0].get_response_sender()

    @property
    def sent(self) -> list[tuple[Any, ...]]:
        """(index, first output's bytes or error or None, flags) of each response."""
        found = []
        for number, index, wire, flags in self.channel.sent:
            assert number == 7
            what = wire and (wire[0] or [data for _, _, _, data in wire[1]])
            found.append((index, what, flags))
        return found


def answer(value: int = 1, name: str = "OUT") -> InferenceResponse:
    return InferenceResponse([Tensor(name, np.array([value], np.uint8))])


def refused(sender: InferenceResponseSender, text: str, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(TritonModelException) as caught:
        sender.send(*args, **kwargs)
    assert str(caught.value) == text


def test_no_constructor() -> None:
    with pytest.raises(TypeError, match="No constructor defined!"):
        InferenceResponseSender()


@pytest.mark.parametrize("decoupled", [False, True])
def test_arguments_come_first(decoupled: bool) -> None:
    sender = Bench(decoupled).sender
    for wrong in ({"flags": 1.0}, {"flags": None}, {"response": "text"}, {"flags": -1}):
        with pytest.raises(TypeError, match=r"send\(\): incompatible function arguments"):
            sender.send(**wrong)  # type: ignore[arg-type]
    sender.send(answer(), FINAL)
    refused(sender, "Unable to send response. Unsupported flag provided.", answer(), 2)
    refused(sender, "Inference Response object must be provided when the response flags is set to zero.")


def test_a_request_that_the_model_made_has_no_state() -> None:
    sender = InferenceRequest(inputs=[], requested_output_names=[], model_name="m").get_response_sender()
    refused(
        sender,
        "Unable to send response. Response sender has no reference to the decoupled state of the model.",
        answer(),
    )


def test_decoupled() -> None:
    bench = Bench(decoupled=True)
    bench.sender.send(answer(1))
    bench.sender.send(InferenceResponse(error=TritonError("wrong", TritonError.NOT_FOUND)))
    bench.sender.send(flags=FINAL)
    refused(bench.sender, CLOSED, answer())
    refused(bench.sender, CLOSED, flags=FINAL)
    assert bench.sent == [(0, [b"\1"], 0), (0, ("wrong", 2), 0), (0, None, messages.FINAL)]
    assert bench.batch.left_open() == [None]


def test_final_with_the_last_response_and_outputs_nobody_wants() -> None:
    bench = Bench(decoupled=True)
    response = InferenceResponse([*answer(3).output_tensors(), *answer(4, "OTHER").output_tensors()])
    bench.sender.send(response, FINAL)
    assert bench.sent == [(0, [b"\3"], messages.FINAL)]
    assert [tensor.name() for tensor in response.output_tensors()] == ["OUT"]


def test_not_decoupled() -> None:
    bench = Bench(decoupled=False)
    refused(bench.sender, FINAL_FIRST, flags=FINAL)
    bench.sender.send(answer(1))
    assert bench.sent == []  # until it is final
    refused(bench.sender, MORE_THAN_ONE, answer(2))
    refused(bench.sender, MORE_THAN_ONE, answer(2), FINAL)
    bench.sender.send(flags=FINAL)
    assert bench.sent == [(0, [b"\1"], messages.FINAL)]
    refused(bench.sender, CLOSED, flags=FINAL)
    refused(bench.sender, MORE_THAN_ONE, answer(2))


def test_sent_and_returned() -> None:
    bench = Bench(decoupled=False, requests=2)
    bench.sender.send(answer(), FINAL)
    with pytest.raises(ContractBroken, match="cannot send more than one response"):
        bench.batch.encode([answer(2), answer(3)])


def test_a_batch_that_fails_keeps_no_outputs() -> None:
    bench = Bench(False, requests=2)
    bench.requests[1].get_response_sender().send(answer(), FINAL)
    large = InferenceResponse([Tensor("OUT", np.zeros(9000, np.uint8))])
    bench.batch.encode([large, None])
    assert bench.channel.placed == [0]
    with pytest.raises(ContractBroken):
        bench.batch.encode([large, answer()])
    assert bench.channel.placed == [0]


def test_returned_although_there_is_a_sender() -> None:
    bench = Bench(decoupled=False)
    sender = bench.sender
    ((error, outputs, _),) = bench.batch.encode([answer(2)])
    assert error is None
    assert outputs[0][3] == b"\2"
    refused(sender, CLOSED, answer())
    del sender
    bench.batch.release()
    assert bench.sent == []


def test_a_sender_asked_for_after_the_answer() -> None:
    bench = Bench(decoupled=False)
    (request,) = bench.requests
    bench.batch.encode([answer(2)])
    bench.batch.release()
    refused(request.get_response_sender(), MORE_THAN_ONE, answer())


def test_a_failed_batch_tells_what_was_sent_with_its_error() -> None:
    bench = Bench(decoupled=False)
    sender = bench.sender
    sender.send(answer(3))
    assert bench.sent == []
    bench.batch.give_up_senders("failed")
    ((_, _, (error, outputs, _), flags),) = bench.channel.sent
    assert flags & messages.FINAL
    assert error == ("failed", int(TritonError.INTERNAL))
    assert outputs[0][3] == b"\3"
    refused(sender, MORE_THAN_ONE, answer())


def test_a_failed_batch_ends_its_senders() -> None:
    bench = Bench(decoupled=True, requests=2)
    sender = bench.sender
    bench.requests[1].get_response_sender().send(answer(), FINAL)
    bench.batch.give_up_senders("failed")
    refused(sender, CLOSED, answer())
    assert len(bench.sent) == 1


def test_rescheduled() -> None:
    for decoupled in (False, True):
        bench = Bench(decoupled, requests=2)
        bench.requests[1].set_release_flags(REQUEST_RELEASE_RESCHEDULE)
        if decoupled:
            bench.requests[1].get_response_sender().send(answer())
            assert bench.batch.left_open() == [None, messages.RESCHEDULED]
        else:
            assert bench.batch.encode([answer(), None])[1] == messages.RESCHEDULED
            with pytest.raises(ContractBroken, match="list for reschduled request, found type"):
                bench.batch.encode([answer(), answer()])
            error = InferenceResponse(error=TritonError("stop"))
            assert bench.batch.encode([answer(), error])[1][0] == ("stop", 1)
        refused(bench.requests[1].get_response_sender(), CLOSED, flags=FINAL) if decoupled else None


@pytest.mark.parametrize(("decoupled", "sends"), [(False, 0), (False, 1), (True, 0), (True, 2)])
def test_let_go_without_an_end(decoupled: bool, sends: int) -> None:
    bench = Bench(decoupled)
    for _ in range(sends):
        bench.sender.send(answer(5))
    assert (bench.batch.left_open() if decoupled else bench.batch.encode([None])) == [None]
    bench.requests.clear()
    bench.batch.release()
    gc.collect()
    assert bench.channel.pokes == 1
    bench.channel.sent.clear()
    assert bench.senders.report_dropped("m_0") == [(7, 0)]
    ((index, what, flags),) = bench.sent
    assert (index, flags) == (0, messages.FINAL)
    if not sends:
        told = "'m_0' let go of the response sender" if decoupled else "'m_0': `execute` returned None in place of"
        assert told in what[0]
    else:
        assert what == (None if decoupled else [b"\5"])


def test_cancellation_reaches_both() -> None:
    bench = Bench(decoupled=True)
    (request,) = bench.requests
    sender = request.get_response_sender()
    assert not request.is_cancelled()
    bench.senders.cancel((7, 0))
    assert request.is_cancelled()
    assert sender.is_cancelled()
    sender.send(flags=FINAL)
    bench.senders.cancel((7, 0))  # too late, and no harm


def test_two_threads() -> None:
    """One of two finals gets through, and nothing after it."""
    for _ in range(50):
        bench = Bench(decoupled=True)
        sender = bench.sender
        start = threading.Barrier(3)
        failures: list[str] = []

        def race(sender: InferenceResponseSender = sender, start: Any = start, failures: Any = failures) -> None:
            start.wait()
            try:
                sender.send(answer())
                sender.send(answer(), FINAL)
            except TritonModelException as error:
                failures.append(str(error))

        threads = [threading.Thread(target=race) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        for thread in threads:
            thread.join()
        assert failures == [CLOSED]
        assert [flags for _, _, flags in bench.sent].index(messages.FINAL) == len(bench.sent) - 1


def test_waits_for_credit() -> None:
    """Two groups go out; the third waits until the first has been passed on."""
    bench = Bench(decoupled=True)
    sender = bench.sender

    def stream() -> None:
        for _ in range(3 * GROUP_RESPONSES):
            sender.send(answer())
        sender.send(flags=FINAL)

    thread = threading.Thread(target=stream)
    thread.start()
    bench.channel.wait_for(2 * GROUP_RESPONSES)
    asked = [place for place, (_, _, flags) in enumerate(bench.sent) if flags == messages.ACKNOWLEDGE]
    assert asked == [GROUP_RESPONSES - 1, 2 * GROUP_RESPONSES - 1]
    thread.join(0.05)
    assert thread.is_alive()
    assert len(bench.channel.sent) == 2 * GROUP_RESPONSES
    bench.senders.acknowledge((7, 0))
    thread.join(60)
    assert not thread.is_alive()
    assert len(bench.channel.sent) == 3 * GROUP_RESPONSES + 1


def test_what_travels_in_messages_makes_groups_shorter() -> None:
    """The parent's heap has it until a slow client reads on, and counts nothing so small."""
    bench = Bench(decoupled=True)
    largest = InferenceResponse([Tensor("OUT", np.zeros(INLINE_BYTES, np.uint8))])
    group = GROUP_BYTES // (8 * INLINE_BYTES)
    assert group < GROUP_RESPONSES
    for _ in range(2 * group):
        bench.sender.send(largest)
    asked = [place for place, (_, _, flags) in enumerate(bench.sent) if flags == messages.ACKNOWLEDGE]
    assert asked == [group - 1, 2 * group - 1]
    assert bench.channel.placed == []


def test_one_that_waits_is_turned_away_when_its_batch_fails() -> None:
    bench = Bench(decoupled=True)
    sender = bench.sender
    outcome: list[str] = []

    def stream() -> None:
        try:
            while True:
                sender.send(answer())
        except TritonModelException as error:
            outcome.append(str(error))

    thread = threading.Thread(target=stream)
    thread.start()
    bench.channel.wait_for(2 * GROUP_RESPONSES)
    bench.batch.give_up_senders("failed")
    thread.join(60)
    assert outcome == [CLOSED]

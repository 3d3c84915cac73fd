"""Run by test_forks.py: a process that forks as a model does, with the rings replaced. Prints what came of it.

The other model answers with its input, doubled, or with an error for a negative one.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import numpy as np
from stubserve_stub.api import bls
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.python.forks import Forks
from stubserve_stub.runtime.outputs import InlinePlacer

PID = os.getpid()


class Channel(InlinePlacer):
    """Stands for the rings, which only the first process may use."""

    def __init__(self) -> None:
        self.refuse: Any = None

    def cut_off(self, refuse: Any) -> None:
        self.refuse = refuse


class Calls:
    """Stands for the stub's calls: another model's answer is there at once."""

    def __init__(self) -> None:
        self.channel = Channel()

    def open(self, target: Any, decoupled: bool, request: Any, on_answer: Any = None, preferred: Any = None) -> Any:
        assert os.getpid() == PID, "a copy of the rings is used"
        *_, names, inputs = request
        (_, _, _, data) = inputs[0]
        array = np.frombuffer(data, np.int64)
        answers = []
        for at in range(array.size if decoupled else 1):
            if array[at] < 0:
                response = InferenceResponse(error=TritonError("less than nothing", TritonError.INVALID_ARG))
            else:
                response = InferenceResponse([Tensor("OUT", array * 2), Tensor("NOT ASKED FOR", array)])
            answers.append(response._encode(names or ["OUT"], self.channel))
        return [bls.received(self.channel, wire) for wire in answers]  # type: ignore[arg-type]

    def wait(self, call: Any) -> Any:
        response = call.pop(0)
        return response, not call

    def taken(self, *_: Any) -> None: ...

    def discard(self, _: Any) -> None: ...


def ask(values: Any, decoupled: bool = False) -> Any:
    request = InferenceRequest(
        inputs=[Tensor("IN", np.array(values, np.int64))], requested_output_names=["OUT"], model_name="other"
    )
    return request.exec(decoupled=decoupled)


def outputs(response: Any) -> Any:
    if response.has_error():
        return response.error().message(), int(response.error().code())
    return {tensor.name(): tensor.as_numpy()[:3].tolist() for tensor in response.output_tensors()}


def say(*words: Any) -> None:
    print(*words, flush=True)


def forked(work: Any) -> None:
    """Does `work` in a process that is forked, and waits for that."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status


def answers() -> None:
    say(outputs(ask([1, 2, 3])))
    say(outputs(ask([-1])))
    say([outputs(response) for response in ask([4, 5], decoupled=True)])
    large = ask(np.arange(100_000))
    say(large.output_tensors()[0].as_numpy().sum())


def nested() -> None:
    forked(lambda: say(outputs(ask([7]))))
    say(outputs(ask([8])))


def refused() -> None:
    try:
        calls.channel.refuse("any", "arguments")
    except TritonModelException as error:
        say(error)


def not_allowed() -> None:
    """What the stub refuses reaches the process that asks."""
    try:
        ask([1])
    except TritonModelException as error:
        say(error)


def orphaned() -> None:
    """Asks when the process that has forked it is gone."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        if os.fork():
            os._exit(0)
        os.close(writing)
        os.read(reading, 1)  # until nobody has the other end: the one between is gone, and known to be
        not_allowed()
        os._exit(0)
    os.waitpid(pid, 0)


calls = Calls()
Forks("m_0", calls.channel).connect()  # type: ignore[arg-type]
if sys.argv[1] != "not_allowed":
    bls.connect(calls)  # type: ignore[arg-type]
forked(globals()[sys.argv[1]])

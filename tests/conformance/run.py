"""Runs cases against one server and keeps what came back as comparable data."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import http2
from .accepted import ACCEPTED
from .compare import describe_answer, describe_frames, describe_rpc
from .repository import put
from .request import DEFAULT_TIMEOUT_S, Case, Concurrent, Exchange, Frames, Put, Rpc, Until
from .rpc import call
from .servers import Server, StartError, running
from .statistics import movement, settled
from .wire import Answer, exchange

Outcome = dict[str, Any]
# Cases that take longer are named while the suite runs: usually a server that does not answer.
SLOW_S = 2.5
# How often it is told how far a long list of cases is
TELL_S = 10.0
# What real Triton answers from then on for a model whose stub has died: it has to be started afresh.
DEAD_STUB = "is not healthy."
TIMED_OUT = '"timeout"'
BROKEN_CONNECTION = ('"reset"', '"early close"', '"no connection')
DEATH_WAIT_S = 1.0
BETWEEN_LOOKS_S = 0.1
NOT_STARTED = "did not start"
# Real Triton dies in every third or so of some refusals within a model, at random.
MOST_TRIES = 8
# It also dies now and then while it starts, where many models load at once.
MOST_STARTS = 3


def _send(server: Server, step: Exchange) -> Answer:
    return exchange(server.port, step.parts, step.methods, step.timeout, step.expect_close)


def _await(server: Server, step: Until) -> Answer:
    deadline = time.monotonic() + step.timeout
    while True:
        answer = _send(server, step.exchange)
        if time.monotonic() > deadline or _is_awaited(answer, step):
            return answer
        time.sleep(BETWEEN_LOOKS_S)


def _is_awaited(answer: Answer, step: Until) -> bool:
    if len(answer.responses) != 1 or answer.responses[0].status != step.status:
        return False
    body = answer.responses[0].body.replace(b" ", b"")
    return step.text.encode() in body and not (step.without and step.without.encode() in body)


def outcome(server: Server, case: Case) -> Outcome:
    """Plays one case: a list of answers by step, and the statistics movement where the case asks for it."""
    before = settled(server, case.stats) if case.stats else {}
    steps: list[Any] = []
    for step in case.steps:
        if isinstance(step, Concurrent):
            with ThreadPoolExecutor(len(step.exchanges)) as pool:
                answers = list(pool.map(lambda one: _send(server, one), step.exchanges))
            # Which of several requests at once comes first is nobody's promise: the answers are compared as a set.
            described = [describe_answer(answer, server, case.pick) for answer in answers]
            steps.append(sorted(described, key=json.dumps))
        elif isinstance(step, Rpc):
            steps.append(describe_rpc(call(server.grpc_port, step), step.method, server, case.pick))
        elif isinstance(step, Put):
            put(server.repository, step.path, step.content)
        elif isinstance(step, Until):
            steps.append(describe_answer(_await(server, step), server, case.pick))
        elif isinstance(step, Frames):
            steps.append(describe_frames(http2.exchange(server.grpc_port, step)))
        else:
            steps.append(describe_answer(_send(server, step), server, case.pick))
    result: Outcome = {"steps": steps}
    if case.stats:
        result["statistics"] = movement(before, settled(server, case.stats))
    return result


def _survived(server: Server, case: Case, result: Outcome) -> bool:
    """Whether the next case may use the same server; notes its death in ``result``.

    A connection that broke may be the first sign of a process that is still on its way down. Where an answer was to be
    expected and did not come, an instance is taken to be stuck, and with it every later case on that model.
    """
    text = json.dumps(result)
    if any(sign in text for sign in BROKEN_CONNECTION):
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(DEATH_WAIT_S)
    if not server.alive():
        result["server"] = "died"
    stuck = TIMED_OUT in text and not _may_be_silent(case)
    return server.alive() and not stuck and DEAD_STUB not in text


def _may_be_silent(case: Case) -> bool:
    """Whether the case itself reckons with no answer, by a shorter wait than usual."""
    return any(isinstance(step, (Exchange, Rpc, Frames)) and step.timeout < DEFAULT_TIMEOUT_S for step in case.steps)


def _most_tries(name: str, case: Case) -> int:
    """How often a case may break what answers it before that counts as the answer.

    Real Triton may die some time after the request that broke it, or at random, so the case at hand gets a second
    chance there, and more where an answer is known to exist; not among the fragile models, where each case is known for
    what it does.
    """
    if name != "triton" or case.server == "fragile":
        return 1
    return 2 if case.name in ACCEPTED else MOST_TRIES


def outcomes(name: str, setup: str, cases: Iterable[Case]) -> Generator[tuple[Case, Outcome], None, None]:
    """Each case and its outcome on server ``name`` with a setup; it is started again if a case breaks something."""
    batch = list(cases)
    planned = len(batch)
    tries: Counter[str] = Counter()
    failed_starts = 0
    while batch:
        say(f"{name}: starting with the {setup} models, {len(batch)} cases")
        with contextlib.ExitStack() as stack:
            try:
                server = stack.enter_context(running(name, setup))
            except StartError as error:
                say(str(error))
                failed_starts += 1
                if name == "triton" and failed_starts < MOST_STARTS:
                    continue
                yield from ((case, {"steps": [], "server": NOT_STARTED}) for case in batch)
                break
            usable = True
            told = time.monotonic()
            while batch and usable:
                case = batch.pop(0)
                started = time.monotonic()
                result = outcome(server, case)
                usable = _survived(server, case, result)
                now = time.monotonic()
                if now - started > SLOW_S or not usable:
                    broken = "" if usable else ", and something is broken"
                    say(f"  {case.name}: {now - started:.1f} s{broken}")
                if now - told > TELL_S:
                    told = now
                    say(f"{name}: {planned - len(batch)} of {planned} cases of the {setup} models")
                tries[case.name] += 1
                if not usable and tries[case.name] < _most_tries(name, case):
                    batch.insert(0, case)
                else:
                    yield case, result


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

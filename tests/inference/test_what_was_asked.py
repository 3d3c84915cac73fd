"""What a client asked does not change once it is read: what may write it, and how it looks after each scheduler."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request, unanswered
from stubserve.inference.tensor import Tensor
from stubserve.model_config.complete import normalise
from stubserve.model_config.parse import parse_text
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.factory import create_scheduler

SOURCES = Path(__file__).parents[2] / "src" / "stubserve"

ASKED = (
    "batch_size",
    "client",
    "correlation_id",
    "flags",
    "id",
    "inputs",
    "parameters",
    "priority",
    "regions",
    "requested_outputs",
    "timeout_us",
)

# The protocols (`http`, `grpc`, `api`) read requests; a call adds its client; admission sets the batch size.
WRITERS = {"inference/call.py": {"client"}, "inference/admission.py": {"batch_size"}}


def test_there_are_no_such_fields_that_this_test_does_not_know() -> None:
    becoming = {
        "admitted", "cancelled", "compute_end_ns", "compute_infer_end_ns", "compute_input_end_ns", "compute_start_ns",
        "grouping_key", "on_response", "outcome", "queue_start_ns", "request_start_ns", "sequence", "stream",
        "trace",
    }  # fmt: skip
    fields = {name for name in vars(Request([], unanswered).__class__) if not name.startswith("_")}
    methods = {"id_prefix", "pause", "refuse", "resume", "streamed", "when_read"}
    assert fields - methods == becoming | set(ASKED)


def written(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The attributes of other objects that a module assigns to, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not own:
                yield node.lineno, node.attr


@pytest.mark.parametrize("room", ["inference", "instances", "loading", "response_cache", "schedulers", "serving"])
def test_nothing_behind_the_readers_writes_what_was_asked(room: str) -> None:
    found = []
    for path in sorted((SOURCES / room).rglob("*.py")):
        module = path.relative_to(SOURCES).as_posix()
        may_write = WRITERS.get(module, set())
        for line, name in written(ast.parse(path.read_text())):
            if name in ASKED and name not in may_write:
                found.append(f"{module}:{line} writes `{name}`")
    assert not found


def test_such_writes_are_found() -> None:
    tree = ast.parse("request.flags |= 1\nself.flags = 2\na.b.id, x = 1, 2\none.inputs.append(3)")
    assert sorted(written(tree)) == [(1, "flags"), (3, "id")]


SCHEDULERS = {
    "none": "",
    "dynamic": "dynamic_batching {}",
    "priorities and timeouts": "dynamic_batching { priority_levels: 3 default_priority_level: 2 "
    "default_queue_policy { default_timeout_microseconds: 900 allow_timeout_override: true } }",
    "direct": "sequence_batching { direct {} %s }",
    "oldest": "sequence_batching { oldest { max_candidate_sequences: 4 } %s }",
    "direct, again": "sequence_batching { iterative_sequence: true direct {} %s }",
    "oldest, again": "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } %s }",
}
CONTROLS = """
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
    control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
    state { input_name: "IS" output_name: "OS" data_type: TYPE_INT32 dims: [1]
        initial_state { name: "zero" data_type: TYPE_INT32 dims: [1] zero_data: true } }
"""


def scheduler_of(kind: str) -> Scheduler:
    batching = SCHEDULERS[kind]
    text = f"""
        name: "m" backend: "python" max_batch_size: 4
        input {{ name: "IN" data_type: TYPE_INT32 dims: [-1] }} output {{ name: "OUT" data_type: TYPE_INT32 dims: [1] }}
        {batching % CONTROLS if "%s" in batching else batching}
    """
    return create_scheduler(normalise(parse_text(text, "config.pbtxt"), "m", None))


def asked(request: Request) -> dict[str, object]:
    """What was asked, as values."""
    values = {name: getattr(request, name) for name in ASKED}
    values["inputs"] = [(one.name, one.datatype, tuple(one.shape), one.data, one.nbytes) for one in request.inputs]
    values["parameters"] = dict(request.parameters or {})
    values["requested_outputs"] = list(request.requested_outputs or ())
    return values


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_changes_nothing_of_it(kind: str) -> None:
    """Two sequences, or four requests that have nothing to do with each other; each is executed as often as it may."""
    scheduler = scheduler_of(kind)
    repeats = "again" in kind
    steps = ((0, 0), (0, 0), (7, SEQUENCE_START), (7, SEQUENCE_END)) if repeats else (
        (7, SEQUENCE_START), (8, SEQUENCE_START | SEQUENCE_END), (7, 0), (7, SEQUENCE_END)
    )  # fmt: skip
    requests = [
        Request(
            [Tensor("IN", 8, [1, 1 + number % 2], bytes(4 + 4 * (number % 2)))],
            unanswered,
            f"r{number}",
            *steps[number],
            priority=number % 3,
            timeout_us=1000 * number,
            parameters={"p": number},
            requested_outputs=["OUT"],
            client="c",
        )
        for number in range(4)
    ]
    before = [asked(one) for one in requests]
    scheduler.instance_idle("i")
    for one in requests:
        scheduler.enqueue(one, 0)
    left = set(requests)
    executed = 0
    for _ in range(20):
        for instance, work in scheduler.poll(1000).run:
            executed += len(work.requests)
            for one in work.requests:
                if not (repeats and executed < 8 and scheduler.reschedule(one, 1000)):
                    left.discard(one)
            scheduler.work_done(instance, work)
            scheduler.instance_idle(instance)
    assert not left
    assert executed >= (8 if repeats else 4)
    assert [asked(one) for one in requests] == before

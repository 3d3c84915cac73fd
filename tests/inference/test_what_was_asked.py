"""What a client asked does not change once it is read: what may write it, and how it looks after each scheduler."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from stubserve_stub.wire.options import RequestOptions

from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request
from stubserve.inference.tensor import Tensor
from stubserve.model_config.complete import normalise
from stubserve.model_config.parse import parse_text
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.factory import create_scheduler

SOURCES = Path(__file__).parents[2] / "src" / "stubserve"

ASKED = ("id", "inputs", "options", "regions", "requested_outputs")
CHANGES = {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"}


def test_nothing_of_it_can_be_assigned_to() -> None:
    """For mypy refuses to assign to what is `Final`."""
    tree = ast.parse((SOURCES / "inference" / "request.py").read_text())
    [request] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Request"]
    final = {
        node.target.attr
        for node in ast.walk(request)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
        if isinstance(node.annotation, ast.Name) and node.annotation.id == "Final"
    }
    assert final == set(ASKED)
    assert issubclass(RequestOptions, tuple)


def changed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a module changes a list or a dict that is an attribute of this name, with its lines."""
    for node in ast.walk(tree):
        inner: ast.AST | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            inner = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            inner = node.func.value
        if isinstance(inner, ast.Attribute) and inner.attr in (*ASKED, "parameters"):
            yield node.lineno, inner.attr


def test_no_list_of_it_is_changed() -> None:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        module = path.relative_to(SOURCES).as_posix()
        found += [f"{module}:{line} changes `{name}`" for line, name in changed(ast.parse(path.read_text()))]
    # These are of a configuration, and what a reader keeps for itself.
    others = ("commands/env.py", "http/json/worker.py")
    assert [one for one in found if not one.startswith(others)] == []


def test_such_changes_are_found() -> None:
    tree = ast.parse("a.inputs.append(1)\na.inputs[0] = 2\ndel a.b.regions['x']\na.inputs = 3\ninputs.append(4)")
    assert sorted(changed(tree)) == [(1, "inputs"), (2, "inputs"), (3, "regions")]


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
    values: dict[str, object] = {name: getattr(request, name) for name in ASKED}
    values["inputs"] = [(one.name, one.datatype, tuple(one.shape), one.data, one.nbytes) for one in request.inputs]
    values["options"] = (*request.options[:-1], dict(request.options.parameters or {}))
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
            f"r{number}",
            RequestOptions(*steps[number], number % 3, 1000 * number, {"p": number}),
            ["OUT"],
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

"""What Triton 2.51 did, request by request.

The batches below are what a Python model on Triton 2.51 logged: one CPU instance whose `execute` takes 150 ms, all
requests sent in order on one gRPC stream, the server started with TRITONSERVER_DELAY_SCHEDULER=6 so that the first
decision sees at least six of them. `held` is how many it did see where that makes a difference.

Left out is what depends on Triton's own timing rather than on a rule: which delayed request comes first where several
expire between two of its sweeps (every 500 ms), and the batch it goes on filling after it handed it over (see
`stubserve.schedulers.dynamic_batcher`, and the last test here).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stubserve.model_config.parse import parse_text
from stubserve.schedulers.factory import create_scheduler

from .requests import MS, Run, request

VARIABLE = 'input { name: "IN" data_type: TYPE_INT32 dims: [-1] }'
RAGGED = 'input { name: "IN" data_type: TYPE_INT32 dims: [-1] allow_ragged_batch: true }'
FIXED = 'input { name: "IN" data_type: TYPE_INT32 dims: [1] }'
OPTIONAL = FIXED + ' input { name: "OPT" data_type: TYPE_INT32 dims: [1] optional: true }'
OPTIONAL_VARIABLE = FIXED + ' input { name: "OPT" data_type: TYPE_INT32 dims: [-1] optional: true }'
EXPIRED = "Request timeout expired"


@dataclass
class Case:
    name: str
    batching: str
    # One entry a request: fields of `request`, or just its size
    requests: list[dict[str, int] | int]
    batches: list[list[int]]
    max_batch_size: int = 8
    inputs: str = FIXED
    held: int = 0
    failed: dict[int, str] | None = None
    starts_ms: list[int] | None = None


def each(field: str, *values: int | None) -> list[dict[str, int] | int]:
    return [{} if value is None else {field: value} for value in values]


ONES = [1] * 10

CASES = [
    Case("nothing set", "", ONES, [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9]], held=7),
    Case("larger requests", "", [3, 3, 3, 1, 1, 8, 1], [[0, 1], [2, 3, 4], [5], [6]]),
    Case("preferred 4", "preferred_batch_size: [4]", ONES, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
    Case("preferred 4 and 6", "preferred_batch_size: [4, 6]", [1] * 11, [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9], [10]]),
    Case("preferred 4 of threes", "preferred_batch_size: [4]", [3] * 6, [[i] for i in range(6)]),
    Case("over preferred 4", "preferred_batch_size: [4]", [6, 6, 1, 1, 1, 1, 5], [[0], [1], [2, 3, 4, 5], [6]]),
    Case(
        "preferred 4 and 6 of all sizes",
        "preferred_batch_size: [4, 6]",
        [2, 3, 3, 1, 3, 5, 1, 1],
        [[0, 1], [2, 3], [4], [5, 6], [7]],
    ),
    Case(
        "delay",
        "max_queue_delay_microseconds: 400000",
        [1] * 11,
        [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10]],
        starts_ms=[0, 400],
    ),
    Case(
        "preferred 4 and 6 with delay",
        "preferred_batch_size: [4, 6] max_queue_delay_microseconds: 600000",
        [1, 1, 1, 2, 2, 1, 1],
        [[0, 1, 2, 3], [4, 5, 6]],
        starts_ms=[0, 150],
    ),
    Case(
        "preferred 4 of threes with delay",
        "preferred_batch_size: [4] max_queue_delay_microseconds: 600000",
        [3] * 6,
        [[0], [1], [2], [3], [4, 5]],
        starts_ms=[0, 150, 300, 450, 600],
    ),
    Case("no batch dimension", "", [1] * 7, [[i] for i in range(7)], max_batch_size=0),
    Case(
        "no batch dimension with delay",
        "max_queue_delay_microseconds: 600000",
        [1] * 7,
        [[i] for i in range(7)],
        max_batch_size=0,
        starts_ms=[0, 150, 300, 450, 600, 750, 900],
    ),
    Case(
        "max_batch_size 1 with delay",
        "max_queue_delay_microseconds: 600000",
        [1] * 7,
        [[i] for i in range(7)],
        max_batch_size=1,
        starts_ms=[0, 150, 300, 450, 600, 750, 900],
    ),
    Case(
        "priorities",
        "priority_levels: 3 default_priority_level: 2",
        each("priority", 3, 3, 0, 2, 1, 9, 1, 3, 2, 1),
        # Triton saw the last request (of priority 1) only when it formed the second batch.
        [[4, 6, 2, 3], [9, 5, 8, 0], [1, 7]],
        max_batch_size=4,
        held=9,
    ),
    Case(
        "priorities and preferred sizes",
        "priority_levels: 2 default_priority_level: 1 preferred_batch_size: [2, 4]",
        [
            {"priority": 2},
            {"priority": 2, "size": 3},
            {"priority": 1},
            {"priority": 1, "size": 2},
            {"priority": 2},
            {"priority": 1},
        ],
        [[2, 3, 5], [0, 1], [4]],
    ),
    Case(
        "shapes",
        "",
        [
            {"width": 2},
            {"width": 2},
            {"width": 3},
            {"width": 3},
            {"width": 3, "size": 2},
            {"width": 2},
            {"width": 2},
        ],
        [[0, 1], [2, 3, 4], [5, 6]],
        inputs=VARIABLE,
    ),
    Case(
        "shapes and preferred 2",
        "preferred_batch_size: [2]",
        each("width", 2, 2, 2, 3, 3, 2, 2),
        [[0, 1], [2], [3, 4], [5, 6]],
        inputs=VARIABLE,
    ),
    Case(
        "shapes with delay",
        "max_queue_delay_microseconds: 600000",
        each("width", 2, 2, 3, 3, 3, 2, 2),
        [[0, 1], [2, 3, 4], [5, 6]],
        inputs=VARIABLE,
        starts_ms=[0, 150, 600],
    ),
    Case("ragged shapes", "", each("width", 2, 2, 3, 3, 3, 2), [[0, 1, 2, 3, 4, 5]], inputs=RAGGED),
    Case(
        "optional input",
        "",
        each("optional", None, None, 1, 1, None, 1, 1),
        [[0, 1], [2, 3], [4], [5, 6]],
        inputs=OPTIONAL,
    ),
    Case(
        "optional input of any shape",
        "",
        each("optional", 1, 1, 2, 2, 1, 1),
        [[0, 1], [2, 3], [4, 5]],
        inputs=OPTIONAL_VARIABLE,
    ),
    Case(
        "timeout",
        "preferred_batch_size: [1] default_queue_policy { default_timeout_microseconds: 250000 }",
        [1] * 7,
        [[0], [1]],
        failed=dict.fromkeys(range(2, 7), EXPIRED),
    ),
    Case(
        "timeout of the request without a default",
        "preferred_batch_size: [1] default_queue_policy { allow_timeout_override: true }",
        each("timeout_us", 0, 0, 0, 1000, 1000, 1000),
        [[i] for i in range(6)],
    ),
    Case(
        "timeout of the request, longer than the default",
        "preferred_batch_size: [1]"
        " default_queue_policy { default_timeout_microseconds: 200000 allow_timeout_override: true }",
        each("timeout_us", 0, 0, 1000, 5_000_000, 5_000_000, 5_000_000),
        [[0], [1]],
        failed=dict.fromkeys(range(2, 6), EXPIRED),
    ),
    Case(
        "timeout of the request not allowed",
        "preferred_batch_size: [1] default_queue_policy { default_timeout_microseconds: 20000000 }",
        each("timeout_us", *[1000] * 6),
        [[i] for i in range(6)],
    ),
    Case(
        "timeout shorter than the delay",
        "max_queue_delay_microseconds: 1500000 default_queue_policy { default_timeout_microseconds: 300000 }",
        [1] * 6,
        [],
        failed=dict.fromkeys(range(6), EXPIRED),
    ),
    Case(
        "limits of levels",
        "preferred_batch_size: [1] priority_levels: 2 default_priority_level: 1"
        " default_queue_policy { max_queue_size: 4 }"
        " priority_queue_policy { key: 2 value { max_queue_size: 2 } }",
        each("priority", 1, 2, 1, 2, 1, 2, 1, 1, 2),
        [[0], [2], [4], [6], [1], [3]],
        failed={i: f"[request id: {i}] Exceeds maximum queue size" for i in (5, 7, 8)},
    ),
]


def run(case: Case) -> Run:
    batching = f"dynamic_batching {{ {case.batching} }}"
    config = parse_text(f'name: "m" max_batch_size: {case.max_batch_size} {case.inputs} {batching}', "config.pbtxt")
    requests = [
        request(i, **(fields if isinstance(fields, dict) else {"size": fields}))
        for i, fields in enumerate(case.requests)
    ]
    run = Run(create_scheduler(config), ["the instance"], busy_ns=150 * MS)
    held = case.held or len(requests)
    run.enqueue(requests[:held])
    run.poll()
    run.enqueue(requests[held:])
    run.until_quiet()
    return run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_triton(case):
    done = run(case)
    assert done.batches == [[str(i) for i in batch] for batch in case.batches]
    assert {int(id): error.message for _, id, error in done.failed} == (case.failed or {})
    if case.starts_ms is not None:
        assert [now // MS for now, _, _ in done.log] == case.starts_ms


def test_unlike_triton_a_preferred_batch_is_not_overfilled():
    """Triton 2.51 sent [0..4] and [5..9] here: one more than preferred, and none of them waited."""
    case = Case(
        "preferred 4 with delay",
        "preferred_batch_size: [4] max_queue_delay_microseconds: 600000",
        ONES,
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]],
        starts_ms=[0, 150, 600],
    )
    test_as_triton(case)

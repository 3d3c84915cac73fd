"""The dynamic batcher as a client can see it: who shared an execution, and what it did to the statistics.

The models hold a batch back for seconds unless it is full, so that a case which fills it is sure to.
"""

from ..request import Case, Concurrent, Exchange, case, infer, tensor


def _row(model: str, rows: int = 1, width: int = 1) -> Exchange:
    return infer(model, {"inputs": [tensor("IN", "INT32", [rows, width], [1] * rows * width)]})


def _slow(milliseconds: int, timeout_us: int | None = None) -> Exchange:
    body: dict[str, object] = {"inputs": [tensor("DELAY", "INT32", [1, 1], [milliseconds])]}
    if timeout_us is not None:
        body["parameters"] = {"timeout": timeout_us}
    return infer("queue_limited", body)


CASES: tuple[Case, ...] = (
    case("batching/four_singles", Concurrent(tuple(_row("batcher") for _ in range(4))), stats="batcher"),
    case("batching/two_doubles", Concurrent(tuple(_row("batcher", 2) for _ in range(2))), stats="batcher"),
    case("batching/full_alone", _row("batcher", 4), stats="batcher"),
    case("batching/too_large", _row("batcher", 5), stats="batcher"),
    case("batching/eight_singles", Concurrent(tuple(_row("batcher") for _ in range(8))), stats="batcher"),
    case("batching/ragged", Concurrent(tuple(_row("batcher", 1, width) for width in (1, 2, 3, 4))), stats="batcher",
         note="allow_ragged_batch lets different shapes share an execution"),
    case("batching/alone_after_delay", _row("batcher_shapes"), stats="batcher_shapes"),
    case("batching/equal_shapes", Concurrent(tuple(_row("batcher_shapes", 1, 2) for _ in range(4))),
         stats="batcher_shapes"),
    case("batching/slow_served", _slow(10), stats="queue_limited"),
    case("batching/timeout_in_queue", Concurrent((_slow(900), _slow(900), _slow(900))), stats="queue_limited",
         note="one runs, one is prepared, and whoever waits longer than the policy allows is rejected; by counts only"),
)  # fmt: skip

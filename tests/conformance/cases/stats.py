"""Statistics: who may be asked, and what N requests of each kind add to which counter."""

from ..request import Case, Concurrent, case, get, infer, post, send, tensor

_ROW = [0] * 16


def _pair(batch: int) -> dict[str, object]:
    return {"inputs": [tensor(f"INPUT{i}", "FP32", [batch, 16], _ROW * batch) for i in (0, 1)]}


def _command(text: str) -> dict[str, object]:
    return {"inputs": [tensor("COMMAND", "BYTES", [1], [text])]}


CASES: tuple[Case, ...] = (
    case("statistics/one_request", infer("add_sub", _pair(1)), stats="add_sub"),
    case("statistics/batch_of_three", infer("add_sub", _pair(3)), stats="add_sub"),
    case("statistics/five_requests", *(infer("add_sub", _pair(1)) for _ in range(5)), stats="add_sub"),
    case("statistics/unbatched", infer("constant", {"inputs": []}), stats="constant"),
    case("statistics/different_batches", *(infer("add_sub", _pair(size)) for size in (1, 2, 2, 8)), stats="add_sub"),
    case("statistics/parse_failure", infer("add_sub", "{"), stats="add_sub"),
    case("statistics/unknown_output", infer("add_sub", {**_pair(1), "outputs": [{"name": "X"}]}), stats="add_sub"),
    case("statistics/model_error", infer("behave", _command("code_NOT_FOUND")), stats="behave"),
    case("statistics/model_exception", infer("behave", _command("raise")), stats="behave"),
    case("statistics/wrong_return", infer("behave", _command("tuple")), stats="behave"),
    case("statistics/no_execute", infer("no_execute", _command("x")), stats="no_execute"),
    case("statistics/sender", infer("behave", _command("sender")), stats="behave"),
    case("statistics/no_outputs", infer("behave", _command("no_outputs")), stats="behave"),
    case("statistics/concurrent", Concurrent(tuple(infer("add_sub", _pair(1)) for _ in range(6))), stats="add_sub"),
    case("statistics/shape_of_answer", infer("self_described", {"inputs": [tensor("IN", "FP32", [2, 1], [1, 2])]}),
         get("/v2/models/self_described/stats")),
    case("statistics/fresh_model", get("/v2/models/slow/stats")),
    case("statistics/fresh_batching_model", get("/v2/models/rich_config/versions/3/stats"),
         note="the warmup request is counted"),
    case("statistics/decoupled_model", get("/v2/models/decoupled/stats")),
    case("statistics/unknown_model", get("/v2/models/nosuch/stats")),
    case("statistics/unknown_version", get("/v2/models/add_sub/versions/4/stats")),
    case("statistics/huge_version", get("/v2/models/add_sub/versions/99999999999999999999/stats")),
    case("statistics/post", post("/v2/models/add_sub/stats", "{}")),
    case("statistics/all_put", send("PUT", "/v2/models/stats", "{}")),
    case("statistics/all_head", send("HEAD", "/v2/models/stats")),
)  # fmt: skip

"""The classification extension."""

from ..request import Case, Exchange, case, infer, tensor

_SCORES = [3, -1, 10, 10, 4]


def _classes(output: str, count: object, scores: list[int] | None = None, **parameters: object) -> Exchange:
    return infer("scores", {
        "inputs": [tensor("SCORES", "INT32", [5], scores or [3, -1, 10, 7, 4])],
        "outputs": [{"name": output, "parameters": {"classification": count, **parameters}}],
    })  # fmt: skip


def _batch(output: str, count: int, batch: int = 2) -> Exchange:
    return infer("scores_batch", {
        "inputs": [tensor("SCORES", "INT32", [batch, 2, 3], [(7 * i) % 13 for i in range(6 * batch)])],
        "outputs": [{"name": output, "parameters": {"classification": count}}],
    })  # fmt: skip


CASES: tuple[Case, ...] = (
    case("classes/one", _classes("F32", 1)),
    case("classes/all", _classes("F32", 5)),
    case("classes/more_than_elements", _classes("F32", 9)),
    case("classes/zero", _classes("F32", 0)),
    case("classes/negative", _classes("F32", -1)),
    case("classes/text", _classes("F32", "2")),
    case("classes/float", _classes("F32", 1.5)),
    case("classes/no_labels", _classes("F64", 3)),
    case("classes/int8", _classes("I8", 3)),
    case("classes/int64", _classes("I64", 3)),
    case("classes/uint8", _classes("U8", 3)),
    case("classes/fp16", _classes("F16", 3)),
    case("classes/bool", _classes("TRUTH", 3)),
    case("classes/strings", _classes("WORDS", 3), server="fragile"),
    case("classes/binary", _classes("F32", 2, binary_data=True)),
    case("classes/batch", _batch("F32", 2)),
    case("classes/batch_all", _batch("I64", 6, 1)),
    case("classes/beside_plain", infer("scores", {
        "inputs": [tensor("SCORES", "INT32", [5], [1, 2, 3, 4, 5])],
        "outputs": [{"name": "F32", "parameters": {"classification": 1}}, {"name": "I64"}],
    })),
    case("classes/unknown_output", _classes("NOSUCH", 1)),
)  # fmt: skip

"""Sequence batching: slots and batches, controls of each kind and type, what begins and ends a sequence, statistics.

Where a case sends sequences at once, its model waits until so many are there; what shares a batch is then sure, and
which client has which slot is not compared. Every case ends the sequences that it begins.
"""

# ruff: noqa: E501 - a case reads best on one line

import json
import struct
from dataclasses import replace
from itertools import count
from typing import Any

from ..messages import infer_request, stream
from ..messages import tensor as grpc_tensor
from ..request import Case, Concurrent, Exchange, Rpc, case, infer, post, tensor
from ..sequence_models import CONTROL_VALUES, ID_TYPES

# No two cases share a sequence.
_IDS = count(1001)
START, END = {"sequence_start": True}, {"sequence_end": True}
BOTH = {**START, **END}


def ask(
    model: str,
    sequence: object,
    more: dict[str, object] | None = None,
    value: int = 1,
    width: int = 1,
    rows: int | None = None,
    **fields: Any,
) -> Exchange:
    """One request of a sequence to ``seq_<model>``."""
    shape = [width] if model.endswith("single") else [1 if rows is None else rows, width]
    data = [value] * (shape[0] * width if len(shape) > 1 else width)
    given: dict[str, object] = {"sequence_id": sequence, **(more or {})}
    return infer(f"seq_{model}", {"inputs": [tensor("IN", "INT32", shape, data)], "parameters": given, **fields})


def life(model: str, steps: int = 3, sequence: object = None) -> tuple[Exchange, ...]:
    """A whole sequence."""
    which = next(_IDS) if sequence is None else sequence
    return (ask(model, which, START), *(ask(model, which) for _ in range(steps - 2)), ask(model, which, END))


def together(model: str, sequences: list[int], more: dict[str, object] | None = None, **how: Any) -> Concurrent:
    return Concurrent(tuple(ask(model, sequence, more, **how) for sequence in sequences))


def some(number: int) -> list[int]:
    return [next(_IDS) for _ in range(number)]


def message(
    model: str, sequence: object, more: dict[str, object] | None = None, width: int = 1, **fields: Any
) -> bytes:
    shape = [width] if model.endswith("single") else [1, width]
    return infer_request(
        f"seq_{model}",
        [grpc_tensor("IN", "INT32", shape)],
        [struct.pack("<i", 1) * width],
        given={"sequence_id": sequence, **(more or {})},
        **fields,
    )


def _begin_wrong(model: str) -> tuple[Case, ...]:
    name = model
    one = next(_IDS)
    return (
        case(
            f"sequences/{name}_no_id",
            infer(
                f"seq_{model}", {"inputs": [tensor("IN", "INT32", [1] if model.endswith("single") else [1, 1], [1])]}
            ),
            stats=f"seq_{model}",
        ),
        case(f"sequences/{name}_id_zero", ask(model, 0, START), stats=f"seq_{model}"),
        case(f"sequences/{name}_id_empty", ask(model, "", START)),
        case(f"sequences/{name}_not_started", ask(model, next(_IDS)), stats=f"seq_{model}"),
        case(f"sequences/{name}_not_started_end", ask(model, next(_IDS), END, id="q")),
        case(
            f"sequences/{name}_start_twice",
            ask(model, one, START),
            ask(model, one, START),
            ask(model, one),
            ask(model, one, END),
            stats=f"seq_{model}",
        ),
        case(f"sequences/{name}_end_twice", *life(model, 2, one), ask(model, one, END)),
        case(f"sequences/{name}_again_after_end", *life(model, 2, one), *life(model, 3, one)),
        case(f"sequences/{name}_of_one", ask(model, one, BOTH), ask(model, one), stats=f"seq_{model}"),
    )


_A, _B, _C, _D = some(4), some(4), some(4), some(4)
_S = some(40)


def _iterating(model: str) -> tuple[Case, ...]:
    """A request is a sequence by itself."""
    one, two = next(_IDS), next(_IDS)

    def free(value: int, **fields: Any) -> Exchange:
        return infer(f"seq_{model}", {"inputs": [tensor("IN", "INT32", [1, 1], [value])], **fields})

    return (
        case(f"sequences/{model}_once", free(1), stats=f"seq_{model}"),
        case(f"sequences/{model}_thrice", free(3, id="q"), free(2), stats=f"seq_{model}"),
        case(f"sequences/{model}_flags", free(2, parameters=BOTH)),
        case(f"sequences/{model}_id_zero", ask(model, 0, START, value=2)),
        case(f"sequences/{model}_id_empty", ask(model, "", value=2)),
        case(f"sequences/{model}_own_id", ask(model, one, START, value=3), ask(model, one, START, value=2)),
        case(f"sequences/{model}_own_id_not_started", ask(model, two), stats=f"seq_{model}"),
        case(f"sequences/{model}_own_id_goes_on", ask(model, one, START, value=2), ask(model, one, END)),
        case(f"sequences/{model}_rows", ask(model, one, START, rows=2)),
        case(f"sequences/{model}_model_error", free(-2), free(2)),
        case(f"sequences/{model}_model_error_at_first", free(-1), stats=f"seq_{model}"),
        case(f"sequences/{model}_generate", post(f"/v2/models/seq_{model}/generate", json.dumps({"IN": [2]}))),
        case(f"sequences/{model}_stream", stream(message(model, one, START, id="s"))),
    )


_CASES: tuple[Case, ...] = (
    # Lives of sequences
    *(
        case(f"sequences/{model}_life", *life(model, 4), stats=f"seq_{model}")
        for model in ("direct", "unset", "single", "one", "uncontrolled", "oldest", "oldest_single", "oldest_one", "oldest_unset", "delayed", "oldest_delayed")
    ),
    *(one for model in ("direct", "single", "oldest") for one in _begin_wrong(model)),
    *(case(f"sequences/{model}_rows", ask(model, _S[0], START, rows=2), ask(model, _S[0], START, rows=0), ask(model, _S[0], START, rows=5)) for model in ("direct", "oldest")),
    case("sequences/one_rows", ask("one", _S[1], START, rows=2)),
    case("sequences/ids_of_two_kinds", ask("uncontrolled", 77, START), ask("uncontrolled", "77"), ask("uncontrolled", "77", START), ask("uncontrolled", 77, END), ask("uncontrolled", "77", END)),
    *(
        case(f"sequences/id_{name}", *life("uncontrolled", 3, value))
        for name, value in {"one": 1, "32_bits": 2**32, "63_bits": 2**63 - 1, "large": 2**63, "largest": 2**64 - 1, "text": "abc", "text_zero": "0", "unicode": "grün", "long": "x" * 300, "blank": " "}.items()
    ),
    *(case(f"sequences/id_refused_{name}", ask("uncontrolled", value, START)) for name, value in {"negative": -1, "float": 1.5, "bool": True, "null": None, "too_large": 2**64, "list": [1]}.items()),
    *(case(f"sequences/flag_{name}", ask("uncontrolled", _S[2], {"sequence_start": value, "sequence_end": True})) for name, value in {"text": "true", "number": 1, "null": None}.items()),
    # Controls
    *(case(f"sequences/values_{kind}", *life(f"values_{kind}", 3), ask(f"values_{kind}", next(_IDS), BOTH)) for kind in CONTROL_VALUES),
    *(case(f"sequences/values_{kind}_empty_slot", ask(f"values_{kind}", a, START), ask(f"values_{kind}", b, START), ask(f"values_{kind}", b, END), ask(f"values_{kind}", a, END))
      for kind, a, b in ((kind, next(_IDS), next(_IDS)) for kind in CONTROL_VALUES)),
    *(case(f"sequences/only_{kind}", *life(f"only_{kind}", 3)) for kind in ("start", "end", "ready")),
    *(
        case(f"sequences/typed_{kind.lower()}_{name}", *life(f"id_{kind.lower()}", 2, value))
        for kind in ID_TYPES[:4]
        for name, value in {"small": 5, "above_31_bits": 2**31 + 1, "above_32_bits": 2**32 + 7, "largest": 2**64 - 1}.items()
    ),
    *(case(f"sequences/typed_string_{name}", *life("id_string", 2, value)) for name, value in {"short": "a", "unicode": "grün ☃", "long": "y" * 500, "digits": "12"}.items()),
    case("sequences/typed_string_empty_slot", ask("id_string", "a", START), ask("id_string", "b", START), ask("id_string", "b", END), ask("id_string", "a", END)),
    case("sequences/oldest_typed_string", *life("oldest_id_string", 3, "abc")),
    case("sequences/typed_string_given_number", ask("id_string", 7, START)),
    case("sequences/oldest_typed_string_given_number", ask("oldest_id_string", 7, START, id="q")),
    # Batches of the direct strategy
    case("sequences/full_batch", together("full", _A, START), together("full", _A), together("full", _A, END), stats="seq_full"),
    case("sequences/half_batch", together("half", _B[:2], START), together("half", _B[:2], END), stats="seq_half"),
    case("sequences/delay_over", ask("delayed", _C[0], START), ask("delayed", _C[1], START), ask("delayed", _C[1]), ask("delayed", _C[0], END), ask("delayed", _C[1], END), stats="seq_delayed",
         note="slot 0 is empty when the second goes on"),
    case("sequences/slots_in_order", ask("direct", _S[3], START), ask("direct", _S[4], START), ask("direct", _S[5], START), ask("direct", _S[6], START),
         ask("direct", _S[6]), ask("direct", _S[5]), ask("direct", _S[4]), ask("direct", _S[3]), ask("direct", _S[4], END),
         ask("direct", _S[7], START), ask("direct", _S[7], END), ask("direct", _S[3], END), ask("direct", _S[5], END), ask("direct", _S[6], END), stats="seq_direct",
         note="the lowest slot that is free is taken"),
    case("sequences/empty_slots_shapes", ask("direct", _S[8], START), ask("direct", _S[9], START, width=3), ask("direct", _S[9], END, width=5), ask("direct", _S[8], END)),
    case("sequences/two_shapes", stream(message("delayed", _S[10], START), message("delayed", _S[11], START, width=2)), ask("delayed", _S[10], END), ask("delayed", _S[11], END), stats="seq_delayed"),
    # Batches of the oldest strategy
    case("sequences/oldest_full_batch", together("oldest_full", _D, START), together("oldest_full", _D), together("oldest_full", _D, END), stats="seq_oldest_full"),
    case("sequences/oldest_pairs", together("oldest_pairs", _S[12:14], START), together("oldest_pairs", _S[12:14], END), stats="seq_oldest_pairs"),
    case("sequences/oldest_shares_no_shape", Concurrent((ask("oldest_delayed", _S[14], START), ask("oldest_delayed", _S[15], START, width=2))), ask("oldest_delayed", _S[14], END), ask("oldest_delayed", _S[15], END)),
    # A client's words for when and how soon mean nothing to a sequence that has its slot
    *(
        case(f"sequences/{model}_{name}", ask(model, a, {**START, **more}), ask(model, a, more), ask(model, a, END), stats=f"seq_{model}")
        for model, name, more, a in (
            ("direct", "timeout", {"timeout": 1}, next(_IDS)),
            ("oldest", "timeout", {"timeout": 1}, next(_IDS)),
            ("direct", "priority", {"priority": 3}, next(_IDS)),
            ("oldest", "priority", {"priority": 3}, next(_IDS)),
        )
    ),
    # All slots taken
    *(
        case(f"sequences/{model}_slots_exhausted", *(ask(model, one, START) for one in some_), ask(model, late, {**START, "timeout": 50_000}, id="late"), ask(model, late, END), *(ask(model, one, END) for one in some_), *life(model, 2, late), stats=f"seq_{model}")
        for model, some_, late in (("direct", some(4), next(_IDS)), ("oldest", some(4), next(_IDS)), ("oldest_unset", some(4), next(_IDS)))
    ),
    # The backlog
    *(
        case(f"sequences/{model}_backlog_expires", ask(model, a, START), ask(model, b, {**START, "timeout": 100_000}), ask(model, a, END), ask(model, b), stats=f"seq_{model}")
        for model, a, b in (("one", _S[16], _S[17]), ("single", _S[18], _S[19]), ("oldest_one", _S[20], _S[21]))
    ),
    *(
        case(f"sequences/{model}_backlog", ask(model, a, START), Concurrent((ask(model, a, END), ask(model, b, BOTH))), stats=f"seq_{model}")
        for model, a, b in (("one", _S[22], _S[23]), ("single", _S[24], _S[25]), ("oldest_one", _S[26], _S[27]))
    ),
    # Idle for too long: the one that waits for the slot gets it only then
    *(
        case(f"sequences/{model}_evicted", ask(model, a, START), ask(model, b, BOTH), ask(model, a), ask(model, a, END, id="q"), stats=f"seq_{model}")
        for model, a, b in (("idle", _S[28], _S[29]), ("oldest_idle", _S[30], _S[31]))
    ),
    # ... while its request executes: that is answered, and the next one is none of a sequence
    *(
        case(f"sequences/{model}_evicted_in_mid_request", ask(model, a, START, value=900), ask(model, a), *life(model, 2, a), stats=f"seq_{model}")
        for model, a in (("idle", next(_IDS)), ("oldest_idle", next(_IDS)))
    ),
    *(one for model in ("iterating", "iterating_oldest") for one in _iterating(model)),
    # An id of another type than the control's
    *(case(f"sequences/typed_{kind.lower()}_given_text", ask(f"id_{kind.lower()}", "abc", BOTH)) for kind in ID_TYPES[:4]),
    # A model's error ends no sequence
    *(case(f"sequences/{model}_model_error", ask(model, a, START), ask(model, a, value=-1), ask(model, a, END), stats=f"seq_{model}")
      for model, a in (("direct", _S[32]), ("oldest", _S[33]))),
    # Not a request of the model's
    case("sequences/control_given", infer("seq_direct", {"inputs": [tensor("IN", "INT32", [1, 1], [1]), tensor("START", "INT32", [1, 1], [1])], "parameters": {"sequence_id": 5, **BOTH}})),
    case("sequences/generate", post("/v2/models/seq_direct/generate", json.dumps({"IN": [1], "sequence_id": 5, **BOTH}))),
    case("sequences/generate_not_started", post("/v2/models/seq_direct/generate", json.dumps({"IN": [1], "sequence_id": 5}))),
    # gRPC
    *(case(f"sequences/stream_{model}", stream(message(model, 50, START), message(model, 50), message(model, 50, END, id="last")), stats=f"seq_{model}")
      for model in ("direct", "single", "oldest", "oldest_one")),
    case("sequences/stream_text", stream(message("id_string", "abc", START), message("id_string", "abc", END))),
    case("sequences/stream_wrong_among", stream(message("one", 51, START), message("one", 52, id="q"), message("one", 51, END))),
    case("sequences/stream_full", stream(*(message("full", number, START) for number in range(1, 5)), *(message("full", number, END) for number in range(1, 5))), stats="seq_full"),
    case("sequences/stream_two_in_one_slot", stream(message("oldest_one", 53, START), message("oldest_one", 54, START), message("oldest_one", 53), message("oldest_one", 53, END), message("oldest_one", 54, END)), stats="seq_oldest_one",
         note="the second sequence waits for the end of the first"),
    case("sequences/stream_start_twice", stream(message("one", 55, START), message("one", 55, START), message("one", 55, END))),
    case("sequences/stream_after_end", stream(message("one", 56, START), message("one", 56, END), message("one", 56))),
    case("sequences/stream_backlog_start_twice", stream(message("one", 57, START), message("one", 58, START), message("one", 58, START), message("one", 57, END), message("one", 58, END)), stats="seq_one"),
    case("sequences/stream_backlog_again", stream(message("one", 59, START), message("one", 60, BOTH), message("one", 60, BOTH), message("one", 59, END)), stats="seq_one",
         note="two sequences of one id that wait"),
    case("sequences/stream_backlog_after_end", stream(message("oldest_one", 61, START), message("oldest_one", 62, BOTH), message("oldest_one", 62), message("oldest_one", 61, END))),
    case("sequences/stream_backlog_order", stream(message("one", 63, START), message("one", 65, BOTH), message("one", 64, BOTH), message("one", 63, END)), stats="seq_one"),
    case("sequences/stream_backlog_timeout", stream(message("one", 66, START), message("one", 67, {**START, "timeout": 50_000}))),
    case("sequences/stream_backlog_timeout_over", ask("one", 67), ask("one", 66, END)),
    case("sequences/stream_negative", stream(message("uncontrolled", -5, BOTH))),
)  # fmt: skip


def _starts(model: str, numbers: list[int], *more: bytes) -> Rpc:
    return stream(*(message(model, number, START) for number in numbers), *more)


def _ends(model: str, numbers: list[int]) -> Rpc:
    return stream(*(message(model, number, END) for number in numbers), one_by_one=True)


def _held(name: str, model: str, *steps: Exchange | Rpc, server: str = "held") -> Case:
    return case(f"sequences/{server}_{name}", *steps, server=server, stats=f"seq_{model}")


# Batches of what TRITONSERVER_DELAY_SCHEDULER and TRITONSERVER_BACKLOG_DELAY_SCHEDULER keep back, once after a load
_HELD: tuple[Case, ...] = (
    _held("three", "direct_0", _starts("direct_0", [1, 2, 3]), _ends("direct_0", [1, 2, 3])),
    _held("four", "direct_1", _starts("direct_1", [1, 2, 3, 4]), _ends("direct_1", [1, 2, 3, 4])),
    _held("of_one_sequence", "direct_2", _starts("direct_2", [1], message("direct_2", 1), message("direct_2", 1, END))),
    _held("only_once", "direct_3", _starts("direct_3", [1, 2, 3]), _ends("direct_3", [1, 2, 3]), *life("direct_3", 2, 4)),
    _held("oldest_three", "oldest_0", _starts("oldest_0", [1, 2, 3]), _ends("oldest_0", [1, 2, 3])),
    _held("oldest_only_once", "oldest_1", _starts("oldest_1", [1, 2, 3]), _ends("oldest_1", [1, 2, 3]), *life("oldest_1", 2, 4)),
    _held("dynamic_three", "dynamic", stream(*(message("dynamic", number) for number in (1, 2, 3))), ask("dynamic", 4)),
    _held("ends", "pair_1", stream(*(message("pair_1", number, BOTH) for number in (1, 2, 3, 4))), server="held_backlog"),
    _held("one_goes_on", "pair_0", stream(*(message("pair_0", number, START) for number in (1, 2)), message("pair_0", 3, BOTH), message("pair_0", 4, BOTH), message("pair_0", 1, END), message("pair_0", 2, END)), server="held_backlog"),
    _held("begins", "pair_0", *life("pair_0", 2, 1), server="backlog_alone"),
    _held("oldest_begins", "two_candidates", *life("two_candidates", 2, 1), server="backlog_alone"),
)  # fmt: skip

CASES: tuple[Case, ...] = (*(replace(one, server="sequences") for one in _CASES), *_HELD)

"""Implicit state of Python models: what a sequence begins with, and what clients see of it.

Triton's Python backend is given the initial state with each request and keeps nothing that the model answers: what
comes after the first request differs.
"""

from dataclasses import replace

from ..request import Case, Exchange, case, get, infer, tensor


def _step(model: str, sequence: int, flag: str = "", **more: object) -> Exchange:
    parameters = {"sequence_id": sequence, **{f"sequence_{name}": True for name in flag.split()}}
    shape = [1] if model == "single" else [1, 1]
    body = {"inputs": [tensor("IN", "INT32", shape, [7])], "parameters": parameters, **more}
    return infer(f"state_{model}", body)


_KINDS = ("zero", "file", "oldest", "single")
_BOTH = "start end"
_CASES: tuple[Case, ...] = (
    *(case(f"states/first_{kind}", _step(kind, 1, _BOTH), _step(kind, 1, _BOTH)) for kind in _KINDS),
    case("states/variable", _step("variable", 1, _BOTH)),
    *(case(f"states/next_{kind}", _step(kind, 2, "start"), _step(kind, 2, "end")) for kind in _KINDS),
    *(case(f"states/metadata_{kind}", get(f"/v2/models/state_{kind}")) for kind in ("zero", "asked")),
    *(case(f"states/config_{kind}", get(f"/v2/models/state_{kind}/config")) for kind in ("zero", "file")),
    case("states/asked", _step("asked", 3, _BOTH)),
    case("states/asked_alone", _step("asked", 3, _BOTH, outputs=[{"name": "NEW"}])),
    case("states/hidden", _step("zero", 4, _BOTH, outputs=[{"name": "NEW"}])),
    case(
        "states/given",
        infer(
            "state_zero",
            {
                "inputs": [tensor("IN", "INT32", [1, 1], [1]), tensor("STATE", "INT32", [1, 1], [1])],
                "parameters": {"sequence_id": 5, "sequence_start": True, "sequence_end": True},
            },
        ),
    ),
)

CASES: tuple[Case, ...] = tuple(replace(one, server="sequences") for one in _CASES)

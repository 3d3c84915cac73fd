"""The rate limiter: which models are refused when they are loaded, and that those which are not do execute."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

from ..cache_models import NAMES
from ..request import Case, Concurrent, Exchange, case, infer, post, tensor

SERVERS = ("limited", "limited_given", "limited_elsewhere", "limits_off")


def load(model: str) -> Exchange:
    return post(f"/v2/repository/models/{model}/load")


def unload(model: str) -> Exchange:
    return post(f"/v2/repository/models/{model}/unload")


def ask(model: str, value: float = 1.0) -> Exchange:
    shape = [1, 1] if model == "batches_limited" else [1]
    return infer(model, {"inputs": [tensor("IN", "FP32", shape, [value])], "outputs": [{"name": "OUT"}]})


CASES: tuple[Case, ...] = tuple(
    one
    for server in SERVERS
    for one in (
        *(case(f"limits/{server}_{model}", load(model), ask(model), unload(model), server=server) for model in NAMES),
        case(f"limits/{server}_both_kinds", load("takes_four"), load("shares"), ask("takes_four"), unload("takes_four"), unload("shares"), server=server),
        case(f"limits/{server}_other_order", load("shares"), load("takes_four"), ask("shares"), unload("takes_four"), unload("shares"), server=server),
        case(
            f"limits/{server}_together",
            *(load(model) for model in ("takes_four", "takes_four_too", "takes_nothing")),
            Concurrent(tuple(ask(model) for model in ("takes_four", "takes_four_too", "takes_nothing") for _ in range(4))),
            *(unload(model) for model in ("takes_four", "takes_four_too", "takes_nothing")),
            server=server,
        ),
    )
)  # fmt: skip

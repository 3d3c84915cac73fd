"""Loading and unloading ensembles and what they are made of, and what keeps one from being loaded."""

# ruff: noqa: E501 - a case reads best on one line

from __future__ import annotations

from typing import Any

from ..ensemble_models import BROKEN
from ..request import Case, Exchange, case, evaluate, get, infer, post, tensor

_INDEX = post("/v2/repository/index")
_CHAIN = infer("chain", {"inputs": [tensor("IN", "FP32", [4], [1, 2, 3, 4])]})
_NESTED = infer("nested", {"inputs": [tensor("IN", "FP32", [4], [1, 2, 3, 4])]})


def _load(model: str) -> Exchange:
    return post(f"/v2/repository/models/{model}/load")


def _unload(model: str, dependents: bool = False) -> Exchange:
    return post(
        f"/v2/repository/models/{model}/unload", '{"parameters":{"unload_dependents":true}}' if dependents else ""
    )


def _ready(model: str) -> Exchange:
    """Its metadata: what is not ready has none."""
    return get(f"/v2/models/{model}")


def _case(name: str, *steps: Any, pick: str = "") -> Case:
    return case(f"ensemble_loads/{name}", *steps, pick=pick, server="ensemble_control")


CASES: tuple[Case, ...] = (
    *(case(f"ensemble_loads/start_{model.name}", _ready(model.name), server="ensembles_broken") for model in BROKEN),
    *(case(f"ensemble_loads/load_{model.name}", _load(model.name), _ready(model.name), server="ensembles_refused") for model in BROKEN),
    _case("load_brings_members", _load("chain"), _ready("chain"), _ready("plus_one"), _CHAIN),
    _case("load_brings_nested", _unload("chain"), _unload("plus_one"), _load("nested"), _ready("nested"), _ready("chain"), _ready("plus_one"), _NESTED),
    _case("index_of_member", _INDEX, pick="plus_one"),
    _case("load_again", _load("nested"), _ready("nested"), _NESTED),
    _case("member_unloaded", _load("nested"), _unload("plus_one"), _ready("chain"), _ready("nested"), _CHAIN, _NESTED),
    _case("index_after_member_unloaded", _INDEX, pick="chain"),
    _case("index_of_nested_after_member_unloaded", _INDEX, pick="nested"),
    _case("member_loaded_again", _load("plus_one"), _ready("chain"), _ready("nested"), _CHAIN, _INDEX, pick="chain"),
    _case("ensemble_unloaded", _load("nested"), _unload("nested"), _ready("nested"), _ready("chain"), _ready("plus_one")),
    _case("dependents_unloaded", _load("plus_one"), _load("nested"), _unload("nested", True), _ready("nested"), _ready("chain"), _ready("plus_one")),
    _case("dependents_unloaded_alone", _unload("nested"), _unload("chain"), _unload("plus_one"), _load("nested"), _unload("nested", True),
          _ready("nested"), _ready("chain"), _ready("plus_one")),
    _case("dependents_shared", _load("diamond"), _load("two_ends"), _unload("diamond", True), _ready("two_ends"), _ready("both"), _ready("plus_one")),
    _case("dependents_of_the_last", _unload("two_ends", True), _ready("both")),
    _case("member_explicit_stays", _load("scores"), _load("classes_own"), _unload("classes_own", True), _ready("scores")),
    _case("member_unloaded_dependents", _load("classes_own"), _unload("scores", True), _ready("classes_own"), _ready("scores")),
    _case("dependents_of_a_model", _load("maybe"), _unload("maybe", True), _ready("maybe")),
    _case("by_a_model", _load("evaluate"), evaluate("pb_utils.load_model('optional')"), _ready("optional"), _ready("maybe"),
          evaluate("pb_utils.unload_model('optional', unload_dependents=True)"), _ready("optional"), _ready("maybe")),
    _case("unload_by_a_model", _load("optional"), evaluate("pb_utils.unload_model('optional')"), _ready("maybe")),
)  # fmt: skip

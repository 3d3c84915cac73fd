"""What a trained model takes: its columns with their types, as far as the model itself remembers them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

# More columns of numbers than these become one input
_MOST_COLUMNS = 64


def inputs_of(model: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the columns of a table: None, or for pandas' categories which there are, empty for all; the inputs)."""
    names = _names(model)
    examples, categories = _examples(model)
    distinct = len(set(names)) == len(names) and all(names)
    if names and distinct and (len(names) <= _MOST_COLUMNS or _has_text(examples, categories)):
        inputs = []
        for name in names:
            known = examples.get(name, 0.0)
            example = known if isinstance(known, str) else float(known)
            inputs.append(input_of(name, "BYTES" if isinstance(example, str) else "FP64", [1], example))
        return {name: categories.get(name) for name in names}, inputs
    if any(hasattr(part, "build_analyzer") for part in list(parts_of(model))[:3]) and not hasattr(
        model, "n_features_in_"
    ):
        return {}, [input_of("TEXT", "BYTES", [1], "a text")]
    width = _width(model) or len(names)
    return dict.fromkeys(names), [input_of("X", "FP64", [width or -1], [0.0] * (width or 1))]


def input_of(name: str, datatype: str, dims: list[int], example: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "dims": dims, "example": example}


def _names(model: Any) -> list[str]:
    """The columns' names, if the model was trained with a table."""
    for name in ("feature_names_in_", "feature_names", "feature_names_"):
        found = getattr(model, name, None)
        if found is not None and not callable(found) and len(found) and all(isinstance(one, str) for one in found):
            return list(found)
    if callable(getattr(model, "feature_name", None)):  # lightgbm.Booster, which makes names up
        found = model.feature_name()
        return [] if all(re.fullmatch(r"Column_\d+", one) for one in found) else list(found)
    return []


def _width(model: Any) -> int:
    for name in ("n_features_in_", "num_features", "num_feature"):
        found = getattr(model, name, None)
        if found is not None:
            return int(found() if callable(found) else found)
    return 0


def parts_of(model: Any) -> Iterator[Any]:
    """The model and everything in it that looks like a part of a model: steps of pipelines, encoders, forests."""
    seen: set[int] = set()
    waiting = [model]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen or isinstance(one, (str, bytes, int, float, np.ndarray, type)) or one is None:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif hasattr(one, "get_params") or hasattr(one, "num_boosted_rounds") or hasattr(one, "pandas_categorical"):
            yield one
            waiting.extend(getattr(one, "__dict__", {}).values())


def _has_text(examples: dict[str, Any], categories: dict[str, list[Any]]) -> bool:
    return bool(categories) or any(isinstance(one, str) for one in examples.values())


def _examples(model: Any) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(columns with values that the model knows, columns that have to be given as pandas' categories)."""
    examples: dict[str, Any] = {}
    categories: dict[str, list[Any]] = {}
    for part in parts_of(model):
        names = getattr(part, "feature_names_in_", ())
        # scikit-learn's encoders and imputers, and in a pipeline what follows them without names
        steps = [step for _, step in part.steps] if hasattr(part, "steps") else [part]
        for step in steps:
            for values in (getattr(step, "categories_", None), getattr(step, "statistics_", None)):
                if values is None or len(values) != len(names):
                    continue
                for name, known in zip(names, values, strict=True):
                    found = [one for one in np.atleast_1d(known).tolist() if isinstance(one, (str, int, float))]
                    if found and name not in examples:
                        examples[name] = found[0]
        # A transformer of one column by its name, not of a list of columns, gets texts.
        for _, transformer, column in getattr(part, "transformers_", ()):
            if isinstance(column, str) and any(hasattr(one, "build_analyzer") for one in parts_of(transformer)):
                examples.setdefault(column, "a text")
        if hasattr(part, "num_boosted_rounds"):
            for name, known in _of_xgboost(part).items():
                examples[name], categories[name] = known, []  # it compares the values itself
        if getattr(part, "pandas_categorical", None) and hasattr(part, "dump_model"):
            infos = part.dump_model()["feature_infos"]
            categorical = [name for name in part.feature_name() if infos.get(name, {}).get("values")]
            if len(categorical) == len(part.pandas_categorical):
                for name, values in zip(categorical, part.pandas_categorical, strict=True):
                    examples[name], categories[name] = values[0], values
    return examples, categories


def _of_xgboost(booster: Any) -> dict[str, Any]:
    """A category of each column of categories, by the column's name, of a model of xgboost 3.1 and later."""
    names, kinds = booster.feature_names or (), booster.feature_types or ()
    if "c" not in kinds:
        return {}
    part = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    stored = part.get("model", part.get("gbtree", {}).get("model", {})).get("cats", {}).get("enc", [])
    found: dict[str, Any] = {}
    for name, values in zip(names, stored, strict=False):
        ends = values.get("offsets") or [0, 0]
        if ends[1]:
            found[name] = bytes(value % 256 for value in values["values"][: ends[1]]).decode()
        elif values["values"]:
            found[name] = values["values"][0]
    return found

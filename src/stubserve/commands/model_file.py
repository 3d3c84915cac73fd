"""What a model's file takes and gives, as JSON: `python -m stubserve.commands.model_file FILE`, for `stubserve init`.

A process of its own, because a pickle is a program, and its packages print, warn and crash as they like. The model is
asked about one row, whose answer becomes the test of the new folder.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import mmap
import os
import pickle
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from stubserve_stub.backends.cards import all_cards
from stubserve_stub.wire.datatypes import BY_NAME, BY_NUMBER

from stubserve.commands.model_columns import input_of, inputs_of, parts_of

# Endings -> what loads such a file, which decides about the new folder's model.py
KINDS = {
    ".pkl": "pickle", ".pickle": "pickle", ".joblib": "joblib", ".json": "xgboost", ".ubj": "xgboost",
    ".txt": "lightgbm", ".onnx": "onnx",
}  # fmt: skip
# joblib writes arrays into its pickles, which only joblib reads, and compresses them
_JOBLIB = (b"joblib.numpy_pickle", b"numpy_pickle")
_COMPRESSED = (b"\x1f\x8b", b"x\x9c", b"x\x01", b"x\xda", b"BZh", b"\xfd7zXZ", b"\x04\x22\x4d\x18")
# Where the name to install is another than the name to import
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "cv2": "opencv-python-headless", "PIL": "pillow", "yaml": "pyyaml"}


class CannotLook(Exception):
    """The file does not say what it takes; the text says why, and what to do."""


def look(path: Path) -> dict[str, Any]:
    """`kind`, `what` it is, `inputs`, `outputs` and the rest that the templates need. Raises CannotLook."""
    kind = KINDS[path.suffix.lower()]
    if kind == "pickle" and _is_joblib(path):
        kind = "joblib"
    if kind == "onnx":
        return {"kind": kind, "what": "ONNX", **_of_network(path)}
    model, wrapper = _load(path, kind)
    found = _of_model(model)
    classes = [one for part in (model, *parts_of(model)) for one in type(part).__mro__]
    modules = {"numpy", *(["pandas"] if found["columns"] else []), *([kind] if kind != "pickle" else [])}
    packages = _packages(modules | {one.__module__.partition(".")[0] for one in classes})
    made_by = packages.get(_distribution(type(model).__module__.partition(".")[0]), "").replace("==", " ")
    what = type(model).__name__ + (f" of {made_by}" if made_by else "")
    threads = _threads(model) if kind in ("pickle", "joblib") else []
    about = {"kind": kind, "what": what, "wrapper": wrapper, "threads": threads}
    return {**about, "requirements": [*packages.values()], **found}


def _is_joblib(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.read(6).startswith(_COMPRESSED):
            return True
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in _JOBLIB)


def _load(path: Path, kind: str) -> tuple[Any, str]:
    """The model, and the class of xgboost that a file of it is for."""
    try:
        if kind == "pickle":
            with open(path, "rb") as file:
                return pickle.load(file), ""
        package = importlib.import_module(kind)
        if kind == "joblib":
            return package.load(path), ""
        if kind == "lightgbm":
            return package.Booster(model_file=path), "Booster"
        booster = package.Booster(model_file=path)
        # The class that it was saved from: it knows its classes, and which trees are the best
        role = json.loads(booster.attr("scikit_learn") or "{}").get("_estimator_type", "")
        wrapper = {"classifier": "XGBClassifier", "regressor": "XGBRegressor", "ranker": "XGBRanker"}.get(role)
        if wrapper is None:
            return booster, "Booster"
        model = getattr(package, wrapper)()
        model.load_model(path)
        return model, wrapper
    except ImportError as error:
        raise CannotLook(_lacks(error)) from None
    except Exception as error:
        text = f"it cannot be loaded: {type(error).__name__}: {_head(error)}"
        if "<module '__main__'" in text or "module 'stubserve.commands.model_file'" in text:
            text += (
                ". A pickle has the names of its classes and functions, not their code, and this one is from the "
                "notebook or script that wrote the file. Move it into a module, import it from there, and write the "
                "file again."
            )
        raise CannotLook(text) from None


def _lacks(error: ImportError) -> str:
    name = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != name:
        version = f" It may have been made with another version of {_distribution(name)}." if name else ""
        return f"it cannot be loaded: {type(error).__name__}: {_head(error)}.{version}"
    return (
        f"it needs the module '{name}', which {sys.executable} does not have. Install it, in the version that the file "
        f"was made with: {sys.executable} -m pip install {_distribution(name)}. For a module of your own say where it "
        "lies (PYTHONPATH=FOLDER stubserve init ...), and copy it into the new folder's 1/."
    )


def _head(error: BaseException) -> str:
    """The first line of an error's text. Of xgboost's it leaves out the time and the place in its source."""
    lines = str(error).strip().splitlines() or [""]
    return re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", lines[0])[:500]


def _distribution(module: str) -> str:
    return _DISTRIBUTIONS.get(module, module)


def _packages(modules: set[str]) -> dict[str, str]:
    """The packages of these modules, without those that others of them bring: name -> `name==version`."""
    of_module = importlib.metadata.packages_distributions()
    names = {name for module in modules for name in of_module.get(module, ()) if name != "stubserve"}
    brought: set[str] = set()
    for name in names:
        for line in importlib.metadata.requires(name) or ():
            if "extra ==" not in line and (match := re.match(r"[\w.-]+", line)):
                brought.add(_canonical(match[0]))
    kept = sorted(name for name in names if _canonical(name) not in brought or name == "numpy")
    return {name: f"{name}=={importlib.metadata.version(name)}" for name in kept}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _threads(model: Any) -> list[str]:
    """Settings of the model that would start threads for each request."""
    try:
        settings = model.get_params()
    except Exception:
        return []
    return [
        name
        for name, value in settings.items()
        if name.endswith("n_jobs") and isinstance(value, int) and value != 1 and name.isidentifier()
    ]


# What a model takes


def _of_model(model: Any) -> dict[str, Any]:
    if not (callable(model) or hasattr(model, "predict") or hasattr(model, "transform")):
        raise CannotLook(f"it is a {_named(model)}, which has no `predict`, and cannot be called")
    columns, inputs = inputs_of(model)
    try:
        rows = _rows(columns, inputs)
        outputs = dict(_outputs_of(model, rows))
    except CannotLook:
        raise
    except Exception as error:
        example = json.dumps({one["name"]: one["example"] for one in inputs}, ensure_ascii=False)
        example = example if len(example) < 300 else f"{example[:300]} ..."
        raise CannotLook(
            f"the {_named(model)} does not take the row {example}, which was made by what it says of its inputs: "
            f"{type(error).__name__}: {_head(error)}. `stubserve init NAME` without --from writes a folder where you "
            "say in config.pbtxt and model.py what it takes."
        ) from None
    told = getattr(model, "classes_", None)
    classes = [str(one) for one in told] if isinstance(told, np.ndarray) and told.ndim == 1 else []
    return {"columns": columns, "inputs": inputs, "outputs": outputs, "classes": classes, "batched": True}


def _named(model: Any) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


# What it answers


def _rows(columns: dict[str, Any], inputs: list[dict[str, Any]]) -> Any:
    """One row, as model.py of the new folder makes it."""
    if inputs[0]["name"] == "TEXT" and not columns:
        return [inputs[0]["example"]]
    if len(inputs) == 1 and inputs[0]["name"] == "X" and list(columns) != ["X"]:
        array = np.array([inputs[0]["example"]])
        return _pandas().DataFrame(array, columns=list(columns)) if columns else array
    pandas = _pandas()
    values = {}
    for one in inputs:
        known = columns[one["name"]]
        plain = [one["example"]]
        values[one["name"]] = plain if known is None else pandas.Categorical(plain, known or None)
    return pandas.DataFrame(values)


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise CannotLook(f"it was trained with a table. {_lacks(error)}") from None


def _outputs_of(model: Any, rows: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, what model.py says to get it, its type and length, its value for the row)."""
    if hasattr(model, "num_boosted_rounds"):
        matrix = importlib.import_module("xgboost").DMatrix(rows)
        yield "Y", _output("self.model.predict(xgboost.DMatrix(rows))", model.predict(matrix))
        return
    method = next((name for name in ("predict", "transform") if hasattr(model, name)), "")
    said = getattr(model, method)(rows) if method else model(rows)
    first = _output(f"self.model.{method}(rows)" if method else "self.model(rows)", said)
    if not hasattr(model, "classes_") or method != "predict":
        yield "Y", first
        return
    yield "LABEL", first
    if hasattr(model, "predict_proba"):
        likely = model.predict_proba(rows)
        if isinstance(likely, np.ndarray) and likely.ndim == 2:
            yield "PROBABILITY", _output("self.model.predict_proba(rows)", likely)


def _output(code: str, value: Any) -> dict[str, Any]:
    if hasattr(value, "toarray"):
        code, value = f"{code}.toarray()", value.toarray()
    array = np.asarray(value)
    if array.ndim == 0 or len(array) != 1:
        raise CannotLook(f"`{code}` gave an array of shape {list(array.shape)} for one row, and not a row")
    array = array.reshape(1, -1)
    if array.dtype.kind in "OUS":
        return {"code": code, "datatype": "BYTES", "dims": [array.size], "value": [str(one) for one in array[0]]}
    for kind in BY_NAME.values():
        if kind.numpy == array.dtype:
            return {"code": code, "datatype": kind.name, "dims": [array.size], "value": array[0].tolist()}
    raise CannotLook(f"`{code}` gives {array.dtype}, which no tensor can have")


def _of_network(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    cards = [card for card in all_cards() if card.opens_file and any(one.name.endswith(suffix) for one in card.files)]
    if not cards:
        raise CannotLook(f"no backend is installed that opens {suffix} files")
    try:
        contract, run = pkgutil.resolve_name(cards[0].opens_file)(str(path))
    except ImportError as error:
        raise CannotLook(_lacks(error)) from None
    except Exception as error:
        raise CannotLook(f"it cannot be served: {_head(error)}") from None
    tensors = [*contract.inputs.values(), *contract.outputs.values()]
    batched = all(one.dims and one.dims[0] == -1 for one in tensors)
    inputs, values = [], {}
    for name, one in contract.inputs.items():
        kind = BY_NUMBER[one.datatype]
        shape = [size if size > 0 else 1 for size in one.dims]
        text = kind.name == "BYTES"
        array = np.full(shape, "a text", object) if text else np.zeros(shape, kind.numpy)
        values[name] = array
        example = (array[0] if batched else array).tolist()
        dims = list(one.dims[1:] if batched else one.dims)
        inputs.append(input_of(name, kind.name, dims, example[0] if batched and dims == [1] else example))
    try:
        answers = run(values)
    except Exception as error:
        raise CannotLook(f"{cards[0].name} does not run it with zeros: {_head(error)}") from None
    outputs = {}
    for (name, one), answer in zip(contract.outputs.items(), answers, strict=True):
        dims = list(one.dims[1:] if batched else one.dims)
        value = answer[0] if batched and len(answer) == 1 else answer
        outputs[name] = {"datatype": BY_NUMBER[one.datatype].name, "dims": dims, "value": np.asarray(value).tolist()}
    return {"inputs": inputs, "outputs": outputs, "batched": batched, "columns": {}, "classes": [], "requirements": []}


def main() -> None:
    # What the model prints is for people; only the findings go to the one who asked.
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        try:
            found = look(Path(sys.argv[1]))
        except CannotLook as error:
            found = {"error": str(error)}
        json.dump(found, answer)
    sys.stdout.flush()
    # Threads that a model has started do not keep it.
    os._exit(0)


if __name__ == "__main__":
    main()

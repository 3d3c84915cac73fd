"""A model's inputs, and words of a command line as tensors for it: `X='[1,2,3]'`, `TEXT=hello`, `IMAGE=@page.png`."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BY_NAME, shape_text

# The most elements in an example's value; the length of a dimension that may have any
_EXAMPLE_ELEMENTS = 12
_EXAMPLE_LENGTH = 3
DEFAULT_URL = "http://localhost:8000"
_NPY = b"\x93NUMPY"


class WrongInput(Exception):
    """A word that is no input of the model; the text says what the model expects."""


class ModelInput(NamedTuple):
    """An input of a model, from its metadata; `batched`: the first dimension of `shape` counts rows."""

    name: str
    datatype: str
    shape: list[int]
    batched: bool
    optional: bool

    def __str__(self) -> str:
        optional = ", optional" if self.optional else ""
        return f"{self.name} ({self.datatype} {shape_text(self.shape)}{optional})"


class InputTensor(NamedTuple):
    """A value for an input: `array` has texts as bytes in an array of objects, and BF16 as float32."""

    name: str
    datatype: str
    array: Any

    def raw(self) -> bytes:
        """The bytes of the protocol's binary form."""
        if self.datatype == "BYTES":
            return strings.join(list(self.array.flat))
        if self.datatype == "BF16":
            upper: bytes = (np.ascontiguousarray(self.array).view(np.uint32) >> 16).astype("<u2").tobytes()
            return upper
        data: bytes = self.array.tobytes()
        return data


def inputs_of(metadata: dict[str, Any], config: dict[str, Any]) -> list[ModelInput]:
    """The inputs of a model. Only the configuration, which may be empty, tells about batches and optional inputs."""
    optional = {one["name"] for one in config.get("input", ()) if one.get("optional")}
    batched = int(config.get("max_batch_size", 0)) > 0
    return [
        ModelInput(one["name"], one["datatype"], list(map(int, one["shape"])), batched, one["name"] in optional)
        for one in metadata.get("inputs", ())
    ]


def command_line(model: str, inputs: Sequence[ModelInput], url: str = "") -> str:
    """A command that asks the model, to copy into a shell."""
    where = [shlex.quote(f"--url={url}")] if url else []
    wanted = (one for one in inputs if not one.optional)
    values = (f"{shlex.quote(one.name)}={shlex.quote(_as_word(one))}" for one in wanted)
    return " ".join(["stubserve ask", *where, shlex.quote(model), *values])


def curl_line(model: str, inputs: Sequence[ModelInput], url: str) -> str:
    """The same request as a curl command; empty if an input is too large for a line, or has no JSON form."""
    tensors = []
    for one in inputs:
        if one.optional:
            continue
        values = _example(one)
        if values is None or one.datatype in ("FP16", "BF16"):
            return ""
        shape = [*([1] if one.batched else []), *values.shape]
        tensors.append({"name": one.name, "datatype": one.datatype, "shape": shape, "data": values.tolist()})
    body = json.dumps({"inputs": tensors}, separators=(",", ":"))
    return f"curl -d {shlex.quote(body)} {shlex.quote(f'{url}/v2/models/{model}/infer')}"


def _as_word(wanted: ModelInput) -> str:
    values = _example(wanted)
    if values is None:
        return f"@{wanted.name}.npy"
    if wanted.datatype == "BYTES" and values.size == 1:
        return str(values.flat[0])
    return json.dumps(values.tolist(), separators=(",", ":"))


def _example(wanted: ModelInput) -> Any:
    """An array of values for an input, without the dimension of rows; None if there are too many for a line."""
    length = 1 if wanted.datatype == "BYTES" else _EXAMPLE_LENGTH
    shape = wanted.shape[1:] if wanted.batched else wanted.shape
    # Of several dimensions without a length only the last gets more than one element.
    last = max((at for at, size in enumerate(shape) if size == -1), default=-1)
    shape = [size if size != -1 else length if at == last else 1 for at, size in enumerate(shape)]
    count = prod(shape)
    if count > _EXAMPLE_ELEMENTS:
        return None
    if wanted.datatype == "BYTES":
        values: list[Any] = ["text"] * count
    elif wanted.datatype == "BOOL":
        values = [True] * count
    else:
        values = list(range(1, count + 1))
    return np.array(values, object).reshape(shape)


def read(words: Sequence[str], model: str, inputs: Sequence[ModelInput]) -> list[InputTensor]:
    """The tensors from the words. Raises WrongInput."""
    known = {one.name: one for one in inputs}
    listed = f"model '{model}' takes {', '.join(map(str, inputs)) or 'nothing'}"
    found: dict[str, InputTensor] = {}
    for word in words:
        name, given, text = word.partition("=")
        if not given:
            raise WrongInput(f"'{word}' is not NAME=VALUE: {listed}")
        if name not in known:
            meant = get_close_matches(name, known, 1, 0.5) or [one for one in known if one.lower() == name.lower()]
            advice = f"did you mean '{meant[0]}'? The " if meant else "the "
            raise WrongInput(f"there is no input '{name}': {advice}{listed}")
        if name in found:
            raise WrongInput(f"input '{name}' is given twice")
        found[name] = InputTensor(name, known[name].datatype, _array(known[name], text))
    missing = [one for one in inputs if not one.optional and one.name not in found]
    if missing:
        names = " and ".join(f"'{one.name}'" for one in missing)
        raise WrongInput(f"no value for input {names}: {listed}")
    return list(found.values())


def _array(wanted: ModelInput, text: str) -> Any:
    if text.startswith("@"):
        array = _of_file(wanted, Path(text[1:]))
    elif wanted.datatype == "BYTES":
        array = _of_elements(wanted, _texts(text))
    else:
        try:
            array = _of_elements(wanted, json.loads(text))
        except (ValueError, RecursionError):
            raise _wrong(wanted, f"'{_short(text)}' is neither a number nor a list, as JSON writes them") from None
    return _in_shape(wanted, array)


def _texts(text: str) -> Any:
    """The strings in a value: a plain word is itself; a JSON list, or a text in quotes, is read as JSON."""
    if text[:1] in ("[", '"'):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _of_file(wanted: ModelInput, path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WrongInput(f"input '{wanted.name}': {path} cannot be read: {error.strerror}") from None
    if data.startswith(_NPY):
        try:
            array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise WrongInput(f"input '{wanted.name}': {path} is no array that can be read: {error}") from None
        if wanted.datatype != "BYTES":
            return _cast(wanted, array, str(path))
        if array.dtype.kind in "SU":
            return _of_elements(wanted, array.tolist())
        raise _wrong(wanted, f"{path} has {array.dtype}")
    if wanted.datatype != "BYTES":
        raise _wrong(wanted, f"{path} is not an .npy array")
    element = np.empty((), object)
    element[()] = data
    return element


def _of_elements(wanted: ModelInput, values: Any) -> Any:
    if wanted.datatype == "BYTES":
        kinds: tuple[type, ...] = (str, bytes)
    elif wanted.datatype == "BOOL":
        kinds = (bool,)
    elif wanted.datatype.startswith(("INT", "UINT")):
        kinds = (int,)
    else:
        kinds = (int, float)
    try:
        array = np.array(values, object)
    except ValueError:
        raise _wrong(wanted, "its rows have different lengths") from None
    for value in array.flat:
        if isinstance(value, list):
            raise _wrong(wanted, "its rows have different lengths")
        if not isinstance(value, kinds) or (isinstance(value, bool) and wanted.datatype != "BOOL"):
            raise _wrong(wanted, f"{_short(json.dumps(value))} is of another type")
    if wanted.datatype == "BYTES":
        for at, value in enumerate(array.flat):
            array.flat[at] = value.encode(errors="surrogateescape") if isinstance(value, str) else value
        return array
    return _cast(wanted, array, "it")


def _cast(wanted: ModelInput, array: Any, what: str) -> Any:
    kind = BY_NAME[wanted.datatype].numpy or np.dtype(np.float32)
    if array.dtype != object and not np.can_cast(array.dtype, kind, "same_kind"):
        raise _wrong(wanted, f"{what} has {array.dtype}")
    if kind.kind in "iu" and array.size:
        bounds = np.iinfo(kind)
        for value in (array.min(), array.max()):
            if not bounds.min <= value <= bounds.max:
                raise _wrong(wanted, f"{value} is out of its range")
    try:
        return array.astype(kind)
    except (OverflowError, ValueError) as error:
        raise _wrong(wanted, str(error)) from None


def _in_shape(wanted: ModelInput, array: Any) -> Any:
    """The array with the dimensions that the user may leave out: the batch, and all dimensions of a single element."""
    given = array.shape
    missing = len(wanted.shape) - array.ndim
    batch = wanted.batched or wanted.shape[:1] == [-1]
    if missing > 0 and (array.ndim == 0 or (missing == 1 and batch)):
        array = array.reshape((1,) * missing + array.shape)
    fits = array.ndim == len(wanted.shape) and all(
        want in (-1, size) for want, size in zip(wanted.shape, array.shape, strict=True)
    )
    if not fits:
        raise _wrong(wanted, f"its shape is {shape_text(given)}")
    return array


def _wrong(wanted: ModelInput, why: str) -> WrongInput:
    rows = ", of which the first may be left out" if wanted.batched and len(wanted.shape) > 1 else ""
    return WrongInput(f"input '{wanted.name}' is {wanted.datatype} of shape {shape_text(wanted.shape)}{rows}: {why}")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:28]} … {text[-28:]}"

"""The folder of a model that is there as a file, for `stubserve init NAME --from FILE`.

The file is looked at in a process of its own (`model_file`), and the templates in `new-model-of-file/` are filled in
with what was found: what the model takes and gives, how it is loaded, and its answer to one row.
"""

from __future__ import annotations

import json
import pprint
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from string import Template
from typing import Any

from stubserve.commands.model_file import KINDS, CannotLook

_TEMPLATES = Path(__file__).parent / "new-model-of-file"
_MOST_ROWS = 1000
_MOST_CLASSES = 30
# Endings of files that have no template -> what to do with them
_OTHERWISE = {
    ".gguf": "`stubserve serve FILE --openai` serves such a file as it is.",
    ".plan": "Copy it to NAME/1/model.plan: the backend tensorrt needs no other file.",
    **dict.fromkeys(
        (".pt", ".pt2", ".pth"),
        "A file of PyTorch does not say what the model takes. Copy it to NAME/1/model.pt (TorchScript) or "
        "NAME/1/model.pt2 (torch.export), and write NAME/config.pbtxt as the page about backends shows.",
    ),
}
_LOADS = {
    "pickle": 'with open(Path(__file__).with_name("$FILE"), "rb") as file:\n    self.model = pickle.load(file)',
    "joblib": 'self.model = joblib.load(Path(__file__).with_name("$FILE"))',
    "xgboost": 'self.model = xgboost.$WRAPPER()\nself.model.load_model(Path(__file__).with_name("$FILE"))',
    "lightgbm": 'self.model = lightgbm.Booster(model_file=Path(__file__).with_name("$FILE"))',
}
_PICKLE = """
A pickle is a program: whoever loads it runs it. Take it only from people from whom you would take this file. It has the
names of its classes, and not their code, so it needs the packages that it was made with, in their versions.
"""
_COLUMN = """

def column(requests, name, categories):
    values = pb_utils.stack(requests, name)[:, 0]
    if values.dtype == object:  # texts
        values = [text.decode() for text in values]
    return values if categories is None else pd.Categorical(values, categories or None)
"""
_TEXTS = '''

def texts(array):
    """Texts as a tensor has them."""
    return np.array([str(value).encode() for value in np.ravel(array)], object)
'''
_BATCH_TEST = """

def test_each_request_of_a_batch_is_answered(model):
    both = {name: value + value for name, value in EXAMPLE.items()}
    first, second = model.execute([EXAMPLE, both])
    for name in EXPECTED:
        assert [len(first[name]), len(second[name])] == [1, 2]
"""
_PYTHON_TYPES = {"BYTES": "str", "BOOL": "bool"}


def look(file: Path) -> dict[str, Any]:
    """What the file takes and gives. Raises CannotLook, or OSError if the file cannot be read."""
    ending = file.suffix.lower()
    if ending not in KINDS:
        known = ", ".join(KINDS)
        raise CannotLook(_OTHERWISE.get(ending, f"a file for --from ends with one of {known}. {_by_hand()}"))
    with open(file, "rb") as opened:
        opened.read(1)
    command = [sys.executable, "-m", "stubserve.commands.model_file", str(file.absolute())]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise CannotLook(f"the process that loaded it ended with {done.returncode} and no answer") from None
    if "error" in found:
        raise CannotLook(found["error"])
    return found


def contents(file: Path, found: Mapping[str, Any]) -> dict[str, bytes | Path]:
    """The files of the new folder by their places; a Path is a file to copy."""
    kind = found["kind"]
    name = {"pickle": "model.pkl", "joblib": "model.joblib"}.get(kind, f"model{file.suffix.lower()}")
    written = {"client.py": _client(found), "test_model.py": _test(found, name)}
    if kind != "onnx":
        written["1/model.py"] = _model(found, name)
        written["config.pbtxt"] = _config(found)
        written["requirements.txt"] = "".join(f"{line}\n" for line in found["requirements"])
    return {**{place: text.encode() for place, text in written.items()}, f"1/{name}": file}


def described(found: Mapping[str, Any]) -> str:
    takes, gives = (_listed([one["name"] for one in found["inputs"]]), _listed(list(found["outputs"])))
    return f"{_plain(found['what'])}, which takes {takes} and gives {gives}"


def _by_hand() -> str:
    return "For another model `stubserve init NAME` writes a folder whose model.py can load any file."


def _listed(names: list[str]) -> str:
    shown = [repr(name) if re.search(r"\W", name) else name for name in names[:6]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _plain(text: str) -> str:
    return re.sub(r"[^\w .+-]", "", text)


def _filled(template: str, **values: object) -> str:
    return Template((_TEMPLATES / template).read_text()).substitute(values)


def _model(found: Mapping[str, Any], name: str) -> str:
    kind, columns, inputs = found["kind"], found["columns"], found["inputs"]
    by_column = bool(columns) and [one["name"] for one in inputs] == list(columns)
    has_texts = any(one["datatype"] == "BYTES" for one in found["outputs"].values())
    needs_xgboost = any("xgboost." in one["code"] for one in found["outputs"].values())
    if by_column:
        rows = "rows = pd.DataFrame({name: column(requests, name, known) for name, known in COLUMNS.items()})"
    elif inputs[0]["datatype"] == "BYTES":
        rows = 'rows = [text.decode() for text in pb_utils.stack(requests, "TEXT")[:, 0]]'
    elif columns:
        rows = 'rows = pd.DataFrame(pb_utils.stack(requests, "X"), columns=COLUMNS)'
    else:
        rows = 'rows = pb_utils.stack(requests, "X")'
    load = Template(_LOADS[kind]).substitute(FILE=name, WRAPPER=found["wrapper"])
    if found["threads"]:
        load += "\n# Instances work side by side; threads for each request would cost more than they bring.\n"
        settings = ", ".join(f"{name}=1" for name in found["threads"])
        load += f"self.model.set_params({settings})"
    outputs = [f'"{output}": {_as_tensor(one)},' for output, one in found["outputs"].items()]
    standard = ["import pickle"] if kind == "pickle" else []
    modules = {kind if kind != "pickle" else "", "numpy as np"}
    modules |= {"pandas as pd"} if columns else set()
    modules |= {"xgboost"} if needs_xgboost else set()
    modules.add("triton_python_backend_utils as pb_utils")
    imports = [*standard, "from pathlib import Path", "", *(f"import {one}" for one in sorted(filter(None, modules)))]
    return _filled(
        "model.txt",
        FILE=name,
        WHAT=_plain(found["what"]),
        PICKLE=_PICKLE if kind in ("pickle", "joblib") else "",
        IMPORTS="\n".join(imports),
        COLUMNS=_columns(columns, by_column),
        LOAD=_indented(load, 8) + "\n",
        TABLE="table" if columns else "list" if inputs[0]["datatype"] == "BYTES" else "array",
        ROWS=_indented(rows, 8),
        OUTPUTS=_indented("\n".join(outputs), 16),
        HELPERS=(_COLUMN if by_column else "") + (_TEXTS if has_texts else ""),
    )


def _as_tensor(output: Mapping[str, Any]) -> str:
    array = "texts" if output["datatype"] == "BYTES" else "np.asarray"
    return f"{array}({output['code']}).reshape(len(rows), -1)"


def _columns(columns: Mapping[str, Any], by_column: bool) -> str:
    if not columns:
        return ""
    if not by_column:
        return f"\n# The columns of X, in the order of the training\nCOLUMNS = {_source(list(columns))}\n"
    about = "# The columns in the order of the training, each an input"
    if any(known is not None for known in columns.values()):
        about += "; with a list it is one of categories: these, or any ([])"
    return f"\n{about}\nCOLUMNS = {_source(dict(columns))}\n"


def _config(found: Mapping[str, Any]) -> str:
    classes = found["classes"]
    comment = ""
    if "PROBABILITY" in found["outputs"] and 0 < len(classes) <= _MOST_CLASSES:
        comment = (
            f"# PROBABILITY has a number for each of the classes {', '.join(map(repr, classes))}, in this order.\n"
        )
    return _filled(
        "config.txt",
        MOST=_MOST_ROWS,
        INPUTS=_tensors((one["name"], one) for one in found["inputs"]),
        OUTPUTS=_tensors(found["outputs"].items()),
        CLASSES=comment,
    )


def _tensors(tensors: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    lines = []
    for name, one in tensors:
        datatype = "STRING" if one["datatype"] == "BYTES" else one["datatype"]
        dims = ", ".join(map(str, one["dims"]))
        lines.append(f'  {{ name: "{_escaped(name)}" data_type: TYPE_{datatype} dims: [ {dims} ] }}')
    return ",\n".join(lines)


def _escaped(text: str) -> str:
    """A text between quotes of text protobuf."""
    return re.sub(
        r'["\\]|[\x00-\x1f\x7f]', lambda one: "\\" + (one[0] if one[0] in '"\\' else f"{ord(one[0]):03o}"), text
    )


def _client(found: Mapping[str, Any]) -> str:
    batched = found["batched"]
    row = {one["name"]: _type(one) for one in found["inputs"]}
    answer = {name: _type(one) for name, one in found["outputs"].items()}
    return _filled(
        "client.txt",
        DATATYPES=_source({one["name"]: one["datatype"] for one in found["inputs"]}),
        ROW=_typed("Row", row),
        ANSWER=_typed("Answer", answer),
        EXAMPLE=_source({one["name"]: one["example"] for one in found["inputs"]}),
        TAKES="rows: List[Row]" if batched else "row: Row",
        GIVES="List[Answer]" if batched else "Answer",
        ABOUT="The model's answer to each row." if batched else "The model's answer. It takes one row at a time.",
        VALUES="[row[name] for row in rows]" if batched else "row[name]",
        RANK=2 if batched else 0,
        OUTPUT="data if shape[1:] == [1] else nested(data, shape)" if batched else "nested(data, shape)",
        ANSWERS="[dict(zip(outputs, values)) for values in zip(*outputs.values())]" if batched else "outputs",
        ASKED="predict([EXAMPLE], server)" if batched else "[predict(EXAMPLE, server)]",
    )


def _type(tensor: Mapping[str, Any]) -> str:
    datatype = tensor["datatype"]
    name = _PYTHON_TYPES.get(datatype, "float" if "FP" in datatype or datatype == "BF16" else "int")
    for _ in range(0 if tensor["dims"] == [1] else len(tensor["dims"])):
        name = f"List[{name}]"
    return name


def _typed(name: str, members: Mapping[str, str]) -> str:
    lines = "".join(f"        {member!r}: {kind},\n" for member, kind in members.items())
    return f'{name} = TypedDict(\n    "{name}",\n    {{\n{lines}    }},\n)'


def _test(found: Mapping[str, Any], name: str) -> str:
    batched, is_code = found["batched"], found["kind"] != "onnx"
    fixture = "with testing.serve(FOLDER) as server:\n    yield lambda inputs: server.infer(FOLDER.name, **inputs)"
    if is_code:
        fixture = "with testing.load(FOLDER) as model:\n    yield model"
    return _filled(
        "test_model.txt",
        WHERE="in this process, without a server" if is_code else "in a server that they start",
        OF_ROW=" of one row" if batched else "",
        FILE=name,
        EXAMPLE=_source({one["name"]: _batch(one, one["example"], batched) for one in found["inputs"]}),
        EXPECTED=_source({name: _batch(one, one["value"], batched) for name, one in found["outputs"].items()}),
        NAME="model" if is_code else "ask",
        FIXTURE=_indented(fixture, 4),
        ASK="model.infer(EXAMPLE)" if is_code else "ask(EXAMPLE)",
        BATCH_TEST=_BATCH_TEST if is_code else "",
    )


def _batch(tensor: Mapping[str, Any], value: Any, batched: bool) -> Any:
    if not batched:
        return value
    return [[value]] if tensor["dims"] == [1] and not isinstance(value, list) else [value]


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line if line else line for line in text.split("\n"))


class _Code(str):
    """Code that stands for a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _source(value: Any) -> str:
    """A value as Python code; a long list of one number is written as one."""
    return pprint.pformat(_shortened(value), width=110, sort_dicts=False, compact=True)


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(one) for key, one in value.items()}
    if isinstance(value, float) and not isfinite(value):
        return _Code(f'float("{value}")')
    if isinstance(value, list):
        parts = [_shortened(one) for one in value]
        if len(parts) > 8 and all(repr(one) == repr(parts[0]) for one in parts):
            return _Code(f"[{parts[0]!r}] * {len(parts)}")
        return parts
    return value

"""`stubserve init --from FILE`: the folder for a model that is there as a file works as it is."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from stubserve.checking.repository import check_repositories
from stubserve.commands import init
from tests.real_server import WORK_S, Serving

# Trained and written as people do. One process for all, because the packages take long to import.
TRAINING = """
    import pickle, sys
    import joblib, pandas as pd, numpy as np, lightgbm, xgboost
    from sklearn.compose import ColumnTransformer
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    def dump(model, name):
        with open(f"{folder}/{name}.pkl", "wb") as file:
            pickle.dump(model, file)

    folder = sys.argv[1]
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = load_iris().target_names[y]
    town = 'home \\ "town"'
    table = pd.DataFrame({"age": range(60), town: ["Bern", "Zug", "Chur"] * 20, "size": [1, 2] * 30})
    said = ["yes", "no"] * 30

    dump(RandomForestClassifier(5, n_jobs=-1, random_state=0).fit(X.to_numpy(), y), "forest")
    joblib.dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, names), f"{folder}/scaled.pkl")
    columns = ColumnTransformer([
        ("numbers", StandardScaler(), ["age"]),
        ("texts", make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), [town]),
        ("kinds", OneHotEncoder(), ["size"]),
        ("words", TfidfVectorizer(), "note"),
    ])
    noted = table.assign(note=["good day", "bad day"] * 30)
    dump(make_pipeline(columns, LogisticRegression()).fit(noted, said), "mixed")
    dump(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(noted["note"], ["+", "-"] * 30), "words")
    wide = pd.DataFrame(np.random.default_rng(0).random((50, 1000)), columns=[f"column {n}" for n in range(1000)])
    dump(LinearRegression().fit(wide, wide["column 0"]), "wide")

    model = xgboost.XGBClassifier(n_estimators=3, enable_categorical=True)
    model.fit(table.astype({town: "category"}), [one == "yes" for one in said]).save_model(f"{folder}/towns.json")
    softmax = {"objective": "multi:softprob", "num_class": 3}
    xgboost.train(softmax, xgboost.DMatrix(X.to_numpy(), y), 3).save_model(f"{folder}/boosted.ubj")
    homes = table[["age", town]].rename(columns={town: "home town"}).astype({"home town": "category"})
    data = lightgbm.Dataset(homes, table["size"])
    lightgbm.train({"verbose": -1, "min_data_in_leaf": 1}, data, 3).save_model(f"{folder}/light.txt")
"""
# Model -> a row, None for the client's own, and a part of the answer
ASKED: dict[str, tuple[Any, Any]] = {
    "forest": ({"X": [5.1, 3.5, 1.4, 0.2]}, {"LABEL": 0}),
    "scaled": (None, {"LABEL": "setosa"}),
    "mixed": (None, {}),
    "words": ({"TEXT": "a good day"}, {"LABEL": "+"}),
    "wide": (None, {}),
    "towns": (None, {}),
    "boosted": ({"X": [5.1, 3.5, 1.4, 0.2]}, {}),
    "light": (None, {}),
}


def run_tests_of(folder: Path) -> str:
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    tests += ["--rootdir", str(folder), str(folder)]
    done = subprocess.run(tests, cwd=folder, capture_output=True, text=True, timeout=WORK_S)
    return done.stdout + done.stderr


def run_client_of(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs `python client.py`."""
    client = [sys.executable, str(folder / "client.py"), *flags]
    return subprocess.run(client, capture_output=True, text=True, timeout=WORK_S)


def predicted(folder: Path, url: str, row: Mapping[str, Any] | None) -> Any:
    """What a program gets that imports `predict`."""
    program = (
        "import json, sys, client; row = json.loads(sys.argv[2]) or client.EXAMPLE; "
        "print(json.dumps(client.predict([row, row], sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, url, json.dumps(row)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WORK_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_trained_models_are_served_asked_and_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("sklearn", "pandas", "xgboost", "lightgbm"):
        pytest.importorskip(package, reason="`make test-long` installs it")
    trained, models = tmp_path / "trained", tmp_path / "models"
    trained.mkdir()
    subprocess.run([sys.executable, "-c", textwrap.dedent(TRAINING), str(trained)], check=True, timeout=WORK_S)
    for file in trained.iterdir():
        assert init.run([str(models / file.stem), "--from", str(file)]) == 0, capsys.readouterr().err
        assert f"stubserve serve {models / file.stem} --dev" in capsys.readouterr().out
    assert {folder.name for folder in models.iterdir()} == set(ASKED)
    assert check_repositories([models], Path("/nowhere")).problems == ()
    assert f"{2 * len(ASKED)} passed" in run_tests_of(models)
    with Serving(models) as server:
        url = f"http://127.0.0.1:{server.port}"
        for name, (row, expected) in ASKED.items():
            first, second = predicted(models / name, url, row)
            assert first == second
            assert expected.items() <= first.items()
        done = run_client_of(models / "mixed", f"--url={url}")
        assert (done.returncode, done.stderr) == (0, "")
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["LABEL", "PROBABILITY"]
        # A row that the model refuses is its client's mistake.
        row = {"age": 1.0, 'home \\ "town"': "Nowhere", "size": 1.0, "note": "day"}
        inputs = [
            {"name": key, "shape": [1, 1], "datatype": "FP64" if value == 1.0 else "BYTES", "data": [value]}
            for key, value in row.items()
        ]
        answer = server.request("POST", "/v2/models/mixed/infer", json.dumps({"inputs": inputs}).encode())
        assert answer.status == 400
        assert "Found unknown categories ['Nowhere']" in answer.error


@pytest.mark.parametrize("batched", [True, False])
def test_an_onnx_file(batched: bool, tmp_path: Path) -> None:
    rows = "N" if batched else 2
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["the input", "the input"], ["the output"])],
        "double",
        [onnx.helper.make_tensor_value_info("the input", onnx.TensorProto.FLOAT, [rows, 3])],
        [onnx.helper.make_tensor_value_info("the output", onnx.TensorProto.FLOAT, [rows, 3])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    folder = tmp_path / "models" / "double"
    assert init.run([str(folder), "--from", str(tmp_path / "net.onnx")]) == 0
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "client.py", "model.onnx", "test_model.py",
    ]  # fmt: skip
    assert "1 passed" in run_tests_of(folder)
    with Serving(folder) as server:
        done = run_client_of(folder, f"--url=http://127.0.0.1:{server.port}")
    zeros = [0.0, 0.0, 0.0] if batched else [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert done.stdout == f"the output {zeros}\n", done.stderr


ALONE = """
class Model:
    def predict(self, rows):
        if (rows < 0).any():
            raise ValueError("less than nothing")
        return rows.sum(axis=1)
"""


def test_a_pickle_of_a_class_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of files may be odd; the file of the new folder has one of its own."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "counting_model.py").write_text(ALONE)
    file = tmp_path / 'it\'s "mine"\n$HOME (final).pkl'
    code = "import counting_model, pickle, sys; pickle.dump(counting_model.Model(), open(sys.argv[1], 'wb'))"
    subprocess.run([sys.executable, "-c", code, str(file)], cwd=tmp_path / "mine", check=True)
    folder = tmp_path / "models" / "sum"
    assert init.run([str(folder), "--from", str(file)]) == 1
    told = capsys.readouterr().err
    assert f"it needs the module 'counting_model', which {sys.executable} does not have" in told
    assert "PYTHONPATH=FOLDER" in told
    assert not folder.exists()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    assert init.run([str(folder), "--from", str(file)]) == 0
    (folder / "1" / "counting_model.py").write_text(ALONE)
    monkeypatch.delenv("PYTHONPATH")
    assert "2 passed" in run_tests_of(folder)
    with Serving(folder) as server:
        [good, _] = predicted(folder, f"http://127.0.0.1:{server.port}", {"X": [1, 2, 3, 4]})
        assert good == {"Y": 10}
        inputs = [{"name": "X", "datatype": "FP64", "shape": [1, 2], "data": [1, -2]}]
        answer = server.request("POST", "/v2/models/sum/infer", json.dumps({"inputs": inputs}).encode())
        assert (answer.status, answer.error) == (400, "the model refuses the rows: less than nothing")


class Loud:
    """A pickle that prints while it is loaded, and then fails."""

    def __reduce__(self) -> Any:
        return exec, ("print('{\"kind\": \"mine\"}'); raise RuntimeError('no weights here')",)


class Gone:
    def __reduce__(self) -> Any:
        return exec, ("import os; os.abort()",)


OF_A_NOTEBOOK = b"c__main__\nNetwork\n)R."


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("model.pkl", b"", "it cannot be loaded: EOFError: Ran out of input"),
        ("model.pkl", b"\x80\x04 no pickle", "it cannot be loaded: UnpicklingError"),
        ("model.pkl", OF_A_NOTEBOOK, "this one is from the notebook or script that wrote the file"),
        ("model.pkl", pickle.dumps(Loud()), "it cannot be loaded: RuntimeError: no weights here"),
        ("model.pkl", pickle.dumps(Gone()), "the process that loaded it ended with -6 and no answer"),
        ("model.pkl", pickle.dumps({"weights": np.zeros(3)}), "it is a builtins.dict, which has no `predict`"),
        ("model.pkl", b"cno_such_package\nModel\n)R.", "-m pip install no_such_package"),
        ("model.onnx", b"no onnx", "it cannot be served: "),
        ("model.gguf", b"GGUF", "`stubserve serve FILE --openai` serves such a file"),
        ("model.pt", b"", "A file of PyTorch does not say what the model takes"),
        ("model.h5", b"", "a file for --from ends with one of .pkl, .pickle"),
        ("model", b"", "a file for --from ends with one of .pkl, .pickle"),
    ],
)
def test_a_file_that_cannot_be_used(
    name: str, content: bytes, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert init.run([str(tmp_path / "new"), "--from", str(tmp_path / name)]) == 1
    errors = capfd.readouterr().err
    assert f"error: {tmp_path / name}: " in errors
    assert told in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "new").exists()


def test_what_is_there_and_what_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "model.pkl"
    assert init.run([str(tmp_path / "new"), "--from", str(missing)]) == 1
    assert capsys.readouterr().err == f"error: {missing} cannot be read: No such file or directory\n"
    missing.mkdir()
    assert init.run([str(tmp_path / "new"), "--from", str(missing)]) == 1
    assert capsys.readouterr().err == f"error: {missing} cannot be read: Is a directory\n"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "notes").write_text("mine")
    # Nothing of the file runs if its folder cannot be written.
    ran = tmp_path / "ran.pkl"
    ran.write_bytes(b"cos\nmkdir\n(V" + str(tmp_path / "made").encode() + b"\ntR.")
    assert init.run([str(tmp_path / "old"), "--from", str(ran)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    with pytest.raises(SystemExit, match="2"):
        init.run([str(tmp_path / "new"), "--from", str(ran), "--no-config"])
    assert "--from goes with neither" in capsys.readouterr().err

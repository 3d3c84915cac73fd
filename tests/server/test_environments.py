"""Models in environments of their own, in a real server: other Pythons and numpys, archives, and what does not work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.environments.made import MODEL, TELLS, bare_venv, conda_archive, has_pyenv, pyenv, venv
from tests.real_server import Serving, write_model

pytestmark = pytest.mark.long

VENVS = {
    "py38": ("3.8", "1.21.6"),
    "py39": ("3.9", "1.22.4", "msgpack==1.0.8"),
    "py312": ("3.12", "2.0.2"),
    "py313": ("3.13", None),
}  # fmt: skip
if has_pyenv("3.14"):  # younger than many a pyenv
    VENVS["py314"] = ("3.14", None)
HERE = "$$TRITON_MODEL_DIRECTORY"


def versions(server: Serving, model: str) -> list[str]:
    """Python, numpy and prefix that a model answers with."""
    inputs = [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]
    answer = server.infer_json(model, inputs)
    assert answer.status == 200, answer
    told: list[str] = answer.json()["outputs"][0]["data"]
    return told


def reasons(server: Serving) -> dict[str, str]:
    index = server.request("POST", "/v2/repository/index").json()
    return {entry["name"]: entry.get("reason", "") for entry in index}


def small_archive(folder: Path) -> Path:
    """An archive of a virtual environment that borrows its numpy."""
    made = bare_venv(folder / "packing", "3.12")
    numpy = venv("3.12", "2.0.2") / "lib" / "python3.12" / "site-packages"
    (made / "lib" / "python3.12" / "site-packages" / "borrowed.pth").write_text(f"{numpy}\n")
    archive = folder / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(made, ".")
    shutil.rmtree(made)
    return archive


def test_all_at_once(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    expected = {}
    for name, (version, numpy, *more) in VENVS.items():
        made = venv(version, numpy, *more)
        write_model(repository, name, MODEL, TELLS.format(made, ""))
        expected[name] = (version, numpy, str(made))
    two = "instance_group [ { count: 2 } ]"
    conda = write_model(repository, "conda", MODEL, TELLS.format(f"{HERE}/env.tar.gz", two))
    os.link(conda_archive(), conda / "env.tar.gz")
    # The same archive at another path, out of the same entry of the cache
    write_model(repository, "conda_too", MODEL, TELLS.format(conda_archive(), ""))
    packed = write_model(repository, "packed", MODEL, TELLS.format(f"{HERE}/env.tar.gz", two))
    subprocess.run(
        [sys.executable, "-m", "venv_pack", "-q", "-p", venv("3.12", "2.0.2"), "-o", packed / "env.tar.gz"], check=True
    )
    built = write_model(repository, "built", MODEL, TELLS.format("", ""))
    (built / "requirements.txt").write_text("numpy==1.26.4\n")
    python = pyenv("3.9") / "bin" / "python3.9"
    done = subprocess.run(
        [sys.executable, "-m", "stubserve", "env", "build", built, "--python", python], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    write_model(repository, "plain", MODEL, TELLS.format("", ""))
    (packed / "triton_python_backend_stub").touch()
    command = (repository, f"--environment-cache={tmp_path / 'cache'}")
    with Serving(*command) as server:
        for name, (version, numpy, prefix) in expected.items():
            told = versions(server, name)
            assert told[0] == version
            assert numpy in (told[1], None)
            assert told[2] == prefix
        told = versions(server, "conda")
        assert told[:2] == ["3.10", "1.23.5"]
        assert told == versions(server, "conda_too")
        assert Path(told[2]).parent == tmp_path / "cache"
        # conda-unpack has been at work
        assert (Path(told[2]) / "lib" / "place.txt").read_text() == f"{told[2]}\n"
        assert versions(server, "packed")[:2] == ["3.12", "2.0.2"]
        assert versions(server, "built")[:2] == ["3.9", "1.26.4"]
        assert versions(server, "plain")[1] == np.__version__
        server.wait_for_all("Extracting Python execution env", 3)
        server.wait_for("triton_python_backend_stub' is not used and can be deleted")


def test_workers_that_are_not_forked(tmp_path: Path) -> None:
    """They import the model's module, in an environment in which there is no stubserve."""
    source = """
        import multiprocessing
        import os
        import sys
        from concurrent.futures import ProcessPoolExecutor

        import numpy as np
        import triton_python_backend_utils as pb_utils

        os.environ.pop("PYTHONPATH", None)
        sys.path[:] = [folder for folder in sys.path if not os.path.isdir(folder + "/triton_python_backend_utils")]

        def call(number):
            tensor = pb_utils.Tensor("INPUT0", np.zeros(number, np.float32))
            try:
                pb_utils.InferenceRequest(model_name="m", requested_output_names=["Y"], inputs=[tensor]).exec()
            except pb_utils.TritonModelException as error:
                return f"{tensor.shape()} {error}"

        class TritonPythonModel:
            def execute(self, requests):
                told = []
                for method in ("spawn", "forkserver"):
                    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
                        told += pool.map(call, [3])
                answer = np.array(told, dtype=object)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", answer)]) for _ in requests]
    """
    chosen = {name: VENVS[name] for name in ("py38", "py312", "py314") if name in VENVS}
    for name, (version, numpy) in chosen.items():
        write_model(tmp_path, name, source, TELLS.format(venv(version, numpy), ""))
    with Serving(tmp_path) as server:
        for name in chosen:
            assert versions(server, name) == ["[3] BLS is only supported during the 'execute' function."] * 2


def test_extracted_again_only_when_the_archive_changes(tmp_path: Path) -> None:
    repository, cache = tmp_path / "models", tmp_path / "cache"
    model = write_model(repository, "m", MODEL, TELLS.format(f"{HERE}/env.tar.gz", "instance_group [ { count: 3 } ]"))
    archive = small_archive(model)
    command = (repository, f"--environment-cache={cache}")
    with Serving(*command) as server, Serving(*command) as second:
        first = versions(server, "m")
        assert versions(second, "m") == first
        server.wait_for_all("Extracting Python execution env", 1)
        assert "Extracting" not in second.output
        os.utime(model / "1" / "model.py")
        with Serving(*command) as third:
            assert versions(third, "m") == first
            assert "Extracting" not in third.output
        os.utime(archive)
        with Serving(*command) as third:
            assert versions(third, "m") != first
            third.wait_for_all("Extracting Python execution env", 1)
        assert Path(first[2]).exists()  # others still use it
        assert versions(server, "m") == first


def test_a_reload_extracts_only_a_changed_archive(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    model = write_model(repository, "m", MODEL, TELLS.format(f"{HERE}/env.tar.gz", ""))
    archive = small_archive(model)
    flags = ("--model-control-mode=explicit", "--load-model=m", f"--environment-cache={tmp_path / 'cache'}")
    load = ("POST", "/v2/repository/models/m/load")
    with Serving(repository, *flags) as server:
        first = versions(server, "m")
        os.utime(model / "1" / "model.py")
        assert server.request(*load).status == 200
        assert versions(server, "m") == first
        server.wait_for_all("Extracting Python execution env", 1)
        os.utime(archive)
        assert server.request(*load).status == 200
        assert versions(server, "m") != first
        server.wait_for_all("Extracting Python execution env", 2)


def test_servers_that_start_together_extract_once(tmp_path: Path) -> None:
    model = write_model(tmp_path / "models", "m", MODEL, TELLS.format(f"{HERE}/env.tar.gz", ""))
    small_archive(model)
    servers = [Serving(tmp_path / "models", f"--environment-cache={tmp_path / 'cache'}") for _ in range(3)]
    for server in servers:
        server.start()
    try:
        for server in servers:
            server.wait_for("Started HTTPService")
        assert sum(server.output.count("Extracting Python execution env") for server in servers) == 1
    finally:
        for server in servers:
            server.stop()


def test_variables(tmp_path: Path) -> None:
    source = """
        import json, os, subprocess
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                subprocess.run(["/bin/bash", "--help"], check=True, stdout=subprocess.DEVNULL)
                text = json.dumps(dict(os.environ))
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([text], dtype=object))])]
    """
    made = venv("3.12", "2.0.2")
    (tmp_path / "link").symlink_to(made)
    write_model(tmp_path / "models", "m", source, TELLS.format(f"{tmp_path}/models/../link", ""))
    surroundings = {"PATH": "/usr/bin:/bin", "PYTHONHOME": str(Path(sys.base_prefix)), "LD_LIBRARY_PATH": "/nowhere"}
    with Serving(tmp_path / "models", environment=surroundings) as server:
        (text,) = versions(server, "m")
    told = json.loads(text)
    assert told["VIRTUAL_ENV"] == str(made)
    assert told["VIRTUAL_ENV_PROMPT"] == f"({made.name})"
    assert told["PATH"] == f"{made}/bin:/usr/bin:/bin"
    assert told["LD_LIBRARY_PATH"] == f"{made}/lib:/nowhere"
    assert "PYTHONHOME" not in told


def test_what_does_not_work_says_why(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    base = bare_venv(tmp_path / "base", "3.12")

    def broken(name: str, version: str = "") -> Path:
        """A model with a virtual environment without numpy, to be broken further."""
        model = write_model(repository, name, MODEL, TELLS.format(f"{HERE}/env", ""))
        if version:
            bare_venv(model / "env", version)
        else:
            shutil.copytree(base, model / "env", symlinks=True)
        return model / "env"

    def interpreter(name: str, content: bytes) -> None:
        python = broken(name) / "bin" / "python"
        python.unlink()
        python.write_bytes(content)
        python.chmod(0o755)

    broken("no_numpy")
    broken("too_old", "3.7")
    (broken("no_python") / "bin" / "python").unlink()
    (repository / "no_python" / "env" / "bin" / "python3").unlink()
    moved = broken("moved") / "bin" / "python"
    moved.unlink()
    moved.symlink_to("/opt/nowhere/python3.12")
    interpreter("no_program", b"MZ" + bytes(100))
    real = (pyenv("3.12") / "bin" / "python3.12").resolve().read_bytes()
    interpreter("other_machine", real[:18] + (183).to_bytes(2, "little") + real[20:])
    loader = real.index(b"/lib64/ld-linux-x86-64.so.2")
    interpreter("musl", real[:loader] + b"/lib/ld-musl-x86_64.so.1\0\0\0" + real[loader + 27 :])
    too_new = '#!/bin/sh\necho "$0: /lib/libc.so.6: version \\`GLIBC_2.99\' not found (required by $0)" >&2; exit 1\n'
    interpreter("newer_system", too_new.encode())
    numpy = broken("bad_numpy") / "lib" / "python3.12" / "site-packages" / "numpy"
    numpy.mkdir()
    (numpy / "__init__.py").write_text("raise ImportError('libopenblas.so.0: cannot open shared object file: gone')")
    write_model(repository, "no_activate", MODEL, TELLS.format(HERE, ""))
    write_model(repository, "missing", MODEL, TELLS.format(f"{HERE}/none.tar.gz", ""))
    write_model(repository, "relative", MODEL, TELLS.format("none/none.tar.gz", ""))
    write_model(repository, "good", MODEL, TELLS.format("", ""))
    with Serving(repository, "--exit-on-error=false") as server:
        why = reasons(server)
        versions(server, "good")
    for name, texts in {
        "no_numpy": ("it has no numpy (CPython 3.12", "bin/python -m pip install numpy"),
        "too_old": ("its Python is 3.7", "models need 3.8 or newer"),
        "no_python": ("there is no Python in it",),
        "moved": ("leads to '/opt/nowhere/python3.12', which is not on this machine", "conda-pack"),
        "no_program": ("is not a program of this system",),
        "other_machine": ("its Python is for aarch64, and this machine is",),
        "musl": ("needs '/lib/ld-musl-x86_64.so.1', which is not on this machine", "Alpine"),
        "newer_system": ("needs glibc 2.99 or newer, and this machine has glibc 2.", "not newer than this one"),
        "bad_numpy": ("its numpy cannot be imported", "needs the library libopenblas.so.0"),
        "no_activate": (f"Path {repository}/no_activate/bin/activate does not exist. The Python environment should",),
        "missing": (f"Failed to get the canonical path for {repository}/missing/none.tar.gz.",),
        "relative": ("Failed to get the canonical path for none/none.tar.gz.",),
    }.items():
        assert all(text in why[name] for text in texts), (name, why[name])
        assert "not healthy" not in why[name]

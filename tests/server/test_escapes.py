"""Models that try to get out of their box: what each flag of stubs keeps them from.

What is not kept from them is in docs/guides/security.md ("What a model that means harm can do"), a table that this file
reads.
"""

from __future__ import annotations

import base64
import json
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stubserve_stub.runtime.confinement import NETWORK_VERSION, SCOPE_VERSION, landlock_version

from tests.real_server import Serving, eventually, write_model
from tests.server.evaluating_model import evaluating
from tests.server.test_confinement import CONFIG, evaluate

ROOT = Path(__file__).parents[2]

# Each attempt says what became of it.
ESCAPES = evaluating("""
    import ctypes, os, signal, socket, subprocess, sys, tempfile

    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result):
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def read(path):
        with open(path, "rb") as file:
            file.read(1)

    def write(path):
        with open(path, "r+b") as file:
            file.write(file.read(1))

    def trace(pid):
        # PTRACE_SEIZE stops nobody, and ends with the thread
        checked(libc.ptrace(0x4206, pid, None, None))

    def memory(pid):
        os.close(os.open("/proc/%d/mem" % pid, os.O_RDWR))

    def variables(pid):
        read("/proc/%d/environ" % pid)

    def descriptors(pid):
        for name in os.listdir("/proc/%d/fd" % pid):
            os.readlink("/proc/%d/fd/%s" % (pid, name))

    def borrow(pid):
        # A descriptor of another process, as its own
        pidfd = os.pidfd_open(pid)
        checked(libc.syscall(438, pidfd, 0, 0))

    def tcp(port):
        socket.create_connection(("127.0.0.1", port), 10).close()

    def listen():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))

    def abstract(name):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\\0" + name)
""")
DENIED = "PermissionError"
CONFIG_OF_GIVEN = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "INPUT0", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_STRING", "dims": [1]}],
    }
)
WRITE_LINKED = "outcome(write, os.path.dirname(os.path.realpath(__file__)) + '/../linked/model.py')"


class Box:
    """A server with a model that tries, and another model beside it."""

    def __init__(self, serving: Serving, repository: Path, temporary: Path = Path("/tmp")) -> None:
        self.serving = serving
        self.repository = repository
        self.temporary = temporary
        self.parent = serving.process.pid

    def attempt(self, name: str, *arguments: Any) -> str:
        outcome: str = evaluate(self.serving, f"outcome({', '.join([name, *map(repr, arguments)])})")
        return outcome

    def neighbour(self) -> int:
        """The process of the other model."""
        own = evaluate(self.serving, "os.getpid()")
        return next(pid for pid in self.serving.stub_pids() if pid != own)


def repository_in(folder: Path) -> Path:
    write_model(folder, "evaluate", ESCAPES, CONFIG)
    write_model(folder, "other")
    # Two whose versions are links, to folders beside each other
    for name in "own", "linked":
        write_model(folder, name, ESCAPES, CONFIG)
        store = folder.parent / f"{folder.name}-store" / name
        store.parent.mkdir(exist_ok=True)
        (folder / name / "1").rename(store)
        (folder / name / "1").symlink_to(store)
    return folder


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    if landlock_version() < NETWORK_VERSION:
        pytest.skip("this kernel's Landlock cannot forbid TCP")
    repository = repository_in(tmp_path_factory.mktemp("repository"))
    temporary = tmp_path_factory.mktemp("temporary")  # that of tests lies within the system's
    flags = (
        "--stub-sandbox=files,network", "--stub-memory-limit=2G", "--model-control-mode=explicit", "--load-model=*",
    )  # fmt: skip
    with Serving(repository, *flags, environment={"TMPDIR": str(temporary)}) as serving:
        serving.wait_until_ready()
        yield Box(serving, repository, temporary)


@pytest.mark.parametrize("attempt", ["trace", "memory", "descriptors", "borrow", "variables"])
def test_other_processes_cannot_be_looked_into(box: Box, attempt: str) -> None:
    """Nor be changed: neither the server, with its keys and tokens, nor another model."""
    assert box.attempt(attempt, box.parent) == DENIED
    assert box.attempt(attempt, box.neighbour()) == DENIED


@pytest.mark.skipif(landlock_version() < SCOPE_VERSION, reason="this kernel's Landlock knows nothing of signals")
def test_other_processes_cannot_be_sent_signals(box: Box) -> None:
    for number in 0, 9, 15, 19:
        assert box.attempt("os.kill", box.parent, number) == DENIED
        assert box.attempt("os.kill", box.neighbour(), number) == DENIED
    # Its own it can.
    end = "(lambda child: (child.kill(), child.wait())[1])(subprocess.Popen(['sleep', '1000']))"
    assert evaluate(box.serving, end) == -9
    assert box.serving.get("/v2/health/ready").status == 200


@pytest.mark.skipif(landlock_version() < SCOPE_VERSION, reason="this kernel's Landlock knows no abstract sockets")
def test_abstract_sockets_of_others_are_out_of_reach(box: Box) -> None:
    import socket

    name = f"stubserve-test-{box.parent}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        assert box.attempt("abstract", name) == DENIED


def test_the_files_of_other_models_cannot_be_changed(box: Box) -> None:
    for path in "other/1/model.py", "other/config.pbtxt":
        assert box.attempt("write", str(box.repository / path)) == DENIED
    assert box.attempt("write", str(box.repository / "evaluate/config.pbtxt")) == "done"


def test_a_model_that_came_with_its_load_cannot_be_changed(box: Box) -> None:
    """Its files lie in the server's temporary folder."""
    load = {"parameters": {"config": CONFIG_OF_GIVEN, "file:1/model.py": base64.b64encode(ESCAPES.encode()).decode()}}
    answer = box.serving.request("POST", "/v2/repository/models/given/load", json.dumps(load).encode())
    assert answer.status == 200, answer
    [folder] = box.temporary.glob("stubserve-model-*")
    assert box.attempt("write", str(folder / "1" / "model.py")) == DENIED
    # Nor what other models have for a time
    own = Path(evaluate(box.serving, "tempfile.mkdtemp()"))
    others = [one for one in own.parent.parent.iterdir() if one != own.parent]
    assert others
    for other in others:
        assert box.attempt("os.mkdir", str(other / "x")) == DENIED


def test_where_versions_are_links_their_neighbours_cannot_be_changed(box: Box) -> None:
    """Folders of versions may lie beside each other in a store."""
    assert box.attempt("write", str(box.repository / "linked" / "1" / "model.py")) == DENIED
    linked = box.serving.infer_json(
        "own", [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [WRITE_LINKED]}]
    )
    assert json.loads(linked.json()["outputs"][0]["data"][0]) == DENIED


def test_a_changed_environment_is_confined(tmp_path: Path) -> None:
    """An environment in a model's own folder is the model's to change, and it runs code before the stub's program."""
    if not landlock_version():
        pytest.skip("this kernel has no Landlock")
    repository = tmp_path / "repository"
    environment = repository / "evaluate" / "environment"
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    write_model(repository, "evaluate", ESCAPES, CONFIG + parameter)
    venv.create(environment, symlinks=True)
    [packages] = environment.glob("lib/python*/site-packages")
    marks = [environment / "ran", tmp_path / "escaped"]
    code = f"import pathlib; [pathlib.Path(one).touch() for one in {list(map(str, marks))}]"
    variables = {"PYTHONPATH": sysconfig.get_path("purelib")}
    with Serving(repository, "--stub-sandbox=files", environment=variables) as serving:
        [pid] = serving.stub_pids()
        assert evaluate(serving, f"open({str(packages / 'sitecustomize.py')!r}, 'w').write({code!r})")
        serving.infer_json("evaluate", [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["os._exit(1)"]}])
        inputs = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["os.getpid()"]}]
        eventually(lambda: serving.stub_pids() != [pid] and serving.infer_json("evaluate", inputs).status == 200)
    assert marks[0].exists()
    assert not marks[1].exists()


def test_there_is_no_tcp(box: Box) -> None:
    assert box.attempt("tcp", box.serving.port) == DENIED
    assert box.attempt("listen") == DENIED


def test_memory_ends(box: Box) -> None:
    inputs = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["len(bytearray(4 << 30))"]}]
    assert "MemoryError" in box.serving.infer_json("evaluate", inputs).error
    assert evaluate(box.serving, "1 + 1") == 2


def test_files_alone_keep_processes_apart(tmp_path: Path) -> None:
    """As `network` alone does: whoever is in a box cannot trace who is not."""
    if not landlock_version():
        pytest.skip("this kernel has no Landlock")
    for sandbox in ("files", "network") if landlock_version() >= NETWORK_VERSION else ("files",):
        with Serving(repository_in(tmp_path / sandbox), f"--stub-sandbox={sandbox}") as serving:
            serving.wait_until_ready()
            one = Box(serving, tmp_path)
            assert one.attempt("memory", one.parent) == DENIED
            assert one.attempt("descriptors", one.neighbour()) == DENIED
            if landlock_version() >= SCOPE_VERSION:
                assert one.attempt("os.kill", one.parent, 0) == DENIED

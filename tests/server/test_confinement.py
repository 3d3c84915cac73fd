"""What a stub has of the server's, and what it may do: descriptors, privileges, memory, files, network, user."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from stubserve_stub.runtime.confinement import NETWORK_VERSION, landlock_version

from tests.server.evaluating_model import evaluating

from ..real_server import PATIENCE_S, WORK_S, Serving, eventually, write_model

EVALUATE = evaluating("""
    import os, resource, socket, subprocess, sys, tempfile

    def write(path):
        try:
            with open(path, "w") as file:
                file.write("x")
            os.remove(path)
        except OSError as error:
            return type(error).__name__
        return "written"

    def contents(path):
        try:
            with open(path) as file:
                return file.read()
        except OSError as error:
            return type(error).__name__

    def connect(port):
        try:
            socket.create_connection(("127.0.0.1", port), 10).close()
        except OSError as error:
            return type(error).__name__
        return "connected"
""")
CONFIG = """
    backend: "python"
    input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")


def evaluate(serving: Serving, expression: str) -> Any:
    inputs = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [expression]}]
    answer = serving.infer_json("evaluate", inputs)
    assert answer.status == 200, answer
    return json.loads(answer.json()["outputs"][0]["data"][0])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "evaluate", EVALUATE, CONFIG)
    return folder


@pytest.fixture(scope="module")
def serving(repository: Path) -> Iterator[Serving]:
    with Serving(repository) as serving:
        yield serving


def descriptors(pid: int) -> dict[int, str]:
    """What a process has open."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found[int(entry.name)] = os.readlink(entry)
    return found


def test_a_stub_has_its_own_descriptors_and_no_others(serving: Serving) -> None:
    """Arena, control socket, three doorbells, and its standard streams: none of the server's sockets or files."""
    with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(1 << 16)
        for _ in range(2):  # the second is a stub that was started while the server served
            [pid] = serving.stub_pids()
            theirs, ours = descriptors(pid), descriptors(serving.process.pid)
            assert theirs[0] == "/dev/null"
            assert all(theirs[number].startswith("pipe:") for number in (1, 2))
            kinds = {link.partition(":")[0] for number, link in theirs.items() if number > 2}
            # Its side of the control socket and the ends of its event loop are sockets, the doorbells eventfds.
            assert kinds == {"socket", "/memfd", "anon_inode"}, theirs
            assert sum("[eventfd]" in link for link in theirs.values()) == 3
            shared = {link for link in theirs.values() if link in ours.values()}
            assert not any(link.startswith(("socket", "/tmp")) for link in shared), shared
            assert evaluate(serving, "os.environ.get('STUBSERVE_CONFINEMENT')") is None
            os.kill(pid, 9)
            eventually(lambda: serving.stub_pids() not in ([pid], []))  # noqa: B023
            serving.wait_until_ready()


def test_what_models_start_gains_no_privileges(serving: Serving) -> None:
    status = evaluate(serving, "open('/proc/self/status').read()")
    assert "NoNewPrivs:\t1" in status
    child = evaluate(serving, "subprocess.check_output(['cat', '/proc/self/status']).decode()")
    assert "NoNewPrivs:\t1" in child


def test_privileges_where_they_are_wanted(repository: Path) -> None:
    with Serving(repository, "--stub-new-privileges") as serving:
        assert "NoNewPrivs:\t0" in evaluate(serving, "open('/proc/self/status').read()")


def test_memory_is_limited(repository: Path) -> None:
    """What asks for too much fails with a MemoryError, and the stub lives."""
    with Serving(repository, "--stub-memory-limit=1G") as serving:
        [pid] = serving.stub_pids()
        inputs = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["np.ones(2 << 30, np.uint8).nbytes"]}]
        answer = serving.infer_json("evaluate", inputs)
        assert answer.status == 500
        assert "Unable to allocate 2.00 GiB" in answer.error
        assert evaluate(serving, "np.ones(1 << 28, np.uint8).nbytes") == 1 << 28
        assert serving.stub_pids() == [pid]


@needs_landlock
def test_files_are_read_only(repository: Path, tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    flags = ("--stub-sandbox=files", f"--stub-writable={open_folder}")
    with Serving(repository, *flags, environment={"TMPDIR": str(temporary)}) as serving:
        home = Path.home()
        for path, expected in {
            home / "x": "PermissionError",
            tmp_path / "x": "PermissionError",
            repository / "x": "PermissionError",
            repository / "evaluate" / "x": "written",
            repository / "evaluate" / "1" / "x": "written",
            open_folder / "x": "written",
            # What the server keeps there is not the model's to change, but it has a folder of its own in it.
            temporary / "x": "PermissionError",
        }.items():
            assert evaluate(serving, f"write({str(path)!r})") == expected, path
        own = Path(evaluate(serving, "tempfile.gettempdir()"))
        assert own.is_relative_to(temporary)
        assert evaluate(serving, "open(tempfile.gettempdir() + '/kept', 'w').write('x')") == 1
        # So for what it starts, and for its threads
        code = evaluate(serving, f"subprocess.call(['touch', {str(tmp_path / 'y')!r}], stderr=subprocess.DEVNULL)")
        assert code != 0
        in_thread = f"__import__('concurrent.futures').futures.ThreadPoolExecutor(1).submit(write, {str(home / 'x')!r})"
        assert evaluate(serving, in_thread + ".result()") == "PermissionError"
        # To read is allowed, and so is what devices are for
        assert evaluate(serving, f"len(open({__file__!r}).read()) > 0")
        assert evaluate(serving, "open('/dev/null', 'w').write('x')") == 1
        assert evaluate(serving, f"connect({serving.port})") == "connected"
        assert evaluate(serving, f"os.path.exists({str(tmp_path / 'y')!r})") is False
        assert (own / "kept").exists()
    assert not list(temporary.iterdir())


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "a",
    "AWS_ACCESS_KEY_ID": "b",
    "TRITONCACHE_REDIS_PASSWORD": "c",
    "HF_TOKEN": "d",
    "AWS_REGION": "e",
}
SEEN = "".join(f"os.environ.get({name!r}, '-') + " for name in SECRETS) + "''"


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        ((), "---de"),
        (("--stub-env=AWS_*", "--stub-env=-HF_TOKEN"), "ab--e"),
        (("--stub-env=evaluate:AWS_*", "--stub-env=-HF_TOKEN", "--stub-env=evaluate:HF_*"), "ab-de"),
        (("--stub-env=other:AWS_*", "--stub-env=other:-HF_TOKEN"), "---de"),
        (("--stub-env=*", "--stub-env=-AWS_*"), "--cd-"),
    ],
)
def test_secrets_of_the_server(repository: Path, flags: tuple[str, ...], seen: str) -> None:
    """Its variables are the model's but for what only the server needs; the operator says otherwise, last word last."""
    with Serving(repository, *flags, environment=SECRETS) as serving:
        assert evaluate(serving, SEEN) == seen
        # Nor has what it starts any
        started = f"subprocess.check_output([sys.executable, '-c', {f'import os; print({SEEN})'!r}], text=True)"
        assert evaluate(serving, started).strip() == seen
        if not flags:
            serving.wait_for(
                "models do not see AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, TRITONCACHE_REDIS_PASSWORD of"
            )


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may look into everything, and has no setpriv"
)
def test_what_the_server_keeps_to_itself_in_proc(repository: Path) -> None:
    """Neither the variables nor the memory of its processes is open to others of its user, without any sandbox."""
    serving = Serving(repository, environment=SECRETS)
    if os.geteuid() == 0:
        serving.command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *serving.command]
    with serving:
        large = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["1" + " " * (4 << 20)]}]
        assert serving.infer_json("evaluate", large).status == 200  # which another process reads
        server = serving.process.pid
        helpers = {one.pid: one.cmdline() for one in psutil.Process(server).children()}
        for pid in serving.stub_pids():
            del helpers[pid]
        programs = " ".join(" ".join(words) for words in helpers.values())
        assert "janitor_program" in programs
        assert "json.worker" in programs
        for pid in server, *helpers:
            assert "REDIS_PASSWORD" not in evaluate(serving, f"contents('/proc/{pid}/environ')"), pid
        for attempt in f"open, '/proc/{server}/mem', 'r+b'", f"os.readlink, '/proc/{server}/fd/0'":
            assert evaluate(serving, f"outcome({attempt})") == "PermissionError"


@pytest.mark.skipif(landlock_version() < NETWORK_VERSION, reason="this kernel's Landlock cannot forbid TCP")
def test_no_network(repository: Path) -> None:
    with Serving(repository, "--stub-sandbox=network") as serving:
        assert evaluate(serving, f"connect({serving.port})") == "PermissionError"
        assert evaluate(serving, "write(tempfile.gettempdir() + '/stubserve-test-x')") == "written"


def refusal_of(repository: Path, *flags: str, **how: Any) -> str:
    """What the log says of a start that fails."""
    command = Serving(repository, *flags).command
    done = subprocess.run(command, capture_output=True, text=True, timeout=WORK_S, check=False, **how)
    assert done.returncode == 1, done
    return done.stdout + done.stderr


def test_users_that_are_not_there_are_named(repository: Path) -> None:
    assert "--stub-user=nosuch: there is no such user" in refusal_of(repository, "--stub-user=nosuch")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run stubs as somebody else")
def test_another_user(repository: Path) -> None:
    """The interpreter is the system's, which everybody may run; that of the tests may lie in somebody's home."""
    system, packages = "/usr/bin/python3", sysconfig.get_path("purelib")
    nobody = pwd.getpwnam("nobody")
    look = [system, "-c", f"import sys; sys.path.append({packages!r}); import numpy, msgpack"]
    if subprocess.run(look, user=nobody.pw_uid, check=False, capture_output=True, cwd="/").returncode:
        pytest.skip("there is no interpreter with numpy that everybody may run")
    # Not in the folder of the tests, which is root's alone
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        programs = Path(folder, "environment", "bin")
        programs.mkdir(parents=True)
        (programs / "activate").touch()
        (programs / "python").symlink_to(system)
        parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{programs.parent}" }} }}'
        write_model(Path(folder, "repository"), "evaluate", EVALUATE, CONFIG + parameter)
        secret = Path(folder, "secret")
        secret.write_text("s")
        secret.chmod(0o600)
        with Serving(Path(folder, "repository"), "--stub-user=nobody", environment={"PYTHONPATH": packages}) as serving:
            assert evaluate(serving, "os.getresuid()") == [nobody.pw_uid] * 3
            assert evaluate(serving, "os.getresgid()") == [nobody.pw_gid] * 3
            assert evaluate(serving, "os.environ['HOME']") == nobody.pw_dir
            assert evaluate(serving, f"os.access({str(secret)!r}, os.R_OK)") is False
            # Nor what the server has in its memory, and open; and it cannot be ended
            server = serving.process.pid
            for attempt in (
                f"open, '/proc/{server}/environ'",
                f"open, '/proc/{server}/mem', 'r+b'",
                f"os.listdir, '/proc/{server}/fd'",
                f"os.kill, {server}, 0",
                f"resource.prlimit, {server}, resource.RLIMIT_NOFILE, (0, 0)",
                f"os.setpriority, os.PRIO_PROCESS, {server}, 19",
                f"os.sched_setaffinity, {server}, [0]",
                # Nor can files that are somebody else's be changed, for which Landlock has no rule
                f"os.chmod, {str(secret)!r}, 0o666",
                f"os.chown, {str(secret)!r}, {nobody.pw_uid}, -1",
                f"os.utime, {str(secret)!r}",
                f"os.setxattr, {str(secret)!r}, 'user.x', b'1'",
            ):
                assert evaluate(serving, f"outcome({attempt})") == "PermissionError", attempt
            # It is still the server's to end, with what it has started
            [pid] = serving.stub_pids()
            os.kill(pid, 9)
            eventually(lambda: serving.stub_pids() not in ([pid], []))
            serving.wait_until_ready()
            assert evaluate(serving, "1 + 1") == 2

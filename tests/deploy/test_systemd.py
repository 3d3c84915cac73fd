"""The unit of systemd: it is a right one and, run by a systemd of its own, does what its page says."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.real_server import eventually, io_config

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "src" / "stubserve" / "deploy" / "systemd" / "stubserve.service"
# The server's user may not look into homes, so it gets the system's Python.
PYTHON = Path("/usr/bin/python3")
PORT = 18733

# A namespace for each thing that systemd sets up, so that nothing of this machine changes. The modules appear in /opt,
# because the unit hides homes and /tmp.
_BOOT = """
set -e
for folder in /run /opt /srv /var/cache; do mount -t tmpfs tmpfs $folder; done
mkdir -p /opt/stubserve/{src,stub,packages} /run/units
for folder in src stub; do mount --bind ROOT/$folder /opt/stubserve/$folder; done
mount --bind PACKAGES /opt/stubserve/packages
cp -r GIVEN/models /srv/models
cp -r GIVEN/units/. /run/units
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
export SYSTEMD_UNIT_PATH=/run/units container=test
exec /lib/systemd/systemd --system --unit=stubserve.service --log-target=console --show-status=false
"""
_ONLY_HTTP = "--allow-grpc=false --allow-metrics=false"
_HERE = f"""
[Service]
User=nobody
Group=nogroup
WatchdogSec=3
ExecStart=
ExecStart={PYTHON} -m stubserve serve /srv/models --http-address=127.0.0.1 --http-port={PORT} {_ONLY_HTTP}
Environment=PYTHONPATH=/opt/stubserve/src:/opt/stubserve/stub:/opt/stubserve/packages
"""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("marks", ["", r"^#\+ "], ids=["plain", "secured"])
def test_the_unit_is_right(marks: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    text = re.sub(marks, "", UNIT.read_text(), flags=re.MULTILINE) if marks else UNIT.read_text()
    text, changed = re.subn("/opt/stubserve/bin/stubserve", "/bin/true", text)
    assert changed == 2
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    # It may have something to say about the units of this machine, too.
    assert (done.returncode, "stubserve" in said) == (0, False), said


def test_its_command_line_is_one_of_ours() -> None:
    from stubserve.flags import parse_arguments

    (words,) = re.findall(r"^ExecStart=/opt/stubserve/bin/stubserve serve (.*)$", UNIT.read_text(), re.MULTILINE)
    settings = parse_arguments(words.split())
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(seconds) > settings.exit_timeout_secs
    secured = re.sub(r"^#\+ ", "", UNIT.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    words = re.findall(r"^ExecStart=/opt/stubserve/bin/stubserve serve (.*)$", secured, re.MULTILINE)[-1]
    settings = parse_arguments(words.split())
    assert settings.http.tls is not None
    assert settings.grpc.tls is not None
    assert (str(settings.auth.token_file), set(settings.auth.open_kinds)) == (
        "/etc/stubserve/tokens",
        {"health", "metrics"},
    )


class Machine:
    """A systemd that has booted in namespaces of its own, and runs the unit."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def systemd(self) -> int:
        """The pid outside; 0 while there is none."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def systemctl(self, *words: str) -> str:
        command = ["nsenter", "-t", str(self.systemd), "-m", "-p", "-C", "systemctl", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()

    def show(self, name: str) -> str:
        return self.systemctl("show", "stubserve", "-p", name, "--value")

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urlopen(f"http://127.0.0.1:{PORT}/v2/health/ready", timeout=5).status == 200)
        return False

    def processes(self, of: str) -> list[int]:
        """Pids, as this side sees them, of processes of the unit with this in their command lines."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and of.encode() in (entry / "cmdline").read_bytes():
                    same = (entry / "ns" / "pid").readlink() == Path(f"/proc/{self.systemd}/ns/pid").readlink()
                    found += [int(entry.name)] if same else []
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() or shutil.which("unshare") is None or not Path("/lib/systemd/systemd").exists():
        pytest.skip("needs root, unshare and systemd")
    version = subprocess.run(
        [PYTHON, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    if version.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip(f"{PYTHON} is another Python than that of the tests")
    model = tmp_path / "models" / "echo"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(io_config().replace('"python"', '"identity"'))
    units = tmp_path / "units"
    (units / "stubserve.service.d").mkdir(parents=True)
    for name in ("sysinit", "basic", "network-online", "shutdown", "multi-user"):
        (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    shutil.copy(UNIT, units)
    (units / "stubserve.service.d" / "here.conf").write_text(_HERE)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    script = _BOOT.replace("ROOT", str(ROOT)).replace("GIVEN", str(tmp_path)).replace("PACKAGES", packages)
    (hierarchy,) = re.findall(r"^\S+ (\S+) cgroup2 ", Path("/proc/mounts").read_text(), re.MULTILINE)[:1]
    group = Path(hierarchy) / f"stubserve-test-{os.getpid()}"
    group.mkdir()
    enter = f"echo 0 > {group}/cgroup.procs && exec unshare -mpfCui --mount-proc bash -c '{script}'"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(["bash", "-c", enter], stdout=log, stderr=subprocess.STDOUT)
    one = Machine(process)
    try:
        yield one
        print((tmp_path / "log").read_text())
    finally:
        # The first process of a namespace takes all others with it.
        if one.systemd:
            os.kill(one.systemd, signal.SIGKILL)
        process.kill()
        process.wait()
        for path in sorted(group.rglob("*/"), reverse=True):
            _remove(path)
        _remove(group)


def _remove(group: Path) -> None:
    def gone() -> bool:
        with contextlib.suppress(OSError):
            group.rmdir()
        return not group.exists()

    if group.is_dir():
        eventually(gone)


@pytest.mark.slow
def test_systemd_starts_watches_and_stops_it(machine: Machine) -> None:
    eventually(machine.ready)
    eventually(lambda: machine.show("ActiveState") == "active")
    (server,) = machine.processes("-m\0stubserve\0serve")
    assert "Uid:\t65534" in Path(f"/proc/{server}/status").read_text()
    # A stub that dies is the server's business.
    (stub,) = machine.processes("triton_python_backend_stub")
    os.kill(stub, signal.SIGKILL)
    eventually(lambda: machine.processes("triton_python_backend_stub") not in ([], [stub]))
    assert machine.show("NRestarts") == "0"
    # A server that stands is systemd's.
    os.kill(server, signal.SIGSTOP)
    eventually(lambda: machine.show("NRestarts") == "1")
    eventually(machine.ready)
    machine.systemctl("stop", "stubserve")
    assert (machine.show("ActiveState"), machine.show("Result")) == ("inactive", "success")
    assert machine.processes("-m\0stubserve") == []

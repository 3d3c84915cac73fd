"""The Containerfile: buildah builds it, without a network, and what the image says is run as the image says it.

The base is Debian's own, because no registry of images can be reached from here; and the image is run by hand in
namespaces of its own (as process 1, as its user, with a root that nobody can write to), because runtimes of containers
need control groups that not every machine has.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.real_server import eventually, io_config

ROOT = Path(__file__).parents[2]
PORT = 18734
TOOLS = ("buildah", "mmdebstrap", "unshare")
ORPHANS = """
import subprocess
class TritonPythonModel:
    def initialize(self, args):
        # A child that leaves its own child behind
        subprocess.run(["sh", "-c", "sleep 0.1 &"], check=True)
    def execute(self, requests): ...
"""


def run(*command: Any, **more: Any) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


class Image:
    """An image that buildah has built, and a container of it that is mounted."""

    def __init__(self, folder: Path) -> None:
        self._buildah = ("buildah", "--root", folder / "store", "--runroot", folder / "run")
        self._folder = folder

    def build(self) -> None:
        context = self._folder / "context"
        (context / "dist").mkdir(parents=True)
        shutil.copy(ROOT / "src" / "stubserve" / "deploy" / "container" / "Containerfile", context)
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", context / "dist", cwd=ROOT)
        (wheel,) = (context / "dist").iterdir()
        run("mmdebstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", context / "root.tar")
        # For the Python of that base
        run("/usr/bin/python3", "-m", "pip", "download", "--quiet", "--dest", context / "dist", wheel)
        (context / "base").write_text("FROM scratch\nADD root.tar /\n")
        build = ("unshare", "--net", *self._buildah, "build", "--isolation=chroot")
        run(*build, "-t", "localhost/base", "-f", context / "base", context)
        given = ("--build-arg", "BASE=localhost/base", "--build-arg", "PIP_ARGS=--no-index")
        run(*build, *given, "-t", "localhost/stubserve", "-f", context / "Containerfile", context)
        self._container = run(*self._buildah, "from", "localhost/stubserve")
        self.config: dict[str, Any] = json.loads(run(*self._buildah, "inspect", self._container))["OCIv1"]["config"]
        self.root = Path(run(*self._buildah, "mount", self._container))

    def close(self) -> None:
        run(*self._buildah, "rm", "--all")
        run(*self._buildah, "rmi", "--all", "--force")


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid():
        pytest.skip(f"needs root, and {', '.join(missing) or 'nothing else'}")
    one = Image(tmp_path)
    try:
        one.build()
        yield one
    finally:
        one.close()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ready() -> bool:
    with contextlib.suppress(OSError):
        return bool(urlopen(f"http://127.0.0.1:{PORT}/v2/health/ready", timeout=5).status == 200)
    return False


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_image_serves_as_process_1_without_rights(image: Image, tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name, source in ("echo", ""), ("orphans", ORPHANS):
        (models / name / "1").mkdir(parents=True)
        config = io_config() if source else io_config().replace('"python"', '"identity"')
        (models / name / "config.pbtxt").write_text(config)
        if source:
            (models / name / "1" / "model.py").write_text(source)
    tmp_path.chmod(0o755)
    config = image.config
    assert (config["User"], config["Cmd"][0]) == ("10001:10001", "/models")
    flags = f"--http-address=127.0.0.1 --http-port={PORT} --allow-grpc=false --allow-metrics=false"
    command = " ".join([*config["Entrypoint"], *config["Cmd"], flags])
    (image.root / "models").mkdir()
    script = f"""
    set -e
    mount --bind {image.root} {image.root}
    mount --bind {models} {image.root}/models
    mount -t proc proc {image.root}/proc
    mount -t tmpfs tmpfs {image.root}/tmp
    mount -o remount,bind,ro {image.root}
    exec chroot --userspec={config["User"]} {image.root} env -i {" ".join(config["Env"])} {command}
    """
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(["unshare", "-mpf", "bash", "-c", script], stdout=log, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: process.poll() is not None or ready())
        assert process.poll() is None
        (server,) = children(process.pid)
        status = Path(f"/proc/{server}/status").read_text()
        assert "Uid:\t10001\t10001" in status
        assert f"NSpid:\t{server}\t1\n" in status
        # The grandchild of a stub became a child of process 1, ended, and was reaped: only stubs are left.
        names = [Path(f"/proc/{one}/cmdline") for one in children(server)]
        eventually(lambda: all(b"stub" in name.read_bytes() for name in names if name.exists()))
        os.kill(server, signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        print((tmp_path / "log").read_text())
        for one in children(process.pid) if process.poll() is None else []:
            os.kill(one, signal.SIGKILL)
        process.wait()

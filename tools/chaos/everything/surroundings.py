"""What a server needs around it: a repository that changes, a collector of traces, a disk, memory. All of it fails."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import trustme

from tests.s3_store import S3Store
from tools.bench import servers

from ..remains import MARK, after
from ..world import HOST

_MIB = 1 << 20
# The group may have little of a file that it reads again and again.
_FILE_MIB, _GROUP_MIB, _READERS = 96, 24, 4
_GONE_WITHIN_S = 10.0
_NEIGHBOURS_FLAGS = ("--model-control-mode=explicit", "--shm-limit=64M", "--exit-timeout-secs=20")
_READS = "import sys\nwhile True:\n    with open(sys.argv[1], 'rb', 0) as file:\n        while file.read(1 << 20): pass"


class Folder:
    """A repository on the disk, as it was in `home` until somebody changes it."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._home = home
        self._folder = folder
        self._lock = threading.RLock()
        shutil.copytree(home, folder)

    @property
    def address(self) -> str:
        return str(self._folder)

    def put(self, model: str, name: str, text: str) -> None:
        """Changes a file in one step; not of a model that has been taken away."""
        new = self._folder.with_name("new")
        with self._lock:
            if (self._folder / model).exists():
                new.write_text(text)
                os.replace(new, self._folder / model / name)

    def take_away(self, model: str) -> None:
        old = self._folder.with_name("old")
        with self._lock:
            if (self._folder / model).exists():
                (self._folder / model).rename(old)
                shutil.rmtree(old)

    def restore(self, model: str) -> None:
        """As at home."""
        new = self._folder.with_name("new")
        with self._lock:
            shutil.copytree(self._home / model, new)
            self.take_away(model)
            new.rename(self._folder / model)


class Neighbour:
    """Another server beside that of the life, of `models` that both have; each has its own copy of their files."""

    def __init__(
        self, home: Path, folder: Path, flags: tuple[str, ...], environment: dict[str, str], models: Sequence[str]
    ) -> None:
        self.place = Folder(home, folder / "models")
        self._mark = uuid.uuid4().hex
        program = servers.stubserve(Path(sys.executable))
        loads = [f"--load-model={model}" for model in models]
        arguments = (*program.arguments, *flags, *_NEIGHBOURS_FLAGS, *loads, f"--log-file={folder / 'log'}")
        program = replace(program, arguments=arguments, environment={**environment, MARK: self._mark})
        self._server = servers.Server(program, self.place.address, folder / "output").__enter__()

    @property
    def port(self) -> int:
        return self._server.http_port

    @property
    def ports(self) -> tuple[int, int, int]:
        """Of HTTP, gRPC and metrics."""
        return self._server.http_port, self._server.grpc_port, self._server.metrics_port

    def stop(self) -> list[str]:
        """What it has left."""
        self._server.__exit__()
        return after(self._mark, _GONE_WITHIN_S)


class Bucket:
    """The same in a store. A model that is restored comes file by file, its configuration first."""

    def __init__(self, home: Path, store: S3Store, name: str) -> None:
        self._home = home
        self._store = store
        self._name = name
        # What was put in place of the files of `home`, by the path there
        self._put: dict[str, str] = {}
        self.fill()

    def fill(self) -> None:
        """All that was there, into a store that is empty."""
        self._store.make_bucket(self._name)
        for model in sorted(self._home.iterdir()):
            self._fill(model)

    @property
    def address(self) -> str:
        return self._store.address(f"{self._name}/models")

    def put(self, model: str, name: str, text: str) -> None:
        self._put[f"{model}/{name}"] = text
        self._store.put(self._name, f"models/{model}/{name}", text.encode())

    def take_away(self, model: str) -> None:
        self._store.delete(self._name, f"models/{model}/")

    def restore(self, model: str) -> None:
        for name in [name for name in self._put if name.startswith(f"{model}/")]:
            del self._put[name]
        self._fill(self._home / model)

    def _fill(self, model: Path) -> None:
        files = [path for path in model.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        for path in sorted(files, key=lambda path: (path.name != "config.pbtxt", path)):
            name = str(path.relative_to(self._home))
            text = self._put.get(name)
            self._store.put(self._name, f"models/{name}", path.read_bytes() if text is None else text.encode())


class Collector:
    """A collector of OpenTelemetry that can hang and die."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with socket.create_server((HOST, 0)) as free:
            self._port = free.getsockname()[1]
        self.address = ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tools.otlp_receiver", str(self._file), str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def nbytes(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0


class Certificates:
    """A server's, which is exchanged while it runs."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.certificate, self.key = folder / "cert.pem", folder / "key.pem"
        self.issue()

    @property
    def authority(self) -> bytes:
        return self._authority.cert_pem.bytes()

    def issue(self) -> None:
        """Another certificate and key, each in one step."""
        ours = self._authority.issue_cert(HOST)
        chain = b"".join(pem.bytes() for pem in ours.cert_chain_pems)
        for path, content in ((self.key, ours.private_key_pem.bytes()), (self.certificate, chain)):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            os.replace(new, path)

    @property
    def flags(self) -> list[str]:
        flags = []
        for way in ("http", "grpc"):
            flags += [
                f"--{way}-use-ssl=true",
                f"--{way}-server-cert={self.certificate}",
                f"--{way}-server-key={self.key}",
            ]
        return flags


class Disk:
    """No more room for what the server writes: a limit of the size of its files, which acts as a full disk does."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._limits: tuple[int, int] | None = None

    def fill(self, pid: int) -> None:
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        self._limits = self._limits or before
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (self._log.stat().st_size + 10, before[1]))

    def clear(self, pid: int) -> None:
        if self._limits is not None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, self._limits)
            self._limits = None


class Shortage:
    """Want of memory on the machine, as the kernel tells of it: processes in a group of theirs that has far too little
    of it read a file again and again. Root may make such a group; for others there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "large"
        self._group: Path | None = None
        with contextlib.suppress(OSError):
            self._group = _memory_group()
        if self._group is not None:
            self._file.touch()
            # Nothing is on the disk of it; what counts are the pages that a reader gets.
            os.truncate(self._file, _FILE_MIB * _MIB)

    @property
    def possible(self) -> bool:
        return self._group is not None

    def __call__(self, seconds: float) -> None:
        assert self._group is not None
        joined = f"import os; open({str(self._group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n{_READS}"
        command = [sys.executable, "-c", joined, str(self._file)]
        readers = [subprocess.Popen(command) for _ in range(_READERS)]
        time.sleep(seconds)
        for reader in readers:
            reader.kill()
            reader.wait()

    def close(self) -> None:
        if self._group is not None:
            self._group.rmdir()
            self._group = None


def _memory_group() -> Path:
    """A group below this process's. Raises OSError where that is not permitted."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            group = Path("/sys/fs/cgroup/memory", path.lstrip("/"), f"stubserve-chaos-{os.getpid()}")
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(_GROUP_MIB * _MIB))
            return group
    raise FileNotFoundError("no group for memory")


class Later:
    """Calls `act` in a thread in a while, or in `now`'s; once in all. It is done when `act` has returned."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._act = act
        self._lock = threading.Lock()
        self.done = False
        self._timer = threading.Timer(seconds, self.now)
        self._timer.daemon = True
        self._timer.start()

    def now(self) -> None:
        with self._lock:
            if not self.done:
                try:
                    self._act()
                finally:
                    self.done = True
        self._timer.cancel()

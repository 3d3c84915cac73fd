"""What concerns all replicas, asked of real servers; and HAProxy's configuration. No Ray is needed for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc.service_pb2 as pb
import uvicorn

from stubserve.api.access import OWNER
from stubserve.fleet import fan_out, replica_client
from stubserve.fleet.directory import Change, Fleet, ReplicaInfo
from stubserve.fleet.fan_out import FanOut
from stubserve.fleet.replica_client import GRPC_SERVICE
from tests.real_server import Serving, io_config, write_model

TOKEN = "e3a7c1d85b9f4c20a6d1"
OWN = "9b4d0f27c8e1a65390b7"
ONE = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}


class Servers:
    """Two servers, what asks both, and what it has recorded."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *flags: str) -> None:
        self.folders = [folder / "0", folder / "1"]
        self.servers: list[ReplicaInfo] = []
        self.processes: list[Serving] = []
        for path in self.folders:
            path.mkdir()
            self.add("echo", path)
            words = ("--model-control-mode=explicit", "--load-model=*", *flags)
            server = stack.enter_context(Serving(path, *words, environment={OWNER: f"Bearer {OWN}"}))
            server.wait_until_ready()
            self.processes.append(server)
            ports = server.port, server.grpc_port, server.metrics_port
            self.servers.append(ReplicaInfo(f"0000000{2 + 2 * len(self.servers)}", "all", (), "127.0.0.1", *ports))
        self.recorded: list[Change] = []
        self.fan_out = FanOut(lambda: Fleet(1, self.servers, [], {"all": ()}), self._record)

    def http(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status, and the answer as text or what JSON says."""
        reply = asyncio.run(self.fan_out.ask(method, path, b"" if body is None else json.dumps(body).encode()))
        text = reply.body.decode()
        return reply.status, json.loads(text) if text.startswith(("{", "[")) else text

    def add(self, name: str, folder: Path) -> None:
        write_model(folder, name, config=io_config("INT32", "1", 8).replace('"python"', '"identity"'))

    def call(self, method: str, message: Any) -> tuple[int, bytes]:
        reply = asyncio.run(self.fan_out.call(method, message.SerializeToString()))
        return reply.status, reply.body

    async def _record(self, change: Change) -> None:
        self.recorded.append(change)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(tmp_path, stack)


def test_loads_reach_all_or_say_which_they_did_not(servers: Servers) -> None:
    for folder in servers.folders:
        servers.add("late", folder)
    first, second = servers.servers
    assert servers.http("POST", "/v2/repository/models/late/load")[0] == 200
    assert (servers.recorded[-1].what, set(servers.recorded[-1].made_by)) == ("model late", {first.id, second.id})
    servers.add("half", servers.folders[0])
    status, text = servers.http("POST", "/v2/repository/models/half/load")
    assert status == 500
    assert text.startswith(f"1 of 2 replicas failed: replica 2 (127.0.0.1:{second.http_port}): failed to load 'half'")
    # The other one keeps it, and later ones get it.
    assert servers.recorded[-1].made_by == {first.id}
    status, text = servers.http("POST", "/v2/repository/models/nowhere/load")
    assert text.startswith("failed to load 'nowhere'")
    assert len(servers.recorded) == 2
    index = {entry["name"]: entry for entry in servers.http("POST", "/v2/repository/index")[1]}
    assert index["late"]["state"] == "READY"
    assert index["half"]["state"] != "READY" or len(index) == 3
    # Over gRPC, unloaded
    status, _ = servers.call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="late"))
    assert (status, servers.recorded[-1].path) == (200, f"{GRPC_SERVICE}RepositoryModelUnload")
    assert servers.recorded[-1].what == "model late"
    assert servers.call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nowhere"))[0] == 500


def test_statistics_and_metrics_of_all(servers: Servers) -> None:
    for replica, count in zip(servers.servers, (1, 2), strict=True):
        for _ in range(count):
            url = f"http://127.0.0.1:{replica.http_port}/v2/models/echo/infer"
            urllib.request.urlopen(url, json.dumps(ONE).encode()).close()
    stats = servers.http("GET", "/v2/models/echo/stats")[1]["model_stats"]
    assert [(entry["name"], entry["inference_count"], entry["execution_count"]) for entry in stats] == [("echo", 3, 3)]
    assert stats[0]["inference_stats"]["success"]["count"] == 3
    assert [(size["batch_size"], size["compute_infer"]["count"]) for size in stats[0]["batch_stats"]] == [(1, 3)]
    _, body = servers.call("ModelStatistics", pb.ModelStatisticsRequest(name="echo"))
    assert [entry.inference_count for entry in pb.ModelStatisticsResponse.FromString(body).model_stats] == [1, 2]
    lines = servers.http("GET", "/metrics")[1].splitlines()
    for count in (1, 2):
        assert f'nv_inference_request_success{{model="echo",version="1",replica="{count}"}} {count}' in lines
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_settings_reach_all_and_questions_change_nothing(servers: Servers) -> None:
    assert servers.http("POST", "/v2/logging", {"log_verbose_level": 1})[0] == 200
    assert [servers.recorded[-1].what, servers.recorded[-1].group] == ["/v2/logging", ""]
    assert servers.http("GET", "/v2/logging")[1]["log_verbose_level"] == 1
    recorded = len(servers.recorded)
    assert servers.call("LogSettings", pb.LogSettingsRequest())[0] == 200
    assert servers.http("GET", "/v2/models/echo/trace/setting")[0] == 200
    assert len(servers.recorded) == recorded
    settings = {"log_info": pb.LogSettingsRequest.SettingValue(bool_param=False)}
    assert servers.call("LogSettings", pb.LogSettingsRequest(settings=settings))[0] == 200
    assert servers.recorded[-1].what == "LogSettings "
    assert servers.http("GET", "/v2/logging")[1]["log_info"] is False


def test_a_setting_waits_for_the_one_before() -> None:
    """Two at a time could come to two replicas in two orders, and then last."""
    open_settings = most = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_settings, most
        await reader.readuntil(b"{}")
        open_settings += 1
        most = max(most, open_settings)
        if most == 2:
            both.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(both.wait(), 0.2)
        open_settings -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async def record(change: Change) -> None:
        pass

    async def run() -> None:
        nonlocal both
        both = asyncio.Event()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            fleet = Fleet(1, [ReplicaInfo("1", "all", (), "127.0.0.1", port, port, port)], [], {"all": ()})
            ask = FanOut(lambda: fleet, record).ask
            replies = await asyncio.gather(*(ask("POST", "/v2/logging", b"{}") for _ in range(2)))
        assert [reply.status for reply in replies] == [200, 200]

    both: asyncio.Event
    asyncio.run(run())
    assert most == 1


def test_a_replica_that_did_not_answer_makes_the_next_change_once_more() -> None:
    """The change that it has not answered may come to it late, after the next one."""
    answers = [(200, 503), (503, 200), (200, 200), (200, 200)]
    asked = [0, 0]
    recorded: list[Change] = []

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            replicas = []
            for number in range(2):

                async def answer(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int = number
                ) -> None:
                    await reader.readuntil(b"{}")
                    if (status := answers[asked[number]][number]) == 200:
                        writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: 2\r\n\r\n{}" % status)
                    asked[number] += 1
                    writer.close()

                server = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
                ports = [server.sockets[0].getsockname()[1]] * 3
                replicas.append(ReplicaInfo("ab"[number], "all", (), "127.0.0.1", *ports))

            async def record(change: Change) -> None:
                recorded.append(change)

            fan_out = FanOut(lambda: Fleet(1, replicas, [], {"all": ()}), record)
            statuses = [(await fan_out.ask("POST", "/v2/logging", b"{}")).status for _ in answers]
            assert statuses == [503, 503, 200, 200]

    asyncio.run(run())
    assert [sorted(change.made_by) for change in recorded] == [["a"], [], ["b"], ["a", "b"]]


def test_what_is_not_for_a_fleet(servers: Servers) -> None:
    status, text = servers.http("POST", "/v2/systemsharedmemory/region/a/register", {})
    assert (status, "not for a fleet" in text) == (400, True)
    assert servers.call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest())[0] == 400
    reply = asyncio.run(servers.fan_out.call("RepositoryModelLoad", b"\xff"))
    assert (reply.status, reply.body) == (400, b"Unable to parse request")


@contextlib.asynccontextmanager
async def http_port(fan_out: FanOut) -> AsyncIterator[int]:
    """The port at which `fan_out` answers HTTP."""
    server = uvicorn.Server(uvicorn.Config(fan_out.app(), "127.0.0.1", 0, log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


def test_a_path_is_read_as_a_server_reads_it(servers: Servers) -> None:
    for folder in servers.folders:
        servers.add("a b", folder)
    assert servers.http("POST", "/v2/%72epository/models/a%20b/loa%64")[0] == 200
    (change,) = servers.recorded
    assert (change.what, change.path) == ("model a b", "/v2/repository/models/a%20b/load")
    assert [entry["name"] for entry in servers.http("GET", "/v2/models/a%20b/stat%73")[1]["model_stats"]] == ["a b"]
    assert servers.http("GET", "/v2/system%73haredmemory/status")[0] == 400
    # Of two names in a message the last one counts.
    message = pb.RepositoryModelLoadRequest(model_name="nowhere").SerializeToString()
    message += pb.RepositoryModelLoadRequest(model_name="echo").SerializeToString()
    assert asyncio.run(servers.fan_out.call("RepositoryModelLoad", message)).status == 200
    assert servers.recorded[-1].what == "model echo"


def test_nothing_is_added_to_a_request(servers: Servers) -> None:
    """By a line's end in a path or a header."""
    port = servers.servers[0].http_port
    for path, headers in (("/v2/a\r\nx: y", {}), ("/v2 HTTP/1.1", {}), ("/v2", {"a": "b\nc: d"})):
        reply = asyncio.run(replica_client.ask("127.0.0.1", port, "GET", path, headers=headers))
        assert (reply.status, "may not have" in reply.text) == (503, True)


def test_a_server_that_is_stopped_holds_up_nobody(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out, "_QUESTION_S", 1.0)
    ask, stopped = servers.fan_out.ask, servers.processes[1].process

    async def run() -> None:
        reads = await asyncio.gather(*(ask("POST", "/v2/repository/index", b"{}") for _ in range(300)))
        assert {reply.status for reply in reads} == {503}
        # A busy machine has some seconds to answer in.
        for name in ("_QUESTION_S", "_METRICS_S"):
            monkeypatch.setattr(fan_out, name, 4.0)
        index, metrics = await asyncio.gather(ask("POST", "/v2/repository/index", b"{}"), ask("GET", "/metrics", b""))
        assert index.text.startswith("1 of 2 replicas failed: replica 2")
        assert 'replica="1"' in metrics.text
        assert 'replica="2"' not in metrics.text
        # A load goes on until the server that does not make it has left.
        load = asyncio.create_task(ask("POST", "/v2/repository/models/echo/load", b""))
        await asyncio.wait({load}, timeout=1.0)
        assert not load.done()
        gone = servers.servers.pop()
        assert (await load).status == 200
        assert gone.id not in servers.recorded[-1].made_by

    stopped.send_signal(signal.SIGSTOP)
    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        stopped.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("said", "status", "text"),
    [
        (b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}', 502, "something else"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[[[[", 502, "something else"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n\xff\xfe", 503, "closed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + 1024 * b"x", 503, "more than 1000 bytes"),
        (b"HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n", 503, "status 999"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", 200, ""),
        (b"SSH-2.0\r\n\r\n", 503, "no answer"),
        (b"", 503, "closed"),
    ],
)
def test_a_server_that_lies(said: bytes, status: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_client, "_MOST_BYTES", 1000)

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(lie, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            liar = ReplicaInfo("00000002", "all", (), "127.0.0.1", port, port, port)
            fan_out = FanOut(lambda: Fleet(1, [liar], [], {"all": ()}), None)  # type: ignore[arg-type]
            reply = await fan_out.ask("POST", "/v2/repository/index", b"{}")
            assert (reply.status, text in reply.text) == (status, True), reply
            assert (await fan_out.ask("GET", "/metrics", b"")).status == 200

    asyncio.run(run())


def test_who_asks_is_passed_on(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    with contextlib.ExitStack() as stack:
        servers = Servers(tmp_path, stack, f"--auth-token-file={tokens}", "--auth-open-api=health")
        ask = servers.fan_out.ask
        assert asyncio.run(ask("POST", "/v2/repository/models/echo/load", b"")).status == 401
        assert servers.recorded == []
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert asyncio.run(ask("POST", "/v2/repository/models/echo/load?x=1", b"", headers)).status == 200
        assert TOKEN not in repr(servers.recorded)
        message = pb.RepositoryModelLoadRequest(model_name="echo").SerializeToString()
        assert asyncio.run(servers.fan_out.call("RepositoryModelLoad", message)).status == 401
        assert asyncio.run(servers.fan_out.call("RepositoryModelLoad", message, headers)).status == 200
        # Who has started a server has all rights there.
        headers = {"authorization": f"Bearer {OWN}"}
        assert servers.processes[0].request("POST", "/v2/repository/index", headers=headers).status == 200
        assert servers.processes[0].metrics(headers=headers).status == 200
        assert asyncio.run(servers.fan_out.call("RepositoryModelLoad", message, headers)).status == 200
        assert servers.processes[0].metrics(headers={"authorization": "Bearer "}).status == 401


def test_who_may_not_ask_is_told_before_the_body_comes(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    head = "POST /v2/repository/models/echo/load HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n"

    async def status(port: int, line: str = "") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}{line}\r\n".encode())
        if line:
            await writer.drain()
            for _ in range(100):
                writer.write(bytes(1_000_000))
                await writer.drain()
        answer = await reader.readuntil(b"\r\n")
        writer.close()
        return answer.split()[1]

    async def run(servers: Servers) -> None:
        async with http_port(servers.fan_out) as port:
            assert await status(port) == b"401"
            # It is read where its sender may load, and refused as no JSON.
            assert await status(port, f"Authorization: Bearer {TOKEN}\r\n") == b"500"
        server = servers.fan_out.grpc_server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.stream_unary(f"{GRPC_SERVICE}RepositoryModelLoad")()
                with pytest.raises(grpc.aio.AioRpcError, match="wants a token"):
                    await call
        finally:
            await server.stop(None)

    with contextlib.ExitStack() as stack:
        flags = (f"--auth-token-file={tokens}", "--auth-open-api=health", "--http-max-input-size=200000000")
        asyncio.run(asyncio.wait_for(run(Servers(tmp_path, stack, *flags)), 60))


def test_nobody_is_there(servers: Servers) -> None:
    servers.servers.clear()
    assert servers.http("POST", "/v2/repository/index") == (503, "no replica answers")
    assert servers.http("GET", "/metrics") == (200, "")


def test_grpc_calls_of_any_method(servers: Servers) -> None:
    async def run() -> None:
        server = servers.fan_out.grpc_server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                ask = channel.unary_unary(f"{GRPC_SERVICE}RepositoryIndex")
                index = pb.RepositoryIndexResponse.FromString(await ask(b""))
                assert [entry.name for entry in index.models] == ["echo", "echo"]
                load = channel.unary_unary(f"{GRPC_SERVICE}RepositoryModelLoad")
                with pytest.raises(grpc.aio.AioRpcError, match="failed to load 'no'") as raised:
                    await load(pb.RepositoryModelLoadRequest(model_name="no").SerializeToString())
                assert raised.value.code() is grpc.StatusCode.INTERNAL
        finally:
            await server.stop(None)

    asyncio.run(run())

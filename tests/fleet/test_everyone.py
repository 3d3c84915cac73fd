"""What concerns all replicas, asked of real servers; and HAProxy's configuration. No Ray is needed for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc.service_pb2 as pb

from stubserve.fleet.asking import GRPC_SERVICE
from stubserve.fleet.directory import Change, Fleet, Member
from stubserve.fleet.everyone import Everyone
from tests.real_server import Serving, io_config, write_model

TOKEN = "e3a7c1d85b9f4c20a6d1"
ONE = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}


class Servers:
    """Two servers, what asks both, and what it has recorded."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *flags: str) -> None:
        self.folders = [folder / "0", folder / "1"]
        self.servers: list[Member] = []
        for path in self.folders:
            path.mkdir()
            self.add("echo", path)
            server = stack.enter_context(Serving(path, "--model-control-mode=explicit", "--load-model=*", *flags))
            server.wait_until_ready()
            ports = server.port, server.grpc_port, server.metrics_port
            self.servers.append(Member(f"0000000{2 + 2 * len(self.servers)}", "all", (), "127.0.0.1", *ports))
        self.recorded: list[Change] = []
        self.everyone = Everyone(lambda: Fleet(1, self.servers, [], {"all": ()}), self._record)

    def http(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status, and the answer as text or what JSON says."""
        reply = asyncio.run(self.everyone.ask(method, path, b"" if body is None else json.dumps(body).encode()))
        text = reply.body.decode()
        return reply.status, json.loads(text) if text.startswith(("{", "[")) else text

    def add(self, name: str, folder: Path) -> None:
        write_model(folder, name, config=io_config("INT32", "1", 8).replace('"python"', '"identity"'))

    def call(self, method: str, message: Any) -> tuple[int, bytes]:
        reply = asyncio.run(self.everyone.call(method, message.SerializeToString()))
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
    for member, count in zip(servers.servers, (1, 2), strict=True):
        for _ in range(count):
            url = f"http://127.0.0.1:{member.http_port}/v2/models/echo/infer"
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


def test_what_is_not_for_a_fleet(servers: Servers) -> None:
    status, text = servers.http("POST", "/v2/systemsharedmemory/region/a/register", {})
    assert (status, "not for a fleet" in text) == (400, True)
    assert servers.call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest())[0] == 400
    reply = asyncio.run(servers.everyone.call("RepositoryModelLoad", b"\xff"))
    assert (reply.status, reply.body) == (400, b"Unable to parse request")


def test_who_asks_is_passed_on(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    with contextlib.ExitStack() as stack:
        servers = Servers(tmp_path, stack, f"--auth-token-file={tokens}", "--auth-open-api=health")
        ask = servers.everyone.ask
        assert asyncio.run(ask("POST", "/v2/repository/models/echo/load", b"")).status == 401
        assert servers.recorded == []
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert asyncio.run(ask("POST", "/v2/repository/models/echo/load?x=1", b"", headers)).status == 200
        assert servers.recorded[-1].headers == headers
        message = pb.RepositoryModelLoadRequest(model_name="echo").SerializeToString()
        assert asyncio.run(servers.everyone.call("RepositoryModelLoad", message)).status == 401
        assert asyncio.run(servers.everyone.call("RepositoryModelLoad", message, headers)).status == 200


def test_nobody_is_there(servers: Servers) -> None:
    servers.servers.clear()
    assert servers.http("POST", "/v2/repository/index") == (503, "no replica answers")
    assert servers.http("GET", "/metrics") == (200, "")


def test_grpc_calls_of_any_method(servers: Servers) -> None:
    async def run() -> None:
        server = grpc.aio.server(handlers=[servers.everyone.grpc_handler()])
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

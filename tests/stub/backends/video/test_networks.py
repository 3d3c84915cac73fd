"""Which machines an address may lead to."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from stubserve_stub.backends.video.networks import Networks
from stubserve_stub.runtime.failure import Refusal


@pytest.mark.parametrize(
    ("networks", "allowed", "refused"),
    [
        (
            "public",
            [
                "8.8.8.8", "1.0.0.1", "192.0.1.1", "223.255.255.255", "2001:4860:4860::8888", "2620:4f:8000::1",
                "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2000::1",
            ],
            [
                "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
                "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%lo", "fd00::1", "::ffff:127.0.0.1",
                "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "ff02::1", "192.0.0.192", "192.0.0.9",
                "192.88.99.1", "198.19.0.1", "240.0.0.1", "64:ff9b:1::1", "64:ff9b:1::7f00:1", "::127.0.0.1",
                "::8.8.8.8", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "fec0::1", "2001::1", "2001:db8::1",
                "2001:20::1", "3fff::1", "100::1", "5f00::1", "4000::1",
            ],
        ),
        ("private", ["10.1.2.3", "172.31.0.1", "192.168.1.1", "fd00::1", "::ffff:10.0.0.1"], ["8.8.8.8", "127.0.0.1"]),
        ("loopback", ["127.0.0.1", "127.9.9.9", "::1"], ["10.0.0.1", "8.8.8.8"]),
        ("192.168.7.0/24, 10.0.0.9", ["192.168.7.255", "10.0.0.9"], ["192.168.8.0", "10.0.0.8", "8.8.8.8"]),
        ("public loopback", ["8.8.8.8", "127.0.0.1"], ["10.0.0.1"]),
    ],
)  # fmt: skip
def test_numbers(networks: str, allowed: list[str], refused: list[str]) -> None:
    found = Networks(networks, "parameter 'networks'")
    assert [number for number in allowed if not found.allow(number)] == []
    assert [number for number in refused if found.allow(number)] == []


@pytest.mark.parametrize("text", ["home", "10.0.0.0/33", "10.0.0.1/8", "public;private"])
def test_what_is_no_network(text: str) -> None:
    with pytest.raises(Refusal, match="parameter 'networks' has networks such as"):
        Networks(text, "parameter 'networks'")


def answers(*numbers: str) -> Any:
    return lambda *args, **more: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, 80)) for number in numbers]


def test_only_what_is_allowed_of_a_name_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = Networks("public", "parameter 'networks'")
    monkeypatch.setattr(socket, "getaddrinfo", answers("10.0.0.1", "8.8.8.8", "8.8.8.8"))
    assert networks.resolve("both.example", 80) == ["8.8.8.8"]
    monkeypatch.setattr(socket, "getaddrinfo", answers("10.0.0.1", "127.0.0.1"))
    with pytest.raises(Refusal, match=r"'inside\.example' is in none of the networks that sources may be in: the"):
        networks.resolve("inside.example", 80)


def test_a_name_with_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them are tried, and share the time."""
    tried = []

    def connect(address: Any, timeout: float) -> None:
        tried.append((address[0], timeout))
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", answers(*(f"8.8.{k % 256}.{k // 256}" for k in range(5000))))
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ConnectionRefusedError):
        Networks("public", "").connect("many.example", 80, 10)
    assert tried == [(f"8.8.{k}.0", 2.5) for k in range(4)]


def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it resolves to afterwards does not matter: the connection goes to the number that was looked at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = []
        resolve = socket.getaddrinfo

        def changing(host: str, *args: Any, **more: Any) -> Any:
            asked.append(host)
            return answers("127.0.0.1")() if len(asked) == 1 else resolve(host, *args, **more)

        monkeypatch.setattr(socket, "getaddrinfo", changing)
        connection = Networks("loopback", "").connect("changing.example", server.getsockname()[1], 10)
        with connection:
            assert asked[0] == "changing.example"
            assert set(asked[1:]) <= {"127.0.0.1"}
            assert connection.getpeername() == server.getsockname()


def test_names_that_do_not_exist() -> None:
    for name in ("does-not-exist.invalid", "a" * 300, "x..y"):
        with pytest.raises(Refusal, match="cannot be resolved"):
            Networks("public", "").resolve(name, 80)

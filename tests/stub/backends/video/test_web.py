"""Reading a source over HTTP from servers that do as they like."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from stubserve_stub.backends.video.networks import Networks
from stubserve_stub.backends.video.web import Web
from stubserve_stub.runtime.failure import Refusal

CONTENT = bytes(range(256)) * 100


class Left(Exception):
    pass


def leave(refusal: Refusal) -> NoReturn:
    raise Left(str(refusal))


@contextlib.contextmanager
def answering(*answers: bytes | Callable[[socket.socket, bytes], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these answers, one a connection: its address, and the requests that it has got."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    head = b""
                    while not head.endswith(b"\r\n\r\n"):
                        head += connection.recv(1)
                    requests.append(head)
                    if callable(answer):
                        answer(connection, head)
                    else:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
        thread.join()


def web(networks: str = "127.0.0.1/32") -> Web:
    return Web(Networks(networks, "parameter 'networks'"), 10, leave)


def whole(file: Any) -> bytes:
    found = b""
    while part := file.read(4096):
        found += part
    return found


def answer(content: bytes, *lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + content


def moved(location: str) -> bytes:
    return answer(b"elsewhere", f"Location: {location}", "Content-Length: 9", status="302 Found")


def test_to_the_end() -> None:
    length = f"Content-Length: {len(CONTENT)}"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
    with answering(answer(CONTENT, length), answer(chunked, "Transfer-Encoding: chunked"), answer(CONTENT)) as (url, _):
        for size in (len(CONTENT), None, None):
            file = web().open(url)
            assert file.size == size
            assert not file.seekable()
            assert whole(file) == CONTENT
            file.close()


def test_it_is_moved_in_by_ranges() -> None:
    lines = ("Accept-Ranges: bytes", f"Content-Length: {len(CONTENT)}")

    def part(connection: socket.socket, head: bytes) -> None:
        start = int(head.partition(b"bytes=")[2].partition(b"-")[0])
        connection.sendall(answer(CONTENT[start:], status="206 Partial Content"))

    with answering(answer(CONTENT[:10], *lines), part, part) as (url, requests):
        file = web().open(url + "/clip")
        assert file.seekable()
        assert file.read(10) == CONTENT[:10]
        assert file.seek(-100, 2) == file.tell() == len(CONTENT) - 100
        assert file.seek(20_000, 0) == 20_000
        assert file.read(50) == CONTENT[20_000:20_050]
        assert file.seek(5, 1) == 20_055
        assert file.read(50) == CONTENT[20_055:20_105]
        with pytest.raises(OSError, match="behind the end"):
            file.seek(1, 2)
        file.close()
    assert [b"Range" in request for request in requests] == [False, True, True]


def test_ranges_that_are_a_lie() -> None:
    lines = ("Accept-Ranges: bytes", f"Content-Length: {len(CONTENT)}")
    with answering(answer(CONTENT, *lines), answer(CONTENT, *lines)) as (url, _):
        file = web().open(url)
        file.seek(10, 0)
        with pytest.raises(OSError, match="the source has no ranges, which it said that it has"):
            file.read(10)
        file.close()


@pytest.mark.parametrize(
    "sent",
    [
        answer(CONTENT[:5000], f"Content-Length: {len(CONTENT)}"),
        answer(b"ffff\r\n" + CONTENT[:5000], "Transfer-Encoding: chunked"),
    ],
)
def test_it_breaks_off(sent: bytes) -> None:
    with answering(sent) as (url, _):
        file = web().open(url)
        with pytest.raises(OSError, match="the source has broken off"):
            whole(file)
        file.close()


@pytest.mark.parametrize("sent", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n"])
def test_it_does_not_speak_http(sent: bytes) -> None:
    with answering(sent) as (url, _), pytest.raises(OSError):  # noqa: PT011
        web().open(url)


def test_a_password_goes_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does anything go through a proxy."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with answering(answer(CONTENT)) as (other, asked), answering(moved(f"{other}/clip?a=b c")) as (url, requests):
        file = web().open(url.replace("//", "//me:p%40ss@"))
        assert whole(file) == CONTENT
        assert file.name == f"{other}/clip?a=b c"
        file.close()
    assert b"Authorization: Basic bWU6cEBzcw==\r\n" in requests[0]
    assert b"Authorization" not in asked[0]
    assert b"me" not in requests[0].partition(b"Authorization")[0].partition(b"Host")[2]
    assert asked[0].startswith(b"GET /clip?a=b%20c HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("http://127.0.0.2:1/", "'127.0.0.2' is in none of the networks"),
        ("http://[::1]:1/", "'::1' is in none of the networks"),
        ("file:///etc/passwd", "an address that is none of http, https"),
        ("ftp://127.0.0.1/x", "an address that is none of http, https"),
        ("http://127.0.0.1:none/", "an address that is none of http, https"),
        ("http://[::1/", "an address that is none of http, https"),
    ],
)
def test_redirects_that_are_not_followed(location: str, text: str) -> None:
    with answering(moved(location)) as (url, _), pytest.raises(Refusal, match=text):
        web().open(url)


def test_an_endless_page_at_a_redirect_is_not_read() -> None:
    def endless(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2/\r\n\r\n")
        with pytest.raises(OSError):  # noqa: PT011, PT012
            while True:
                connection.sendall(CONTENT)

    with answering(endless) as (url, _), pytest.raises(Refusal, match=r"'127\.0\.0\.2' is in none"):
        web().open(url)


def test_a_source_may_ask_so_often_without_a_frame() -> None:
    """The requests of redirects count as well. Afterwards nothing goes out."""
    with answering(*[moved("/again"), answer(CONTENT)] * 50) as (url, requests):
        found = web()
        for _ in range(50):
            found.open(url).close()
        with pytest.raises(Left, match="has led to 100 requests without a frame"):
            found.open(url)
        assert len(requests) == 100


def test_a_frame_is_worth_further_requests() -> None:
    with answering(*[answer(CONTENT)] * 101) as (url, _):
        found = web()
        for _ in range(101):
            found.open(url).close()
            found.asked = 0


def test_a_source_may_lead_to_so_many_machines() -> None:
    found = web("loopback")
    for number in range(1, 22):
        with pytest.raises(Left if number == 21 else OSError):
            found.open(f"http://127.0.0.{number}:1/")

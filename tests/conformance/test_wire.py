"""The raw client, against a peer that answers with prepared bytes."""

import socket
import threading
from collections.abc import Callable

from .wire import Answer, exchange


def _against(reply: bytes, *methods: str, linger: bool = False, expect_close: bool = False) -> Answer:
    """What ``exchange`` makes of a peer that reads one packet, sends ``reply``, and closes unless ``linger``."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1024)
                peer.sendall(reply)
                if linger:
                    done.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            timeout = 0.3 if linger else 30
            return exchange(listener.getsockname()[1], (b"x",), methods or ("GET",), timeout, expect_close)
        finally:
            done.set()
            thread.join()


def _body(answer: Answer) -> bytes:
    assert answer.ending == "read"
    return answer.responses[0].body


def test_framings() -> None:
    assert _body(_against(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")) == b"ab"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n1\r\nb\r\n0\r\nT: 1\r\n\r\n"
    assert _body(_against(chunked)) == b"ab"
    assert _body(_against(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")) == b"until the end"
    assert _body(_against(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD")) == b""


def test_interim_responses_are_kept_apart() -> None:
    answer = _against(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nX: y\r\n\r\n")
    assert (answer.responses[0].status, answer.responses[0].interim) == (204, (100,))
    assert answer.responses[0].header("x") == "y"


def test_what_was_read_before_a_failure_is_kept() -> None:
    answer = _against(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "GET", "GET")
    assert (len(answer.responses), answer.ending) == (1, "early close")


def test_endings() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    endings: dict[str, Callable[[], Answer]] = {
        "closed": lambda: _against(reply, expect_close=True),
        "early close": lambda: _against(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"),
        "timeout": lambda: _against(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", linger=True),
        "malformed: Content-Length '-1'": lambda: _against(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        "malformed: status line 'hello'": lambda: _against(b"hello\r\n\r\n"),
        "malformed: chunk size b'zz'": lambda: _against(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    }
    assert {name: make().ending for name, make in endings.items()} == {name: name for name in endings}


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert exchange(port, (b"x",), ("GET",), 5).ending.startswith("no connection")

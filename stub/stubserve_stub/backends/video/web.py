"""A source at an http or https address, as a file that FFmpeg reads.

FFmpeg has a client for HTTP of its own, which resolves names and follows redirects as it likes. This one connects only
by way of `Networks`, for each redirect and each part of a playlist anew. Proxies of the environment are not used.

The requests of a source are bounded: FFmpeg asks for each variant and each part that a playlist names, whatever became
of those before. A source that wants more is refused for good.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import urllib.parse
from typing import Any, Callable, NoReturn, Set, Tuple

from stubserve_stub.backends.video.networks import Networks
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
# A playlist has up to some ten variants, of which FFmpeg looks at one part each
_MOST_REQUESTS = 100
_MOST_PLACES = 20
_LEFT_AS_IT_IS = "/%:@!$&'()*+,;=?~[]-._"


class Web:
    """Opens addresses. A connection is made within `connect_s`. `refuse` gives the source up, and does not return.

    `asked` is how many requests there were since a frame was decoded.
    """

    def __init__(self, networks: Networks, connect_s: float, refuse: Callable[[Refusal], NoReturn]) -> None:
        self._networks = networks
        self._connect_s = connect_s
        self._refuse = refuse
        self._places: Set[Tuple[str, int]] = set()
        self.asked = 0

    def open(self, url: str) -> "WebFile":
        """Raises Refusal for an address that is not allowed or answers with an error, OSError for one that fails."""
        return WebFile(url, self)

    def request(self, url: str, start: int) -> Any:
        """(the answer to a GET from byte `start` on, the address that redirects have led to)"""
        headers = {"User-Agent": "stubserve", "Accept-Encoding": "identity", "Connection": "close"}
        if start:
            headers["Range"] = f"bytes={start}-"
        # The user and password of the first address go to no other.
        authorization = _authorization(url)
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._get(url, {**headers, **authorization})
            location = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not location:
                if answer.status not in (200, 206):
                    answer.close()
                    text = f"the source answers with {answer.status} {answer.reason}"
                    raise Refusal(text, _code(answer.status))
                return answer, url
            answer.close()
            url, authorization = _joined(url, location), {}
        raise Refusal(f"the source redirects more than {_MOST_REDIRECTS} times", codes.INVALID_ARG)

    def _get(self, url: str, headers: Any) -> http.client.HTTPResponse:
        parts = split(url, _PORTS)
        target = urllib.parse.quote(parts.path or "/", _LEFT_AS_IT_IS)
        if parts.query:
            target += "?" + urllib.parse.quote(parts.query, _LEFT_AS_IT_IS)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        self._count(host, port)
        connection = _Connection(host, port, parts.scheme, self)
        try:
            connection.request("GET", target, headers=headers)
            return connection.getresponse()
        except http.client.HTTPException as error:
            raise OSError(f"the source does not speak HTTP: {error!r}") from None
        finally:
            if connection.sock is not None:
                connection.sock.close()  # for the answer it stays open until that is closed

    def connect(self, host: str, port: int) -> socket.socket:
        return self._networks.connect(host, port, self._connect_s)

    def _count(self, host: str, port: int) -> None:
        self.asked += 1
        self._places.add((host, port))
        if self.asked > _MOST_REQUESTS:
            self._refuse(Refusal(f"the source has led to {_MOST_REQUESTS} requests without a frame", codes.INVALID_ARG))
        if len(self._places) > _MOST_PLACES:
            self._refuse(Refusal(f"the source leads to more than {_MOST_PLACES} machines", codes.INVALID_ARG))


def split(url: str, schemes: Any) -> urllib.parse.SplitResult:
    """The parts of an address. Raises Refusal for one of another scheme, or that is none."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in schemes and parts.hostname and parts.port != 0:
            parts.hostname.encode("idna")
            return parts
    except ValueError:  # a port that is no number, half an IPv6 address, a name that is none
        pass
    raise Refusal(f"a source leads to an address that is none of {', '.join(schemes)}", codes.INVALID_ARG)


def _joined(base: str, location: str) -> str:
    try:
        return urllib.parse.urljoin(base, location)
    except ValueError:
        return location  # which `split` refuses


def _authorization(url: str) -> Any:
    parts = split(url, _PORTS)
    if parts.username is None:
        return {}
    pair = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def _code(status: int) -> int:
    return codes.UNAVAILABLE if status >= 500 or status in (408, 429) else codes.INVALID_ARG


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, scheme: str, web: Web) -> None:
        super().__init__(host, port)
        self.default_port = _PORTS[scheme]
        self._secure = scheme == "https"
        self._web = web

    def connect(self) -> None:
        self.sock = self._web.connect(self.host, self.port)
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


class WebFile:
    """Read by FFmpeg. It can be moved in if the server knows ranges; each move is a request of its own."""

    def __init__(self, url: str, web: Web) -> None:
        self._web = web
        self._at = 0
        self._answer: Any
        # Where redirects have led; FFmpeg resolves the parts of a playlist against it.
        self.name: str
        self._answer, self.name = web.request(url, 0)
        headers = self._answer.headers
        length = headers.get("Content-Length", "")
        self.size = int(length) if length.isdecimal() else None
        self._has_ranges = headers.get("Accept-Ranges", "").lower() == "bytes"

    def seekable(self) -> bool:
        return self._has_ranges and self.size is not None

    def read(self, size: int) -> bytes:
        if self._answer is None:
            self._answer, _ = self._web.request(self.name, self._at)
            if self._at and self._answer.status != 206:
                raise OSError("the source has no ranges, which it said that it has")
        try:
            content: bytes = self._answer.read1(size)
        except http.client.HTTPException as error:
            raise OSError(f"the source has broken off: {error!r}") from None
        if size and not content and self.size is not None and self._at < self.size:
            raise OSError(f"the source has broken off after {self._at} of {self.size} bytes")
        self._at += len(content)
        return content

    def seek(self, offset: int, whence: int) -> int:
        assert self.size is not None
        target = offset + {0: 0, 1: self._at, 2: self.size}[whence]
        if not 0 <= target <= self.size:
            raise OSError("a place behind the end of the source")
        if target != self._at:
            self.close()
            self._at = target
        return target

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

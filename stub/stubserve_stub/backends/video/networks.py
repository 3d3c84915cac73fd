"""The machines that a source's address may lead to.

An address is a request that a client has the server make, perhaps to a machine that only the server can reach. So the
decision is made about the number that is connected to, and not about the name: a name is resolved once, each number is
looked at, and the connection goes to a number that is allowed. A name that resolves to something else the next time, a
redirect, and an unusual way to write a number all pass through here, and none gets around it.

An IPv6 address that has an IPv4 address inside (mapped, 6to4, NAT64) is allowed if that one is. What is public is
listed here, because Python's versions do not agree about it.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Dict, List, Union

from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes

_Ip = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
_Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

# What the registries of IANA do not call globally reachable, and some that have ended
_NOT_PUBLIC = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3", "::/3", "2001::/23", "2001:db8::/32", "3fff::/20", "4000::/2", "8000::/1",
    )
]  # fmt: skip
_NAMED: Dict[str, List[str]] = {
    "public": [],
    "private": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"],
    "loopback": ["127.0.0.0/8", "::1/128"],
}
_MOST_NUMBERS = 4
_LONGEST_NAME = 255
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Networks:
    """`text` has words of `_NAMED` and networks such as 10.1.0.0/16, with blanks or commas between them.

    Raises Refusal for other words; `called` is the parameter's name in errors.
    """

    def __init__(self, text: str, called: str) -> None:
        self._text = text
        self._called = called
        self._networks: List[_Network] = []
        words = text.replace(",", " ").split()
        self._public = "public" in words
        for word in words:
            for network in _NAMED.get(word, [word]):
                try:
                    self._networks.append(ipaddress.ip_network(network))
                except ValueError:
                    raise Refusal(
                        f"{called} has networks such as 192.168.7.0/24, and the words {', '.join(_NAMED)}; got '{word}'"
                    ) from None

    def allow(self, number: str) -> bool:
        """Whether an IP address, as text, may be connected to."""
        ip = _innermost(ipaddress.ip_address(number.partition("%")[0]))
        if self._public and not any(ip in network for network in _NOT_PUBLIC):
            return True
        return any(ip in network for network in self._networks)

    def resolve(self, host: str, port: int) -> List[str]:
        """The IP addresses of a host that may be connected to, as text: some of them where it has many.

        Raises Refusal if there is none.
        """
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Refusal(f"the name '{host[:_LONGEST_NAME]}' cannot be resolved: {error}", codes.UNAVAILABLE) from None
        allowed = [address[0] for _, _, _, _, address in found if self.allow(str(address[0]))]
        if not allowed:
            raise Refusal(
                f"'{host[:_LONGEST_NAME]}' is in none of the networks that sources may be in: the {self._called} is "
                f"'{self._text}'",
                codes.INVALID_ARG,
            )
        return [str(number) for number in dict.fromkeys(allowed)][:_MOST_NUMBERS]

    def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connection to one of the host's addresses. Raises Refusal, and OSError of the last address tried.

        Each has an equal part of the time.
        """
        numbers = self.resolve(host, port)
        for number in numbers:
            try:
                connection = socket.create_connection((number, port), timeout_s / len(numbers))
            except OSError:
                if number == numbers[-1]:
                    raise
            else:
                connection.settimeout(None)
                return connection
        raise AssertionError


def _innermost(ip: _Ip) -> _Ip:
    if not isinstance(ip, ipaddress.IPv6Address):
        return ip
    inner = ip.ipv4_mapped or ip.sixtofour
    if inner is None and ip in _NAT64:
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip if inner is None else inner

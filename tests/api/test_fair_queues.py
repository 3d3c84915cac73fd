"""How clients are told apart."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from stubserve.api.fair_queues import FairQueues, peer_name


@pytest.mark.parametrize(
    ("way", "peer", "sent", "client"),
    [
        ("connection", "10.0.0.1:4000", [b"Bearer a"], "10.0.0.1:4000"),
        ("address", "10.0.0.1:4000", [b"Bearer a"], "10.0.0.1"),
        ("address", "::1:4000", [], "::1"),
        ("token", "10.0.0.1:4000", [b"Bearer a"], b"a"),
        ("token", "10.0.0.1:4000", [b"bEARER   a  "], b"a"),
        ("token", "10.0.0.1:4000", [b"Basic a"], "10.0.0.1"),
        ("token", "10.0.0.1:4000", [], "10.0.0.1"),
        ("token", "10.0.0.1:4000", [b"Bearer a", b"Bearer b"], "10.0.0.1"),
    ],
)
def test_who_asks(way: str, peer: str, sent: Collection[bytes], client: object) -> None:
    assert FairQueues(way).client_of(peer, lambda: sent) == client


@pytest.mark.parametrize(
    ("peername", "name"), [(("127.0.0.1", 80), "127.0.0.1:80"), (("::1", 80, 0, 0), "::1:80"), ("", ""), (None, "")]
)
def test_names_of_peers(peername: object, name: str) -> None:
    assert peer_name(peername) == name

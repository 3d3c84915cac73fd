"""What a worker knows of models, and which of its requests it says it has checked."""

from __future__ import annotations

from typing import Any, cast

from stubserve.inference.request import Request, unanswered
from stubserve.ingress.catalogue import Described, RemoteModel
from tests.inference.models import echo


class Line:
    """Keeps the descriptions by which requests are said to have been checked."""

    def __init__(self) -> None:
        self.descriptions: list[int] = []

    def submit(self, request: Request, model: str, version: str, description: int, context: str | None) -> None:
        self.descriptions.append(description)


def test_a_request_is_checked_by_its_owner_once_another_model_is_described() -> None:
    """An answer of the one before comes with that one's description: requests are checked by it from then on."""
    line = Line()
    described = Described(echo("m", "FP32", "-1"), 2)
    model = RemoteModel(cast(Any, line), "m", "", described)
    model.submit(Request([], unanswered))
    described.signature, described.number = echo("m", "STRING", "-1"), 1
    model.submit(Request([], unanswered))
    assert line.descriptions == [2, 0]

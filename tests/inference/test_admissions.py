from __future__ import annotations

import pytest

from stubserve.errors import ServeError
from stubserve.inference import admissions
from stubserve.inference.admissions import admit_as_before

from .models import echo, request, zeros

BATCHED = "max_batch_size: 4"


def test_a_form_that_was_admitted_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = echo("m", "FP32", "-1", BATCHED)
    looked = []
    real = admissions.admit
    monkeypatch.setattr(admissions, "admit", lambda *given: (looked.append(1), real(*given)))
    for _ in range(3):
        one = request(zeros("IN", (2, 3)))
        admit_as_before(one, model)
        assert one.admitted
        assert one.batch_size == 2
    assert len(looked) == 1
    other = request(zeros("IN", (3, 3)))
    admit_as_before(other, model)
    assert (other.batch_size, len(looked)) == (3, 2)


def test_what_was_refused_is_refused_again() -> None:
    model = echo("m", "FP32", "-1", BATCHED)
    for _ in range(2):
        with pytest.raises(ServeError, match="batch-size must be <= 4"):
            admit_as_before(request(zeros("IN", (5, 3))), model)


def test_the_same_form_with_other_outputs_is_another() -> None:
    model = echo("m", "FP32", "-1", BATCHED)
    admit_as_before(request(zeros("IN", (1, 3)), requested_outputs=["OUT"]), model)
    with pytest.raises(ServeError, match="unexpected inference output 'NO'"):
        admit_as_before(request(zeros("IN", (1, 3)), requested_outputs=["NO"]), model)


def test_strings_are_looked_at_every_time() -> None:
    model = echo("m", "STRING", "-1")
    fine = request(zeros("IN", (1,), 13))  # one element of length 0
    admit_as_before(fine, model)
    broken = request(zeros("IN", (1,), 13))
    broken.inputs[0].data = b"\xff\x00\x00\x00"
    with pytest.raises(ServeError):
        admit_as_before(broken, model)


def test_forms_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "FORMS", 3)
    forms: dict[int, str] = {}
    for key in range(5):
        admissions.remember(forms, key, str(key))
    assert forms == {2: "2", 3: "3", 4: "4"}

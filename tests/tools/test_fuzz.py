"""The fuzz targets on their seeds and on some hundred inputs made of them, always the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.test_balancers import haproxy
from tools.fuzz import finding, mutation, targets
from tools.fuzz.finding import Finding, Findings

INPUTS = 300


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name == "front" else []) for name in targets.NAMES]
)
def test_nothing_is_found(name: str, tmp_path: Path) -> None:
    target = targets.load(name)
    if name == "front" and not haproxy():
        pytest.skip("needs HAProxy")
    findings = Findings(tmp_path)
    with targets.running(target):
        for data in mutation.inputs(target.SEEDS, target.WORDS, INPUTS):
            findings.examine(target.fuzz_one, data)
    assert findings.inputs == {}, [path.read_text() for path in tmp_path.glob("*.txt")]


@pytest.mark.parametrize("name", targets.NAMES)
def test_the_same_inputs_every_time(name: str) -> None:
    target = targets.load(name)
    runs = [list(mutation.inputs(target.SEEDS, target.WORDS, 50)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 30


def test_each_defect_is_kept_once_with_its_shortest_input(tmp_path: Path) -> None:
    def fuzz_one(data: bytes) -> None:
        if len(data) > 3:
            raise Finding("too long", str(len(data)))
        data.decode()

    findings = Findings(tmp_path)
    for data in (b"abcdef", b"\xff\xff", b"abcd", b"abcdefg", b"abc", b"\xff"):
        findings.examine(fuzz_one, data)
    found = dict(finding.read(tmp_path))
    assert found.pop("too long") == b"abcd"
    ((what, data),) = found.items()
    assert what.startswith("UnicodeDecodeError in ")
    assert data == b"\xff"


def test_what_grows_faster_than_its_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "BASE_S", 0.02)

    def slow(data: bytes) -> None:
        sum(range(5_000_000))

    def large(data: bytes) -> None:
        bytearray(64 << 20)

    with pytest.raises(Finding, match="it takes too long"):
        finding.bounded(slow, b"a")
    monkeypatch.setattr(finding, "BASE_S", 60.0)
    with pytest.raises(Finding, match="it takes too much memory"):
        finding.bounded(large, b"")

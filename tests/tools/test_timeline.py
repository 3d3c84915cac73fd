"""The picture of a pipeline: what it is drawn from, and that a real run gives one."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tools import timeline
from tools.timeline import Bar


def step(model: str, inputs: str, output: str) -> dict[str, object]:
    return {
        "model_name": model,
        "input_map": {f"IN{number}": tensor for number, tensor in enumerate(inputs.split())},
        "output_map": {"OUT": output},
    }


def test_a_step_begins_when_all_that_it_reads_is_there() -> None:
    steps = [step("join", "b c", "OUT"), step("long", "a", "b"), step("short", "a", "c"), step("first", "IN", "a")]
    phases = [phase for phase, _ in timeline.PHASES]
    means = {
        name: dict(zip(phases, times, strict=True))
        for name, times in {
            "first": (1.0, 1.0, 5.0, 1.0),
            "long": (0.0, 1.0, 20.0, 1.0),
            "short": (2.0, 1.0, 3.0, 1.0),
            "join": (0.0, 0.0, 2.0, 0.0),
        }.items()
    }
    assert [(bar.name, bar.begin, bar.end) for bar in timeline.bars(steps, means)] == [
        ("first", 0.0, 8.0),
        ("long", 8.0, 30.0),
        ("short", 8.0, 15.0),
        ("join", 30.0, 32.0),
    ]


def test_what_the_steps_do_not_explain_is_shown_as_such() -> None:
    picture = timeline.svg("a<b", 1234, 100.0, [Bar("one", 0.0, (10.0, 0.0, 50.0, 0.0))])
    root = ElementTree.fromstring(picture)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:3] == ["a<b: mean of 1,234 requests, 100 µs", "one", "60 µs"]
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "between 40 µs" in titles


@pytest.mark.slow
def test_a_real_run() -> None:
    root = ElementTree.fromstring(timeline.demonstrate(0.5, 2))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(timeline.DEMO_STEPS) <= set(texts)

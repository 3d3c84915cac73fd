"""Draws where the time of requests to an ensemble goes: `python -m tools.timeline --help`.

What is measured are the statistics of the ensemble and its members at two moments; the picture shows means over the
requests in between. A step's bar has its queue, and input, compute and output as `/v2/models/NAME/stats` counts them.
When a step began is not measured: it is drawn where the steps whose tensors it reads end. What is left of the
ensemble's own time is the last bar: the server's work between steps, with waiting for a processor. The mean of a model
that others ask as well, or that is several steps, is that of all its requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import repository, servers
from tools.bench.servers import Server

PHASES = [
    ("queue", "#c9ced6"),
    ("compute_input", "#8fb8de"),
    ("compute_infer", "#2f6db3"),
    ("compute_output", "#8fb8de"),
]
BETWEEN = "#e3b341"
DEMO = "timeline_demo"
# Milliseconds that each model of the demonstration computes
DEMO_STEPS = {"decode": 2, "detect": 6, "classify": 3, "join": 1}
WIDTH, LABELS, ROW, BAR = 960, 190, 34, 18


@dataclass(frozen=True)
class Bar:
    """A step, from when on it is drawn, and its phases as they follow each other. Microseconds."""

    name: str
    begin: float
    phases: tuple[float, ...]

    @property
    def end(self) -> float:
        return self.begin + sum(self.phases)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.timeline", description=__doc__.partition("\n\n")[0])
    parser.add_argument("ensemble", nargs="?", help="the ensemble to look at, on a server that is asked by somebody")
    parser.add_argument("--url", default="127.0.0.1:8000", help="that server's HTTP (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="how long to look (default: %(default)s)")
    parser.add_argument(
        "--demo", action="store_true", help="start a server with an ensemble of sleeping models instead"
    )
    parser.add_argument(
        "--connections", type=int, default=4, help="clients of the demonstration (default: %(default)s)"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("timeline.svg"))
    options = parser.parse_args()
    if options.demo:
        text = demonstrate(options.seconds, options.connections)
    elif options.ensemble:
        text = look(options.url, options.ensemble, lambda: time.sleep(options.seconds))
    else:
        parser.error("which ensemble? Or --demo")
    options.output.write_text(text)
    print(f"written to {options.output}", file=sys.stderr)


def look(url: str, ensemble: str, meanwhile: Callable[[], None]) -> str:
    """The picture of the requests that a server answers while `meanwhile` runs."""
    config = get(url, f"/v2/models/{ensemble}/config")
    steps = config["ensemble_scheduling"]["step"]
    names = [ensemble, *dict.fromkeys(step["model_name"] for step in steps)]
    before = {name: statistics(url, name) for name in names}
    meanwhile()
    means = {}
    for name in names:
        now = statistics(url, name)
        count = now["success"]["count"] - before[name]["success"]["count"]
        if not count:
            sys.exit(f"no request to '{name}' has succeeded meanwhile")
        means[name] = {key: (now[key]["ns"] - before[name][key]["ns"]) / count / 1000 for key in now}
        if name == ensemble:
            requests = count
    return svg(ensemble, requests, means[ensemble]["success"], bars(steps, means))


def bars(steps: Sequence[dict[str, Any]], means: dict[str, dict[str, float]]) -> list[Bar]:
    """Each step begins when the last tensor that it reads is there."""
    ends: dict[str, float] = {}
    found: list[Bar] = []
    left = list(steps)
    made = {tensor for step in steps for tensor in step["output_map"].values()}
    while left:
        step = next(one for one in left if all(t in ends or t not in made for t in one["input_map"].values()))
        left.remove(step)
        begin = max((ends.get(tensor, 0.0) for tensor in step["input_map"].values()), default=0.0)
        mean = means[step["model_name"]]
        bar = Bar(step["model_name"], begin, tuple(mean[phase] for phase, _ in PHASES))
        found.append(bar)
        ends.update(dict.fromkeys(step["output_map"].values(), bar.end))
    return found


def svg(ensemble: str, requests: int, total: float, steps: Sequence[Bar]) -> str:
    """The picture, in `total` microseconds from left to right."""
    path = max(bar.end for bar in steps)
    longest = max(total, path)

    def x(at: float) -> float:
        return LABELS + at / longest * (WIDTH - LABELS - 20)

    height = 60 + ROW * (len(steps) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="24" font-size="15">{escape(ensemble)}: mean of {requests:,} requests, {total:,.0f} µs</text>',
    ]
    for row, bar in enumerate(steps):
        y = 44 + row * ROW
        lines.append(f'<text x="10" y="{y + 14}">{escape(bar.name)}</text>')
        at = bar.begin
        for (phase, colour), length in zip(PHASES, bar.phases, strict=True):
            lines.append(_rect(x(at), y, x(at + length) - x(at), colour, f"{phase} {length:,.0f} µs"))
            at += length
        lines.append(
            f'<text x="{min(x(bar.end) + 6, WIDTH - 70):.1f}" y="{y + 14}">{bar.end - bar.begin:,.0f} µs</text>'
        )
    y = 44 + len(steps) * ROW
    lines.append(f'<text x="10" y="{y + 14}">between the steps</text>')
    rest = max(total - path, 0.0)
    lines.append(_rect(x(path), y, x(path + rest) - x(path), BETWEEN, f"between {rest:,.0f} µs"))
    lines.append(f'<text x="{min(x(path + rest) + 6, WIDTH - 70):.1f}" y="{y + 14}">{rest:,.0f} µs</text>')
    y += ROW + 4
    legend = [("queue", PHASES[0][1]), ("input and output", PHASES[1][1]), ("compute", PHASES[2][1])]
    for number, (word, colour) in enumerate(legend):
        lines.append(_rect(LABELS + number * 150, y, 14, colour, word))
        lines.append(f'<text x="{LABELS + number * 150 + 20}" y="{y + 14}">{word}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _rect(x: float, y: float, width: float, colour: str, title: str) -> str:
    shape = f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.3):.1f}" height="{BAR}" fill="{colour}">'
    return f"{shape}<title>{escape(title)}</title></rect>"


def demonstrate(seconds: float, connections: int) -> str:
    """The picture of models that sleep: decode, two side by side, and one that joins them."""
    with tempfile.TemporaryDirectory(prefix="stubserve-timeline-") as folder:
        write_demo(Path(folder, "models"))
        program = servers.stubserve(Path(sys.executable))
        with Server(program, Path(folder, "models"), Path(folder, "log")) as server:
            url = f"127.0.0.1:{server.http_port}"
            return look(url, DEMO, lambda: ask(server, time.monotonic() + seconds, connections))


def write_demo(folder: Path) -> None:
    for name, ms in DEMO_STEPS.items():
        code = repository.JOINING if name == "join" else repository.IDENTITY
        code = f"import time\n\n{code}".replace(
            "        responses = []\n", f"        time.sleep({ms / 1000})\n        responses = []\n"
        )
        if name == "join":
            repository.write_configured(folder, name, code, repository.JOINING_CONFIG)
        else:
            repository.write_model(folder, name, code=code)
    steps = [
        ("decode", {"INPUT0": "INPUT0"}, "pixels"),
        ("detect", {"INPUT0": "pixels"}, "boxes"),
        ("classify", {"INPUT0": "pixels"}, "classes"),
        ("join", {"A": "boxes", "B": "classes", "C": "pixels", "D": "pixels"}, "OUTPUT0"),
    ]
    repository.write_ensemble(folder, DEMO, steps)


def ask(server: Server, until: float, connections: int) -> None:
    values = np.arange(16, dtype=np.float32)
    document = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": values.tolist()}

    def client() -> None:
        while time.monotonic() < until:
            server.post(f"/v2/models/{DEMO}/infer", {"inputs": [document]})

    threads = [threading.Thread(target=client) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def statistics(url: str, model: str) -> dict[str, Any]:
    found: dict[str, Any] = get(url, f"/v2/models/{model}/stats")["model_stats"][0]["inference_stats"]
    return found


def get(url: str, path: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(url, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        sys.exit(f"{path}: status {response.status}: {body[:300]!r}")
    document: dict[str, Any] = json.loads(body)
    return document


if __name__ == "__main__":
    main()

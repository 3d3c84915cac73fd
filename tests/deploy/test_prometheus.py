"""The rules for Prometheus and the dashboard: what they name exists, and a real Prometheus acts on the rules."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stubserve.observability.families import RESERVED
from tests.real_server import Serving, eventually, io_config, write_model

DEPLOY = Path(__file__).parents[2] / "src" / "stubserve" / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"


FAILS = """
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError("not today")
"""


SLOW = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(0.02)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(
                request, "INPUT0").as_numpy())]) for request in requests]
"""


def named(text: str) -> set[str]:
    """The families that expressions name."""
    found = set(re.findall(r"\b(?:nv|stubserve)_\w+", text))
    return {name if name in RESERVED else re.sub("_(bucket|sum|count)$", "", name) for name in found}


def test_rules_and_panels_name_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= 14
    for text in (RULES.read_text(), *expressions):
        assert named(text) <= set(RESERVED), text
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_takes_the_rules() -> None:
    for words in (["rules", RULES], ["config", DEPLOY / "prometheus" / "prometheus.yml"]):
        done = subprocess.run(["promtool", "check", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_expression_of_the_dashboard_is_one(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool")
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m").replace("$__all", ".*")}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A Prometheus that scrapes a server every second, with the configuration that is deployed; a context manager."""

    def __init__(self, server: Serving, folder: Path) -> None:
        config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        config = config.replace("localhost:8002", f"127.0.0.1:{server.metrics_port}").replace("5s", "1s")
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(RULES, folder)
        self._said = folder / "log"
        self._command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        self._command.append("--web.listen-address=127.0.0.1:0")

    def __enter__(self) -> Prometheus:
        with self._said.open("w") as log:
            self._process = subprocess.Popen(self._command, stderr=log)
        try:
            eventually(lambda: "Server is ready to receive web requests" in self._said.read_text())
            found = re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", self._said.read_text())
            assert found is not None
            self._address = found[1]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]


needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")


@needs_prometheus
def test_an_alert_fires_when_a_stub_is_killed(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as server, Prometheus(server, tmp_path) as prometheus:

        def restarts() -> Any:
            return prometheus.ask("query", query="stubserve_instance_restarts_total[1m]")["result"]

        def firing() -> list[Any]:
            return [one for one in prometheus.ask("alerts")["alerts"] if one["state"] == "firing"]

        # Two scrapes with the restarts at 0, so that Prometheus sees them grow.
        eventually(lambda: any(len(series["values"]) > 1 for series in restarts()))
        assert prometheus.ask("alerts")["alerts"] == []
        (pid,) = server.stub_pids()
        os.kill(pid, signal.SIGKILL)
        (alert,) = eventually(firing)
        assert alert["labels"]["alertname"] == "StubserveStubDied"
        assert alert["labels"]["model"] == "echo"


@needs_prometheus
def test_the_demand_of_a_full_server(repository: Path, tmp_path: Path) -> None:
    """One instance, 20 ms a request, and four clients that ask one after the other: it is full, and no more arrives."""
    write_model(repository, "slow", SLOW, io_config("FP32", "1", 8))

    def demand(prometheus: Prometheus) -> float:
        (found,) = prometheus.ask("query", query="stubserve:demand")["result"] or [{"value": (0, "0")}]
        return float(found["value"][1])

    with Serving(repository) as server, Prometheus(server, tmp_path) as prometheus:
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                assert server.infer_array("slow", np.zeros((1, 1), np.float32)).status == 200

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            # The rates are those of a minute, of which the first seconds have nothing.
            told = eventually(lambda: demand(prometheus) > 0.8 and demand(prometheus), 90)
        finally:
            over.set()
            for client in clients:
                client.join()
        assert told < 1.1
        eventually(lambda: demand(prometheus) < 0.2, 90)


@needs_prometheus
def test_every_panel_has_something_to_show(repository: Path, tmp_path: Path) -> None:
    """Each expression of the dashboard is a number when a server answers and fails."""
    write_model(repository, "echo", config=io_config(max_batch_size=4))
    write_model(repository, "fails", FAILS)
    dashboard = json.loads(DASHBOARD.read_text())
    missing = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    with Serving(repository) as server, Prometheus(server, tmp_path) as prometheus:

        def all_shown() -> bool:
            server.infer_array("echo", np.ones((1, 3), np.float32))
            server.infer_array("fails", np.ones(3, np.float32))
            for expression in list(missing):
                query = expression.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$model", ".*")
                found = prometheus.ask("query", query=query)["result"]
                if any(math.isfinite(float(one["value"][1])) for one in found):
                    missing.discard(expression)
            return not missing

        eventually(all_shown)
        variables = {one["name"]: one for one in dashboard["templating"]["list"]}
        for name, labels in (("job", {"stubserve"}), ("model", {"echo", "fails"})):
            series, labelled = re.fullmatch(r"label_values\((.*), (\w+)\)", variables[name]["definition"]).groups()  # type: ignore[union-attr]
            assert labelled == name
            found = prometheus.ask("series", **{"match[]": series.replace("$job", ".*")})
            assert {one[name] for one in found} == labels

"""Prometheus' rules and Grafana's dashboard in deploy/: what they name exists, and a real Prometheus acts on them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stubserve.observability.metrics import RESERVED
from tests.real_server import Serving, eventually, write_model

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"


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


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")
def test_an_alert_fires_when_a_stub_is_killed(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "echo")
    with Serving(repository) as server:
        config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        config = config.replace("localhost:8002", f"127.0.0.1:{server.metrics_port}").replace("5s", "1s")
        (tmp_path / "prometheus.yml").write_text(config)
        shutil.copy(RULES, tmp_path)
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        log = (tmp_path / "log").open("w+")
        process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stderr=log)
        try:
            said = tmp_path / "log"
            eventually(lambda: "Server is ready to receive web requests" in said.read_text())
            found = re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", said.read_text())
            assert found is not None
            address = found[1]

            def ask(path: str) -> Any:
                with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=30) as answer:
                    return json.load(answer)["data"]

            # Two scrapes with the restarts at 0, so that Prometheus sees them grow.
            restarts = "query?query=stubserve_instance_restarts_total[1m]"
            eventually(lambda: any(len(series["values"]) > 1 for series in ask(restarts)["result"]))
            assert ask("alerts")["alerts"] == []
            (pid,) = server.stub_pids()
            os.kill(pid, signal.SIGKILL)
            (alert,) = eventually(lambda: [one for one in ask("alerts")["alerts"] if one["state"] == "firing"])
            assert alert["labels"]["alertname"] == "StubserveStubDied"
            assert alert["labels"]["model"] == "echo"
        finally:
            process.kill()
            process.wait()
            log.close()

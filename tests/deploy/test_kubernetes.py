"""The manifests: by the schemas of their projects, and by what they say about this server. No cluster is asked.

The schemas are large, so `make test-deploy` brings them: those of Kubernetes in the package kubernetes-validate, those
of KEDA and of the Gateway API in packages of npm (the folder in KUBERNETES_MODELS), those of KServe as the classes of
its SDK, of which only the tables of fields are read (the folder in KSERVE_SDK).
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stubserve.flags import parse_arguments
from stubserve.fleet.demand import AIM
from tools.reference.routes import http_routes

yaml = pytest.importorskip("yaml", reason="make test-deploy installs it")

DEPLOY = Path(__file__).parents[2] / "src" / "stubserve" / "deploy"
OPERATORS = [DEPLOY / "kubernetes" / f"{name}.yaml" for name in ("autoscaler", "gateway")]
MANIFESTS = sorted({*DEPLOY.glob("kubernetes/*.yaml")} - {*OPERATORS})
RUNTIME = DEPLOY / "kserve" / "serving-runtime.yaml"


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def secured(path: Path) -> Any:
    """The manifest with its lines for tokens and TLS."""
    text = path.read_text()
    assert "#+ " in text
    return yaml.safe_load(text.replace("#+ ", ""))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_would_take_it(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(document(path), validate.latest_version(), strict=True)


def test_a_wrong_field_is_found() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    wrong = document(DEPLOY / "kubernetes" / "deployment.yaml")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProbes"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, validate.latest_version(), strict=True)


def test_kubernetes_would_take_the_runtimes_container() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "runtime"}}
    pod["spec"] = {"containers": document(RUNTIME)["spec"]["containers"]}  # type: ignore[assignment]
    validate.validate(pod, validate.latest_version(), strict=True)


@pytest.mark.skipif("KUBERNETES_MODELS" not in os.environ, reason="make test-deploy fetches the schemas")
def test_keda_and_the_gateway_api_would_take_theirs() -> None:
    documents = [one for path in OPERATORS for one in yaml.safe_load_all(path.read_text())]
    command = ["node", str(Path(__file__).with_name("validate_manifests.js"))]
    subprocess.run(command, input=json.dumps(documents), text=True, check=True)
    del documents[0]["spec"]["triggers"]
    wrong = subprocess.run(command, input=json.dumps(documents), text=True, check=False, capture_output=True)
    assert "must have required property triggers" in wrong.stderr


class Sdk:
    """Tables of fields in KServe's SDK: class -> field as it is written -> type."""

    def __init__(self, folder: Path) -> None:
        self._fields: dict[str, dict[str, str]] = {}
        for path in (folder / "kserve" / "models").glob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    tables = {
                        target.id: ast.literal_eval(part.value)
                        for part in node.body
                        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Dict)
                        for target in part.targets
                        if isinstance(target, ast.Name)
                    }
                    types, names = tables["openapi_types"], tables["attribute_map"]
                    self._fields[node.name] = {names[name]: types[name] for name in types}

    def check(self, kind: str, given: Any) -> None:
        """Raises AssertionError for a field that the class has not. What is not KServe's own is left alone."""
        listed = re.fullmatch(r"list\[(.*)\]", kind)
        if listed is not None:
            for one in given:
                self.check(listed[1], one)
        elif kind in self._fields:
            for name, value in given.items():
                assert name in self._fields[kind], f"{kind} has no {name}"
                self.check(self._fields[kind][name], value)


@pytest.mark.skipif("KSERVE_SDK" not in os.environ, reason="make test-deploy fetches KServe's SDK")
def test_kserve_would_take_it() -> None:
    sdk = Sdk(Path(os.environ["KSERVE_SDK"]))
    sdk.check("V1alpha1ClusterServingRuntime", document(RUNTIME))
    sdk.check("V1beta1InferenceService", document(DEPLOY / "kserve" / "inference-service.yaml"))
    with pytest.raises(AssertionError, match="has no modelFormats"):
        sdk.check("V1alpha1ServingRuntimeSpec", {"modelFormats": []})


def test_they_would_be_taken_with_tokens_and_tls() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    deployment, runtime = secured(DEPLOY / "kubernetes" / "deployment.yaml"), secured(RUNTIME)["spec"]
    validate.validate(deployment, validate.latest_version(), strict=True)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "runtime"}}
    pod["spec"] = {"containers": runtime["containers"], "volumes": runtime["volumes"]}
    validate.validate(pod, validate.latest_version(), strict=True)


def containers() -> list[Any]:
    return [
        container
        for read in (document, secured)
        for spec in (read(DEPLOY / "kubernetes" / "deployment.yaml")["spec"]["template"]["spec"], read(RUNTIME)["spec"])
        for container in spec["containers"]
    ]


@pytest.mark.parametrize("container", containers(), ids=lambda container: container["name"])
def test_command_line_ports_and_probes_fit_each_other(container: Any) -> None:
    settings = parse_arguments(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(ports.values()) <= {settings.http.port, settings.grpc.port, settings.metrics.port}
    probes = [container[name]["httpGet"] for name in container if name.endswith("Probe")]
    for probe in probes:
        assert probe["path"] in http_routes()
        assert ports.get(probe["port"], probe["port"]) == settings.http.port
        assert (probe.get("scheme") == "HTTPS") == (settings.http.tls is not None)
    mounted = tuple(one["mountPath"] + "/" for one in container.get("volumeMounts", []))
    if settings.auth.token_file is not None:
        assert str(settings.auth.token_file).startswith(mounted)
        assert "health" in settings.auth.open_kinds
    assert (settings.http.tls is None) == (settings.grpc.tls is None)


def test_a_pod_has_the_time_that_its_server_takes_to_stop() -> None:
    pod = document(DEPLOY / "kubernetes" / "deployment.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    shell, _, script = container["lifecycle"]["preStop"]["exec"]["command"]
    drained, pause = script.split("; sleep ")
    assert (shell, drained) == ("sh", f"kill -{signal.SIGUSR1.name.removeprefix('SIG')} 1")
    assert pod["terminationGracePeriodSeconds"] > int(pause) + parse_arguments(container["args"]).exit_timeout_secs


def test_the_autoscaler_looks_at_a_rule_that_there_is() -> None:
    (trigger,) = document(OPERATORS[0])["spec"]["triggers"]
    (rule,) = re.findall(r"stubserve:\w+", trigger["metadata"]["query"])
    groups = document(DEPLOY / "prometheus" / "rules.yml")["groups"]
    assert rule in {one.get("record") for group in groups for one in group["rules"]}
    assert float(trigger["metadata"]["threshold"]) == AIM


def test_the_parts_name_each_other() -> None:
    deployment = document(DEPLOY / "kubernetes" / "deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert document(DEPLOY / "kubernetes" / "service.yaml")["spec"]["selector"].items() <= labels.items()
    budget = document(DEPLOY / "kubernetes" / "disruption.yaml")["spec"]["selector"]["matchLabels"]
    assert budget.items() <= labels.items()
    assert document(OPERATORS[0])["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    service = document(DEPLOY / "kubernetes" / "service.yaml")
    ports = {port["port"] for port in service["spec"]["ports"]}
    _, *routes = yaml.safe_load_all(OPERATORS[1].read_text())
    for route in routes:
        for backend in (one for rule in route["spec"]["rules"] for one in rule["backendRefs"]):
            assert backend["name"] == service["metadata"]["name"]
            assert backend["port"] in ports
    model = document(DEPLOY / "kserve" / "inference-service.yaml")["spec"]["predictor"]["model"]
    runtime = document(RUNTIME)
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {one["name"] for one in runtime["spec"]["supportedModelFormats"]}

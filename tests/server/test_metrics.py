"""The metrics port: the server's own metrics, and those that models make."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stubserve.observability.families import RESERVED
from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, binary_request, io_config, write_model

# Runs each request's text and answers with what it leaves in `result`.
WORKBENCH = """
    import json
    import urllib.request
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            family = pb_utils.MetricFamily("shared_total", "by all instances", pb_utils.MetricFamily.COUNTER)
            metric = family.Metric(labels={"kind": "test"})
            self.names = {"pb_utils": pb_utils, "family": family, "metric": metric, "args": args, "fetch": fetch}

        def execute(self, requests):
            responses = []
            for request in requests:
                source = request.inputs()[0].as_numpy().reshape(-1)[0].decode()
                exec(source, self.names)
                result = np.array([str(self.names.pop("result", ""))], object)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", result)]))
            return responses

        def finalize(self):
            self.names["metric"].increment(1)

    def fetch(port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.read().decode()
"""

BUSY = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.family = pb_utils.MetricFamily("progress", "of a long batch", pb_utils.MetricFamily.GAUGE)
            self.metric = self.family.Metric()

        def execute(self, requests):
            self.metric.set(1)
            while not requests[0].is_cancelled():
                time.sleep(0.01)
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""

DIES = """
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError("no")
"""


def text_config(instances: int) -> str:
    return io_config("STRING", "1", extra=f"instance_group [ {{ count: {instances} kind: KIND_CPU }} ]")


def run(server: Serving, source: str, model: str = "bench") -> str:
    """Has the model run `source`; what it says."""
    inputs = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [source]}]
    answer = server.infer_json(model, inputs)
    assert answer.status == 200, answer
    result: str = answer.json()["outputs"][0]["data"][0]
    return result


def samples(answer: Answer) -> dict[str, float]:
    """All samples by name and labels as printed."""
    assert answer.status == 200
    list(text_string_to_metric_families(answer.body.decode()))
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


MODEL = {"model", "version"}
INSTANCE = {*MODEL, "instance"}
# Dashboards and rules go by these: a name or a label that changes breaks them. Kind and labels by name.
FAMILIES = {
    "nv_inference_request_success": ("counter", MODEL),
    "nv_inference_request_failure": ("counter", {*MODEL, "reason"}),
    "stubserve_response_errors_total": ("counter", {*MODEL, "code"}),
    "nv_inference_count": ("counter", MODEL),
    "nv_inference_exec_count": ("counter", MODEL),
    "nv_inference_request_duration_us": ("counter", MODEL),
    "nv_inference_queue_duration_us": ("counter", MODEL),
    "nv_inference_compute_input_duration_us": ("counter", MODEL),
    "nv_inference_compute_infer_duration_us": ("counter", MODEL),
    "nv_inference_compute_output_duration_us": ("counter", MODEL),
    "nv_inference_pending_request_count": ("gauge", MODEL),
    "nv_model_load_duration_secs": ("gauge", MODEL),
    "nv_inference_first_response_histogram_ms": ("histogram", {*MODEL, "le"}),
    "nv_inference_request_summary_us": ("summary", {*MODEL, "quantile"}),
    "nv_inference_queue_summary_us": ("summary", {*MODEL, "quantile"}),
    "nv_inference_compute_input_summary_us": ("summary", {*MODEL, "quantile"}),
    "nv_inference_compute_infer_summary_us": ("summary", {*MODEL, "quantile"}),
    "nv_inference_compute_output_summary_us": ("summary", {*MODEL, "quantile"}),
    "nv_pinned_memory_pool_total_bytes": ("gauge", set()),
    "nv_pinned_memory_pool_used_bytes": ("gauge", set()),
    "nv_cpu_utilization": ("gauge", set()),
    "nv_cpu_memory_total_bytes": ("gauge", set()),
    "nv_cpu_memory_used_bytes": ("gauge", set()),
    "stubserve_instance_restarts_total": ("counter", INSTANCE),
    "stubserve_instance_ready": ("gauge", INSTANCE),
    "stubserve_instance_failed": ("gauge", INSTANCE),
    "stubserve_instance_batch_limit": ("gauge", INSTANCE),
    "stubserve_instance_memory_bytes": ("gauge", INSTANCE),
    "stubserve_instance_arena_bytes": ("gauge", INSTANCE),
    "stubserve_instance_batches": ("gauge", INSTANCE),
    "stubserve_instance_requests": ("gauge", INSTANCE),
    "stubserve_instance_executing_seconds": ("gauge", INSTANCE),
    "stubserve_batch_size": ("histogram", {*MODEL, "le"}),
    "stubserve_memory_pressure": ("gauge", set()),
    "stubserve_requests_shed_total": ("counter", set()),
    "stubserve_traces_lost_total": ("counter", set()),
    "stubserve_log_lines_lost_total": ("counter", set()),
    "stubserve_token_file_reads_total": ("counter", set()),
    "stubserve_token_file_failures_total": ("counter", set()),
    "stubserve_arena_limit_bytes": ("gauge", set()),
    "stubserve_arena_committed_bytes": ("gauge", {"owner"}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "bench", WORKBENCH, text_config(2))
    write_model(repository, "single", WORKBENCH, text_config(1))
    write_model(repository, "echo", config=io_config(max_batch_size=8, extra='metric_tags { key: "team" value: "a" }'))
    write_model(repository, "dies", DIES)
    flags = ("--metrics-config=summary_latencies=true", "--metrics-config=histogram_latencies=true")
    with Serving(repository, *flags) as running:
        yield running


def test_the_port(server: Serving) -> None:
    for path in ("/metrics", "/metrics/", "/metrics?x=1"):
        answer = server.metrics(path)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert b"nv_inference_count" in answer.body
    for path in ("/metrics//", "/v2", "/status"):
        answer = server.metrics(path)
        assert (answer.status, answer.body) == (200, b"")
    answer = server.metrics("/metrics", "POST")
    assert (answer.status, answer.error) == (405, "Method Not Allowed")
    assert server.get("/metrics").status == 404


def test_names_and_labels_stay(repository: Path) -> None:
    write_model(repository, "echo")
    flags = ("--metrics-config=summary_latencies=true", "--metrics-config=histogram_latencies=true")
    with Serving(repository, *flags) as server:
        binary_output(server.infer_array("echo", np.zeros(4, np.float32)))
        text = server.metrics().body.decode()
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        labels: dict[str, set[str]] = {name: set() for name in kinds}
        for name, pairs in re.findall(r"^(\w+)(?:{(.*)})? \S+$", text, re.MULTILINE):
            family = name if name in kinds else re.sub("_(count|sum|bucket)$", "", name)
            labels[family] |= set(re.findall(r'(\w+)="', pairs))
    assert {name: (kind, labels[name]) for name, kind in kinds.items()} == FAMILIES
    # The others are there where there is a response cache, a GPU (test_gpu_metrics) or a model of OpenAI's routes
    # (test_openai).
    elsewhere = ("nv_cache", "nv_gpu", "nv_energy", "vllm:")
    assert {name for name in RESERVED if not name.startswith(elsewhere)} == set(FAMILIES)


def test_a_stub_that_dies_is_seen(repository: Path) -> None:
    write_model(repository, "bench", WORKBENCH, text_config(1))
    labels = 'instance="bench_0_0",model="bench",version="1"'
    with Serving(repository) as server:
        run(server, "result = 1")
        found = samples(server.metrics())
        assert found[f"stubserve_instance_ready{{{labels}}}"] == 1
        assert found[f"stubserve_instance_failed{{{labels}}}"] == 0
        assert found[f"stubserve_instance_restarts_total{{{labels}}}"] == 0
        assert found[f"stubserve_instance_memory_bytes{{{labels}}}"] > 1 << 20
        assert found['stubserve_batch_size_bucket{model="bench",version="1",le="1"}'] == 1
        assert found['stubserve_arena_committed_bytes{owner="requests"}'] >= 0
        assert found["stubserve_arena_limit_bytes"] > 1 << 20
        (pid,) = server.stub_pids()
        os.kill(pid, signal.SIGKILL)
        server.wait_for("instance 'bench_0_0' is back")
        assert samples(server.metrics())[f"stubserve_instance_restarts_total{{{labels}}}"] == 1


def test_requests_are_counted(server: Serving) -> None:
    labels = '{_team="a",model="echo",version="1"}'
    before = samples(server.metrics())
    for size in (1, 3):
        binary_output(server.infer_array("echo", np.zeros((size, 4), np.float32)))
    after = samples(server.metrics())

    def grown(name: str, labels: str = labels) -> float:
        return after[name + labels] - before[name + labels]

    assert grown("nv_inference_request_success") == 2
    assert grown("nv_inference_count") == 4
    assert grown("nv_inference_exec_count") == 2
    statistics = server.statistics("echo")["inference_stats"]
    for metric, statistic in (
        ("request", "success"),
        ("queue", "queue"),
        ("compute_input", "compute_input"),
        ("compute_infer", "compute_infer"),
        ("compute_output", "compute_output"),
    ):
        assert after[f"nv_inference_{metric}_duration_us{labels}"] == statistics[statistic]["ns"] // 1000
        assert grown(f"nv_inference_{metric}_summary_us_count") == 2
        assert after[f'nv_inference_{metric}_summary_us{labels[:-1]},quantile="0.5"}}'] >= 0
    assert grown("nv_inference_first_response_histogram_ms_count") == 2
    assert grown("nv_inference_first_response_histogram_ms_bucket", labels[:-1] + ',le="+Inf"}') == 2
    assert after["nv_inference_pending_request_count" + labels] == 0
    assert after["nv_model_load_duration_secs" + labels] > 0
    assert after["nv_cpu_memory_total_bytes"] > after["nv_cpu_memory_used_bytes"] > 0
    assert 0 <= after["nv_cpu_utilization"] <= 1


def test_failures_are_counted_by_reason(server: Serving) -> None:
    def failures() -> list[float]:
        found = samples(server.metrics())
        name = "nv_inference_request_failure"
        return [
            found[f'{name}{{model="dies",reason="{reason}",version="1"}}']
            for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
        ]

    before = failures()
    assert server.infer_array("dies", np.zeros(4, np.float32)).status == 500
    assert failures() == [before[0], before[1], before[2] + 1, before[3]]


def test_instances_and_models_share_a_metric(server: Serving) -> None:
    name = 'shared_total{kind="test"}'
    before = samples(server.metrics())[name]
    for _ in range(5):
        run(server, "metric.increment(1.5)")
    run(server, "metric.increment(2)", "single")
    assert samples(server.metrics())[name] == before + 9.5
    assert float(run(server, "result = metric.value()")) == before + 9.5
    assert float(run(server, "result = metric.value()", "single")) == before + 9.5


def test_many_changes_are_all_there_when_the_answer_is(server: Serving) -> None:
    name = 'shared_total{kind="test"}'
    before = samples(server.metrics())[name]
    run(server, "for _ in range(20000): metric.increment(1)", "single")
    assert samples(server.metrics())[name] == before + 20000


def test_a_model_reads_the_endpoint_while_it_makes_and_drops_metrics(server: Serving) -> None:
    script = f"""
        gauges = pb_utils.MetricFamily("ephemeral", "comes and goes", pb_utils.MetricFamily.GAUGE)
        gauge = gauges.Metric(labels={{"l2": "v2", "l1": "v1"}})
        gauge.set(2023)
        line = 'ephemeral{{l1="v1",l2="v2"}} 2023'
        seen = [line in fetch({server.metrics_port})]
        other = gauges.Metric(labels={{"l2": "v2", "l1": "v1"}})
        del gauge
        seen.append(line in fetch({server.metrics_port}))
        del gauges
        seen.append("ephemeral" in fetch({server.metrics_port}))
        try:
            other.increment(1)
        except pb_utils.TritonModelException as error:
            seen.append("has been deleted" in str(error))
        result = seen
    """
    assert run(server, textwrap.dedent(script)) == "[True, True, False, True]"


def test_a_histogram_of_a_model(server: Serving) -> None:
    run(
        server,
        "histograms = pb_utils.MetricFamily('sizes', 'of things', pb_utils.MetricFamily.HISTOGRAM)\n"
        "sizes = histograms.Metric(labels={'of': 'words'}, buckets=[1, 2.5])\n"
        "for size in (1, 2, 3): sizes.observe(size)",
        "single",
    )
    text = server.metrics().body.decode()
    assert "# HELP sizes of things\n# TYPE sizes histogram\n" in text
    assert {name: value for name, value in samples(server.metrics()).items() if name.startswith("sizes")} == {
        'sizes_count{of="words"}': 3,
        'sizes_sum{of="words"}': 6,
        'sizes_bucket{of="words",le="1"}': 1,
        'sizes_bucket{of="words",le="2.5"}': 2,
        'sizes_bucket{of="words",le="+Inf"}': 3,
    }
    run(server, "histograms = sizes = None", "single")
    assert "# TYPE sizes" not in server.metrics().body.decode()


def test_metrics_are_served_while_a_model_executes(repository: Path) -> None:
    write_model(repository, "busy", BUSY, io_config(extra="dynamic_batching { }", max_batch_size=1))
    with Serving(repository) as server:
        connection = server.connect()
        waiting = server.connect()
        for one in (connection, waiting):
            path, body, headers = binary_request("busy", np.zeros((1, 4), np.float32))
            one.request("POST", path, body, headers)
            while True:
                found = samples(server.metrics())
                if one is connection and found["progress"] == 1:
                    break
                if one is waiting and found['nv_inference_pending_request_count{model="busy",version="1"}'] == 1:
                    break
        for one in (connection, waiting):
            one.close()
        # A client that is gone is no failure of the model's.
        while samples(server.metrics())['nv_inference_pending_request_count{model="busy",version="1"}']:
            pass


def test_metrics_die_with_the_stub_that_owned_them(repository: Path) -> None:
    write_model(repository, "bench", WORKBENCH, text_config(1))
    write_model(repository, "other", WORKBENCH, text_config(1))
    with Serving(repository) as server:
        run(server, "metric.increment(3)", "other")
        run(server, "metric.increment(4)")
        run(server, "own = pb_utils.MetricFamily('own', 'x', pb_utils.MetricFamily.GAUGE); one = own.Metric()")
        assert "own 0" in server.metrics().body.decode()
        pid = int(run(server, "import os; result = os.getpid()"))
        os.kill(pid, signal.SIGKILL)
        server.wait_for("instance 'bench_0_0' is back|instance 'bench_0' is back")
        text = server.metrics().body.decode()
        assert "# HELP own" not in text
        assert 'shared_total{kind="test"} 7' in text


def test_concurrent_use_adds_up(server: Serving) -> None:
    name = 'shared_total{kind="test"}'
    before = samples(server.metrics())[name]
    threads = [
        threading.Thread(target=run, args=(server, "for _ in range(500): metric.increment(1)", model))
        for model in ("bench", "bench", "single")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert samples(server.metrics())[name] == before + 1500


def test_switches(repository: Path) -> None:
    write_model(repository, "echo")
    flags = ("--allow-cpu-metrics=false", "--metrics-config=counter_latencies=false", "--metrics-address=127.0.0.1")
    with Serving(repository, *flags) as server:
        text = server.metrics().body.decode()
        assert "_duration_us" not in text
        assert "_summary_us" not in text
        assert "_histogram_" not in text
        assert "nv_cpu" not in text
        assert "nv_inference_count" in text
        second = Serving(repository, f"--metrics-port={server.metrics_port}", "--metrics-address=127.0.0.1")
        second.start()
        second.wait_for("Choose another --metrics-port")
        assert second.process.wait(PATIENCE_S) == 1
        second.stop()


def test_buckets_of_a_models_own(repository: Path) -> None:
    metric = 'metric_identifier { family: "nv_inference_first_response_histogram_ms" }'
    write_model(
        repository,
        "echo",
        config=io_config(
            extra=f"model_metrics {{ metric_control [ {{ {metric} histogram_options {{ buckets: [ 1, 2.5 ] }} }} ] }}"
        ),
    )
    with Serving(repository, "--metrics-config=histogram_latencies=true") as server:
        text = server.metrics().body.decode()
        assert 'nv_inference_first_response_histogram_ms_bucket{model="echo",version="1",le="2.5"} 0' in text
        assert 'le="100"' not in text


def test_metrics_that_have_no_buckets_to_set_are_named(repository: Path) -> None:
    control = 'metric_identifier { family: "nv_nosuch" } histogram_options { buckets: [ 1 ] }'
    write_model(repository, "echo", config=io_config(extra=f"model_metrics {{ metric_control [ {{ {control} }} ] }}"))
    with Serving(repository) as server:
        server.wait_for(
            "Metric family 'nv_nosuch' in 'metric_identifier' is not a customizable metric in Triton core. "
            "'model_metrics' has no effect on it."
        )

"""Traces: files as Triton writes them, spans for a collector, and the settings that say what is traced."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from stubserve.commands.trace import DrawnSpan, draw, read_spans
from tests.real_server import PATIENCE_S, Serving, binary_output, binary_request, eventually, io_config, write_model

CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                print("context", request.trace().get_context(), flush=True)
                call = pb_utils.InferenceRequest(
                    model_name="echo",
                    requested_output_names=["OUTPUT0"],
                    inputs=request.inputs(),
                    trace=request.trace(),
                )
                responses.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
            return responses
"""
STREAMS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                tensor = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())
                sender.send(pb_utils.InferenceResponse([tensor]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FAILS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("not today")) for _ in requests]
"""
ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 4
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
    ensemble_scheduling { step [
        { model_name: "calls" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
          output_map { key: "OUTPUT0" value: "middle" } },
        { model_name: "echo" model_version: -1 input_map { key: "INPUT0" value: "middle" }
          output_map { key: "OUTPUT0" value: "OUTPUT0" } }
    ] }
"""
ONE = np.zeros((1, 4), np.float32)


def write_models(repository: Path) -> None:
    write_model(repository, "echo", config=io_config(max_batch_size=4))
    write_model(repository, "calls", CALLS, io_config(max_batch_size=4))
    write_model(repository, "fails", FAILS, io_config(max_batch_size=4))
    write_model(
        repository,
        "streams",
        STREAMS,
        io_config(extra="model_transaction_policy { decoupled: true }"),
    )
    (repository / "ens" / "1").mkdir(parents=True)
    (repository / "ens" / "config.pbtxt").write_text(ENSEMBLE)


def tracing(*settings: str) -> list[str]:
    return [f"--trace-config={setting}" for setting in settings]


def ask(server: Serving, model: str = "echo", **headers: str) -> None:
    path, body, more = binary_request(model, ONE, id="r1")
    binary_output(server.request("POST", path, body, {**more, **headers}))


def traces(text: str) -> dict[int, dict[str, Any]]:
    """The traces in a file's text by id, with their timestamps and tensors put together."""
    found: dict[int, dict[str, Any]] = {}
    for one in json.loads(text):
        trace = found.setdefault(one.pop("id"), {"timestamps": {}, "tensors": []})
        for stamp in one.pop("timestamps", []):
            trace["timestamps"][stamp["name"]] = stamp["ns"]
        if "activity" in one:
            trace["tensors"].append((one["activity"], one["tensor"]))
        else:
            trace.update(one)
    return found


def test_a_file_as_triton_writes_it(repository: Path, tmp_path: Path) -> None:
    write_models(repository)
    file = tmp_path / "traces.json"
    with Serving(repository, *tracing("level=TIMESTAMPS", "level=TENSORS", "rate=1", f"triton,file={file}")) as server:
        ask(server)
        # It is an array from its first trace on.
        eventually(lambda: file.exists() and (text := file.read_text()) and len(traces(text)) == 1)
        ask(server, "ens")
        client = grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        given = grpcclient.InferInput("INPUT0", ONE.shape, "FP32")
        given.set_data_from_numpy(ONE)
        client.infer("echo", [given])
        client.close()
        assert server.request("POST", "/v2/models/streams/generate_stream", b'{"INPUT0": [1, 2]}').status == 200
    found = traces(file.read_text())
    by_model: dict[str, list[int]] = {}
    for number, trace in found.items():
        by_model.setdefault(trace["model_name"], []).append(number)
    first = found[by_model["echo"][0]]
    assert first["model_version"] == 1
    assert first["request_id"] == "r1"
    assert first["batch"] == {"id": 1, "size": 1, "instance": "echo_0"}
    assert list(first["timestamps"]) == [
        "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START", "COMPUTE_END", "INFER_RESPONSE_COMPLETE", "REQUEST_END", "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]  # fmt: skip
    assert list(first["timestamps"].values()) == sorted(first["timestamps"].values())
    assert first["tensors"] == [
        ("TENSOR_QUEUE_INPUT", {"name": "INPUT0", "data": "0,0,0,0", "shape": "1,4", "dtype": "FP32"}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "OUTPUT0", "data": "0,0,0,0", "shape": "1,4", "dtype": "FP32"}),
    ]
    (ensemble,), (caller,) = by_model["ens"], by_model["calls"]
    assert found[caller]["parent_id"] == ensemble
    assert sorted(found[number].get("parent_id", 0) for number in by_model["echo"]) == [0, 0, ensemble, caller]
    assert "COMPUTE_START" not in found[ensemble]["timestamps"]
    assert any("GRPC_WAITREAD_START" in found[number]["timestamps"] for number in by_model["echo"])
    (stream,) = by_model["streams"]
    assert {"COMPUTE_END", "REQUEST_END"} <= set(found[stream]["timestamps"])


def test_rate_count_and_files_with_numbers(repository: Path, tmp_path: Path) -> None:
    write_models(repository)
    file = tmp_path / "traces.json"
    settings = tracing("level=TIMESTAMPS", "rate=2", "count=3", f"triton,file={file}", "triton,log-frequency=2")
    with Serving(repository, *settings) as server:
        for _ in range(9):
            ask(server)
        assert server.get("/v2/trace/setting").json()["trace_count"] == "0"
    assert sorted(path.name for path in tmp_path.glob("traces.json*")) == ["traces.json.0", "traces.json.1"]
    assert [len(traces(path.read_text())) for path in sorted(tmp_path.glob("traces.json.*"))] == [2, 1]


def test_settings_change_while_the_server_runs(repository: Path, tmp_path: Path) -> None:
    write_models(repository)
    file = tmp_path / "traces.json"
    with Serving(repository, *tracing(f"triton,file={file}")) as server:

        def change(path: str, **settings: Any) -> dict[str, Any]:
            answer = server.request("POST", path, json.dumps(settings).encode())
            assert answer.status == 200, answer
            shown: dict[str, Any] = answer.json()
            return shown

        ask(server)
        assert server.get("/v2/trace/setting").json() == {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": str(file),
            "trace_mode": "triton",
        }
        change("/v2/models/echo/trace/setting", trace_rate="1", trace_level=["TIMESTAMPS"])
        ask(server)
        ask(server, "calls")
        eventually(lambda: file.exists() and (text := file.read_text()) and len(traces(text)) == 1)
        change("/v2/trace/setting", trace_rate="1", trace_level=["TIMESTAMPS"])
        change("/v2/models/echo/trace/setting", trace_level=["OFF"])
        ask(server)
        ask(server, "calls")
        # The request that `calls` makes belongs to a trace, whatever its own model's settings say.
        eventually(lambda: [one["model_name"] for one in traces(file.read_text()).values()][1:] == ["echo", "calls"])
        shown = change("/v2/models/echo/trace/setting", trace_level=None, trace_rate=None)
        assert (shown["trace_level"], shown["trace_rate"]) == (["TIMESTAMPS"], "1")
        client = grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        settings = client.update_trace_settings("echo", {"trace_rate": "7", "trace_count": "5"}, as_json=True)
        assert settings["settings"]["trace_rate"] == {"value": ["7"]}
        assert client.get_trace_settings("echo", as_json=True) == settings
        for wrong, text in (
            ({"trace_rate": ["5", "6"]}, "expect only 1 value for 'trace_rate'"),
            ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
            ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
            ({"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
            ({"trace_file": "x"}, "trace file location can not be updated through network protocol"),
        ):
            with pytest.raises(InferenceServerException) as raised:
                client.update_trace_settings(settings=wrong)
            assert raised.value.message() == text
        client.close()
        answer = server.get("/v2/models/nosuch/trace/setting")
        assert (answer.status, answer.error) == (400, "Request for unknown model : nosuch")


def test_the_file_is_not_a_clients_to_choose(repository: Path, tmp_path: Path) -> None:
    """Nor a model's own: whoever may write traces into any file may write over it."""
    write_models(repository)
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    with Serving(
        repository, *tracing(f"triton,file={tmp_path / 'traces.json'}", "level=TIMESTAMPS", "rate=1")
    ) as server:
        body = json.dumps({"trace_file": str(victim), "trace_level": ["TIMESTAMPS"], "trace_rate": "1"}).encode()
        for path in "/v2/trace/setting", "/v2/models/echo/trace/setting":
            answer = server.request("POST", path, body)
            assert "trace file location can not be updated through network protocol" in answer.error, answer
            assert server.get(path).json()["trace_file"] == str(tmp_path / "traces.json")
        ask(server)
    assert victim.read_text() == "as it was"
    assert len(traces((tmp_path / "traces.json").read_text())) == 1


def test_a_model_gets_its_callers_context(repository: Path, tmp_path: Path) -> None:
    """Without spans of its own a server passes on the caller's."""
    write_models(repository)
    context = f"00-{'1' * 32}-{'2' * 16}-01"
    with Serving(repository, *tracing(f"triton,file={tmp_path / 'traces'}", "level=TIMESTAMPS", "rate=1")) as server:
        ask(server, "ens", traceparent=context)
        server.wait_for(rf'context {{"traceparent":"{context}"}}')
        ask(server, "ens")
        server.wait_for("context None")


@contextmanager
def collector(file: Path, *words: str) -> Iterator[str]:
    """A collector's process; its address."""
    command = [sys.executable, "-m", "tools.otlp_receiver", str(file), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def spans_of(file: Path, enough: Callable[[list[DrawnSpan]], bool]) -> list[DrawnSpan]:
    """What the collector has got, once it is enough."""

    def look() -> list[DrawnSpan] | None:
        # It may be about to write the last line.
        whole, _, _ = file.read_text().rpartition("\n") if file.exists() else ("", "", "")
        found = list(read_spans(whole.splitlines()))
        return found if enough(found) else None

    spans: list[DrawnSpan] = eventually(look)
    return spans


def test_spans_reach_a_collector(repository: Path, tmp_path: Path) -> None:
    write_models(repository)
    file = tmp_path / "spans"
    with collector(file) as url:
        settings = ("mode=opentelemetry", "level=TIMESTAMPS", "level=TENSORS", "rate=1000", f"opentelemetry,url={url}")
        with Serving(
            repository, *tracing(*settings, "opentelemetry,bsp_schedule_delay=50", "opentelemetry,resource=team=a")
        ) as server:
            shown = server.get("/v2/trace/setting").json()
            assert (shown["trace_mode"], shown["url"], shown["bsp_schedule_delay"]) == ("opentelemetry", url, "50")
            ask(server)
            trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
            ask(server, "ens", traceparent=f"00-{trace}-{parent}-01")
            spans = spans_of(file, lambda spans: len(spans) >= 8)
            server.wait_for(rf'context {{"traceparent":"00-{trace}-[0-9a-f]{{16}}-01"}}')
            client = grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
            given = grpcclient.InferInput("INPUT0", ONE.shape, "FP32")
            given.set_data_from_numpy(ONE)
            other = "1" * 32
            client.infer("echo", [given], headers={"traceparent": f"00-{other}-{parent}-01"})
            with pytest.raises(InferenceServerException):
                client.infer("fails", [given], headers={"traceparent": f"00-{'2' * 32}-{parent}-01"})
            client.close()
            more = spans_of(file, lambda spans: len(spans) >= 14)[8:]
        assert {span.trace for span in spans} == {trace}
        by_id = {span.id: span for span in spans}

        def path(span: DrawnSpan) -> str:
            above = by_id.get(span.parent)
            return f"{path(above)} {span.name}" if above is not None else span.name

        assert sorted(map(path, spans)) == [
            "InferRequest",
            "InferRequest ens",
            "InferRequest ens calls",
            "InferRequest ens calls compute",
            "InferRequest ens calls compute echo",
            "InferRequest ens calls compute echo compute",
            "InferRequest ens echo",
            "InferRequest ens echo compute",
        ]
        (root,) = [span for span in spans if span.name == "InferRequest"]
        assert root.parent == parent
        for span in spans:
            assert span.start <= span.end
            if span is not root:
                assert root.start <= span.start <= span.end <= root.end
            if span.name == "compute":
                assert span.attributes["stubserve.batch.size"] == "1"
                assert "COMPUTE_START" in span.events
            elif span is not root:
                assert span.attributes["triton.model_name"] == span.name
                assert span.attributes["TENSOR_BACKEND_OUTPUT.OUTPUT0"] == "[1, 4], 16 bytes"
        drawn = draw(spans)
        assert drawn.startswith(f"trace {trace}, ")
        assert re.search(r"echo_0, batch \d+, size 1", drawn)
        assert {span.trace for span in more} == {other, "2" * 32}
        (failed,) = [span for span in more if span.name == "fails"]
        assert failed.error == "not today"


@pytest.mark.parametrize("kind", ["hangs", "is not there"])
def test_a_collector_that_is_no_help_costs_requests_nothing(kind: str, repository: Path, tmp_path: Path) -> None:
    write_models(repository)
    with collector(tmp_path / "spans", *(["--hang"] if kind == "hangs" else [])) as url:
        if kind != "hangs":
            url = "http://127.0.0.1:9/v1/traces"
        settings = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={url}")
        small = ("opentelemetry,bsp_schedule_delay=0", "opentelemetry,bsp_max_queue_size=4")
        with Serving(repository, *tracing(*settings, *small, "opentelemetry,bsp_max_export_batch_size=1")) as server:
            for _ in range(50):
                ask(server)
            server.wait_for("traces are lost: ")
        assert server.process.returncode == 0


def test_a_process_that_exports_spans_and_dies_costs_what_it_had(repository: Path, tmp_path: Path) -> None:
    write_models(repository)
    file = tmp_path / "spans"
    with collector(file) as url:
        settings = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={url}")
        with Serving(repository, *tracing(*settings, "opentelemetry,bsp_schedule_delay=0")) as server:

            def worker() -> psutil.Process:
                children = psutil.Process(server.process.pid).children()
                (found,) = [
                    child for child in children if "stubserve.observability.traces.span_worker" in child.cmdline()
                ]
                return found

            ask(server)
            spans_of(file, lambda spans: len(spans) == 3)
            busy = worker()
            # It has said of the first group that it is taken, and reads what comes next from its input. The number of
            # that system call is 0 on x86 and 63 on ARM.
            reads = (["0", "0x0"], ["63", "0x0"])
            eventually(lambda: Path(f"/proc/{busy.pid}/syscall").read_text().split()[:2] in reads)
            busy.suspend()
            eventually(lambda: busy.status() == psutil.STATUS_STOPPED)
            given = os.open(f"/proc/{busy.pid}/fd/0", os.O_RDONLY)
            ask(server)
            eventually(lambda: int.from_bytes(fcntl.ioctl(given, termios.FIONREAD, bytes(4)), sys.byteorder))
            busy.kill()
            server.wait_for("1 traces are lost: the process that exports them has ended")
            os.close(given)
            assert b"stubserve_traces_lost_total 1\n" in server.metrics().body
            ask(server)
            spans_of(file, lambda spans: len(spans) == 6)
            last = worker()
        assert not last.is_running()


def test_a_full_disk_costs_traces_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    """And what is traced when there is room again is written."""
    write_models(repository)
    file = tmp_path / "traces.json"

    def written() -> int:
        return len(traces(file.read_text() or "[]")) if file.exists() else 0

    with Serving(repository, *tracing("level=TIMESTAMPS", "rate=1", f"triton,file={file}")) as server:
        ask(server)
        eventually(lambda: written() == 1)
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (file.stat().st_size + 10, most))
        ask(server)
        server.wait_for("1 traces are lost: .*File too large")
        assert written() == 1
        assert b"stubserve_traces_lost_total 1\n" in server.metrics().body
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
        ask(server)
        eventually(lambda: written() == 2)


def test_wrong_settings_are_refused(repository: Path) -> None:
    for setting, text in (
        ("level=ALL", "the levels are TIMESTAMPS, TENSORS and OFF. Got level=ALL"),
        ("rate=-1", "rate must be at least 0. Got -1"),
        ("zipkin,url=x", "the trace modes are triton and opentelemetry. Got zipkin,url=x"),
        ("triton,url=x", "the settings of trace mode 'triton' are file, log-frequency. Got triton,url=x"),
        ("level", "option format is '[<trace mode>,]<setting>=<value>'. Got level"),
        ("level=TIMESTAMPS", "needs a file for traces: --trace-config triton,file=<path>"),
    ):
        server = Serving(repository, *tracing(setting))
        server.start()
        assert server.process.wait(PATIENCE_S) != 0
        server.stop()
        assert text in server.output

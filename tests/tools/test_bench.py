"""The parts of the benchmark that decide whether its figures can be believed."""

import http.server
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np
import psutil
import pytest

from tools.bench import (
    bare_loop,
    bulk,
    costs,
    h2load,
    in_step,
    onnx_loads,
    onnx_models,
    payloads,
    perf_analyzer,
    repository,
    text_loads,
    torch_loads,
    versus,
    wrk,
)
from tools.bench.__main__ import parse_arguments, programs
from tools.bench.neighbour import Neighbour
from tools.bench.payloads import JSON_LENGTH_HEADER, Form, Payload, Sample, WrongAnswerError
from tools.bench.processes import Memory, ProcessTree
from tools.bench.report import Report, number, ratio, summary
from tools.bench.rivals import RIVALS, Rival, payload_maker
from tools.bench.rounds import measure, serves, turns
from tools.bench.servers import Program, Server
from tools.bench.table import all_workloads
from tools.bench.targets import AFTERWARDS, BOUNDS, TARGETS
from tools.bench.workloads import BATCH, CPU, P50, RATE, Figures, Metric, Subject, WrkLoad
from tools.bench.wrk import LoadError
from tools.soak import everything, steady

FIGURES = {
    "requests": 3000,
    "bytes": 900_000,
    "us": 1_500_000,
    "p50_us": 210,
    "p99_us": 900,
    "longest_us": 1200,
    "connect": 0,
    "read": 0,
    "write": 0,
    "status": 0,
    "timeout": 0,
}


def wrk_output(**changes: int) -> str:
    return f"Running 2s test @ http://127.0.0.1:1/\n  1 threads\n{wrk.MARK}{json.dumps({**FIGURES, **changes})}\n"


def test_wrk_figures_are_per_second_and_in_microseconds() -> None:
    assert wrk.parse(wrk_output(), 64) == wrk.Load(
        requests=3000, requests_per_s=2000.0, p50_us=210, p99_us=900, longest_us=1200
    )


@pytest.mark.parametrize("kind", ["connect", "read", "write", "status", "timeout"])
def test_a_failed_request_spoils_the_load(kind: str) -> None:
    with pytest.raises(LoadError, match=f"'{kind}': 1"):
        wrk.parse(wrk_output(**{kind: 1}), 64)


def test_answers_too_short_to_carry_the_tensor_spoil_the_load() -> None:
    assert wrk.parse(wrk_output(), 300).requests == 3000
    with pytest.raises(LoadError, match="300 bytes on average, right ones at least 301"):
        wrk.parse(wrk_output(), 301)


def test_no_answer_at_all_spoils_the_load() -> None:
    with pytest.raises(LoadError, match="--seconds"):
        wrk.parse(wrk_output(requests=0, bytes=0), 64)
    with pytest.raises(LoadError, match="no result"):
        wrk.parse("unable to create thread 0: Too many open files\n", 64)


@pytest.fixture
def echo_port() -> Iterator[int]:
    """An HTTP server that answers as an identity model does, but with 500 for the model `broken`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            raw = body[int(self.headers[JSON_LENGTH_HEADER]) :]
            text = json.dumps({"outputs": [{"name": "OUTPUT0"}]}).encode()
            self.send_response(500 if "broken" in self.path else 200)
            self.send_header(JSON_LENGTH_HEADER, str(len(text)))
            self.send_header("Content-Length", str(len(text) + len(raw)))
            self.end_headers()
            self.wfile.write(text + raw)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_wrk_posts_the_body_and_its_script_prints_what_parse_reads(echo_port: int, tmp_path: Path) -> None:
    payload = payloads.numbers("identity_fp32", 16)
    wrk.write_script(tmp_path / "load.lua", payload)
    load = wrk.run(echo_port, tmp_path / "load.lua", payload, connections=2, seconds=1)
    assert load.requests > 0
    assert 0 < load.p50_us <= load.p99_us

    broken = payloads.numbers("broken", 16)
    with pytest.raises(LoadError, match="'status'"):
        wrk.run(echo_port, tmp_path / "load.lua", broken, connections=2, seconds=1)


def test_large_bodies_are_sent_whole_and_their_answers_read_away(echo_port: int) -> None:
    load = bulk.run(echo_port, payloads.numbers("identity_fp32", 1 << 18), connections=2, seconds=1)
    assert load.requests >= 2
    assert 0 < load.p50_us <= load.p99_us

    with pytest.raises(LoadError, match=r"a request failed: the answer begins .* 500 "):
        bulk.run(echo_port, payloads.numbers("broken", 16), connections=2, seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(LoadError, match=r"a request failed: .*refused"):
        bulk.run(port, payloads.numbers("identity_fp32", 16), connections=1, seconds=1)


def test_send_accepts_the_echo_and_refuses_an_error(echo_port: int) -> None:
    payloads.send(echo_port, payloads.strings("identity_bytes", 3))
    with pytest.raises(WrongAnswerError, match="status 500"):
        payloads.send(echo_port, payloads.strings("broken", 3))


def test_requests_in_step_are_as_many_as_wanted(echo_port: int) -> None:
    right, broken = (bulk.message(echo_port, payloads.numbers(name, 16)) for name in ("identity_fp32", "broken"))
    sent = []

    def requests(*several: bytes) -> Iterator[bytes]:
        for request in several:
            sent.append(request)
            yield request

    in_step.run(echo_port, requests(*[right] * 20), connections=3, count=7)
    assert len(sent) == 1 + 9
    with pytest.raises(LoadError, match=r"the first answer begins .* 500 "):
        in_step.run(echo_port, requests(broken), connections=3, count=7)
    with pytest.raises(LoadError, match=r"not like the first, .* 500 "):
        in_step.run(echo_port, requests(right, right, broken), connections=1, count=2)


H2LOAD = """finished in 1.25s, 16000.50 req/s, 1.25MB/s
requests: {0} total, {0} started, {0} done, {1} succeeded, {2} failed, {2} errored, 0 timeout
status codes: {3} 2xx, 0 3xx, 0 4xx, {4} 5xx
traffic: 3.91MB (4100448) total, 1.20MB (1258291) headers (space savings 0.00%), 2.44MB ({5}) data
"""


def test_calls_of_h2load_are_counted_and_have_to_be_right() -> None:
    assert h2load.parse(H2LOAD.format(20000, 20000, 0, 20000, 0, 20000 * 64), 64) == 16000.5
    for output, said in (
        (H2LOAD.format(20000, 19999, 1, 19999, 0, 20000 * 64), "19999 were answered"),
        (H2LOAD.format(20000, 20000, 0, 19999, 1, 20000 * 64), "19999 with 200"),
        (H2LOAD.format(20000, 20000, 0, 20000, 0, 20000 * 64 - 1), "right ones at least 64"),
        (H2LOAD.format(0, 0, 0, 0, 0, 0), "0 calls"),
        ("could not connect", "no result"),
    ):
        with pytest.raises(LoadError, match=said):
            h2load.parse(output, 64)


def test_what_an_option_costs_is_told_of_the_times_of_requests() -> None:
    assert costs.compared(costs.COST, [10, 30], [20, 24]) == pytest.approx(10)
    assert costs.compared(costs.SHARE, [10, 30], [40, 60]) == pytest.approx(0.4)


def test_the_interval_of_a_median_holds_it_and_says_how_sure_it_is() -> None:
    figures = [1.0, 1.1, 1.2, 0.9, 0.8, 1.0, 5.0, -3.0, 1.0, 1.1]
    low, high = costs.interval(figures)
    assert -3 < low < 1 < high < 5
    wide = costs.interval([10 * figure for figure in figures])
    assert wide[1] - wide[0] > 5 * (high - low)
    assert costs.interval([2.0, 2.0, 2.0]) == (2, 2)


def binary_answer(raw: bytes, name: str = "OUTPUT0") -> tuple[bytes, str]:
    text = json.dumps({"outputs": [{"name": name}]}).encode()
    return text + raw, str(len(text))


def test_a_binary_answer_must_be_the_tensor_sent() -> None:
    payload = payloads.numbers("identity_fp32", 4)
    assert isinstance(payload.echo, bytes)
    payload.check(*binary_answer(payload.echo))
    for body, length in (binary_answer(payload.echo[:-4]), binary_answer(bytes(16)), binary_answer(payload.echo, "X")):
        with pytest.raises(WrongAnswerError, match="not what was sent"):
            payload.check(body, length)
    with pytest.raises(WrongAnswerError, match=JSON_LENGTH_HEADER):
        payload.check(payload.echo, None)


def test_a_json_answer_must_have_the_values_sent() -> None:
    payload = payloads.json_numbers("identity_fp32", 2)
    payload.check(b'{"outputs": [{"name": "OUTPUT0", "data": [0.5, 1.5]}]}', None)
    with pytest.raises(WrongAnswerError):
        payload.check(b'{"outputs": [{"name": "OUTPUT0", "data": [0.5, 1.0]}]}', None)


@pytest.mark.parametrize(
    ("payload", "length"),
    [
        (payloads.numbers("m", 16), 64),
        (payloads.strings("m", 1000), 16_000),
        # "0.5,1.5," and so on to "10.5,"
        (payloads.json_numbers("m", 11), 10 * 4 + 5),
    ],
)
def test_the_shortest_answer_holds_the_tensor(payload: Payload, length: int) -> None:
    assert payload.shortest_answer == length


PERF_ANALYZER_REPORT = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,p50 latency,p90 latency,p99 latency
16,5307.42,144,982,794,2801,4275,6728
"""


def test_perf_analyzer_report() -> None:
    load = perf_analyzer.parse(PERF_ANALYZER_REPORT, 2)
    assert load == wrk.Load(requests=10615, requests_per_s=5307.42, p50_us=2801.0, p99_us=6728.0)


@pytest.mark.parametrize(
    "report", ["", PERF_ANALYZER_REPORT.splitlines()[0], PERF_ANALYZER_REPORT.replace("5307.42", "0")]
)
def test_perf_analyzer_report_without_figures(report: str) -> None:
    with pytest.raises(LoadError):
        perf_analyzer.parse(report, 2)


def test_a_ratio_above_one_always_speaks_for_the_candidate() -> None:
    reference, candidate = [90.0, 100.0, 150.0], [200.0, 190.0, 900.0]
    assert ratio(RATE, reference, candidate) == "2.00x"
    assert ratio(P50, reference, candidate) == "0.50x"


def test_a_ratio_of_overlapping_ranges_is_marked() -> None:
    assert ratio(RATE, [90.0, 100.0, 190.0], [200.0, 190.0, 900.0]) == "2.00x ~"
    assert ratio(RATE, [200.0, 190.0, 900.0], [90.0, 100.0, 190.0]) == "0.50x ~"
    assert ratio(RATE, [100.0], [100.0]) == "1.00x"


@pytest.mark.parametrize(
    ("reference", "candidate"), [([0.0], [1.0]), ([1.0], [0.0]), ([], [1.0]), ([1.0], []), ([], [])]
)
def test_no_ratio_where_there_is_nothing_to_divide(reference: list[float], candidate: list[float]) -> None:
    assert ratio(CPU, reference, candidate) == ""


def test_a_figure_that_only_explains_has_no_ratio() -> None:
    assert ratio(BATCH, [4.0], [8.0]) == ""


def test_summary_gives_the_median_and_the_range() -> None:
    assert summary([]) == "-"
    assert summary([12345.6]) == "12,346"
    assert summary([30.0, 10.0, 20.0]) == "20.0 (10.0-30.0)"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (99.94, "99.9"), (1e6, "1,000,000")]
)
def test_number_shows_about_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def filled(servers: list[str], targets: dict[tuple[str, Metric], float]) -> Report:
    """Three rounds in which stubserve has three times triton's rate, and one of a rival that has no latency to show."""
    report = Report(["machine: abacus"], servers, targets)
    for rate in (100.0, 120.0, 110.0):
        report.add("load", "triton", {RATE: rate, P50: 50.0})
        report.add("load", "stubserve", {RATE: 3 * rate, P50: 25.0})
    if "mosec" in servers:
        report.add("load", "mosec", {RATE: 165.0})
    return report


def test_report_in_both_forms() -> None:
    report = filled(["triton", "stubserve"], {("load", RATE): 2.5, ("load", P50): 2.5})
    assert report.markdown().splitlines() == [
        "- machine: abacus",
        "",
        "| workload | figure | triton | stubserve | better than triton | target |",
        "| --- | --- | --- | --- | --- | --- |",
        "| load | requests/s | 110 (100-120) | 330 (300-360) | 3.00x | 2.5x met |",
        "|  | p50 µs | 50.0 (50.0-50.0) | 25.0 (25.0-25.0) | 2.00x | 2.5x missed |",
        "",
        "Medians with (lowest-highest) over the rounds. Above 1x stubserve is better, below 1x the other; "
        "~ marks differences that may be chance, because the ranges overlap.",
    ]
    lines = report.text().splitlines()
    assert lines[0] == "machine: abacus"
    assert lines[3].split() == ["load", "requests/s", "110", "(100-120)", "330", "(300-360)", "3.00x", "2.5x", "met"]
    assert lines[3].index("110") == lines[2].index("triton")


def test_a_rival_without_a_figure_has_a_dash_and_no_ratio() -> None:
    assert filled(["triton", "stubserve", "mosec"], {}).table()[2:] == [
        "| load | requests/s | 110 (100-120) | 330 (300-360) | 165 | 3.00x | 2.00x |  |",
        "|  | p50 µs | 50.0 (50.0-50.0) | 25.0 (25.0-25.0) | - | 2.00x |  |  |",
    ]


def test_a_bound_needs_no_other_server() -> None:
    report = Report([], ["stubserve"], {}, {("load", RATE): 100, ("load", P50): 30, ("other", P50): 20})
    report.add("load", "stubserve", {RATE: 90.0, P50: 25.0})
    report.add("other", "mosec", {P50: 25.0})
    assert [row.verdict() for row in report.rows()] == ["at least 100 missed", "at most 30 met", "at most 20"]


def test_a_failure_takes_the_place_of_a_server_s_figures_and_is_told_in_one_line() -> None:
    report = filled(["triton", "stubserve", "mosec"], {("load", RATE): 2.5})
    assert report.complete
    report.fail("load", "triton", "LoadError: 3 of 4\n  requests failed")
    assert not report.complete
    assert report.has_failed("load", "triton")
    assert not report.has_failed("load", "stubserve")
    row = "| load | requests/s | failed | 330 (300-360) | 165 |  | 2.00x | 2.5x |"
    assert report.table()[2] == row
    note = "failed: load: triton: LoadError: 3 of 4 requests failed"
    assert note in report.text().splitlines()
    for page in (report.markdown(), versus.page(report, "make bench")):
        assert f"- {note}" in page.splitlines()


def test_a_run_that_ended_early_says_where() -> None:
    report = filled(["triton", "stubserve"], {})
    report.stage, report.unfinished = "round 2 of 5: load: triton", "ended by SIGTERM"
    assert not report.complete
    assert report.text().splitlines()[1] == (
        "not finished: ended by SIGTERM, at this point: round 2 of 5: load: triton"
    )


class PlannedLoad:
    """A workload of this test: 100 requests/s, unless a server is to fail at its check or in a round."""

    large = False

    def __init__(self, name: str, failing: dict[str, int]) -> None:
        self.name = name
        self._failing = failing  # by server: the round, 0 for the check
        self._asked: dict[str, int] = {}

    def serves(self, program: Program) -> bool:
        return True

    def prepare(self, subject: Subject) -> None:
        self.measure(subject, 0)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        name = subject.program.name
        turn = self._asked.get(name, 0)
        self._asked[name] = turn + 1
        if turn == self._failing.get(name):
            raise KeyError("no such figure")
        assert turn < self._failing.get(name, turn + 1), "asked again after it has failed"
        return {RATE: 100.0}


def test_rows_that_fail_are_noted_and_all_others_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.bench.workloads.IDLE_S", 0.01)
    subjects = []
    with ExitStack() as stack:
        for name in ("triton", "stubserve"):
            arguments = (sys.executable, "-m", "http.server", "HTTP", "--bind", "127.0.0.1")
            program = Program(name, arguments, sys.executable, dict(os.environ), ready_path="/")
            server = stack.enter_context(Server(program, tmp_path, tmp_path / f"{name}.log"))
            subjects.append(Subject(program, server, tmp_path, stack))
        report = Report([], ["triton", "stubserve"], {})
        loads = [
            PlannedLoad("unchecked", {"triton": 0}),
            PlannedLoad("well", {}),
            PlannedLoad("late", {"stubserve": 2}),
        ]
        measure(report, subjects, loads, rounds=3, seconds=1)
    assert [(row.workload, row.failed, row.samples) for row in report.rows() if row.metric == RATE] == [
        ("unchecked", {"triton": "KeyError: 'no such figure'"}, {"stubserve": [100.0] * 3}),
        ("well", {}, {"triton": [100.0] * 3, "stubserve": [100.0] * 3}),
        ("late", {"stubserve": "KeyError: 'no such figure'"}, {"triton": [100.0] * 3}),
    ]
    told = capsys.readouterr().err
    assert "round 3 of 3: well: triton\n    requests/s: 100\n" in told
    assert "checking: unchecked: triton\n    failed: KeyError: 'no such figure'\n" in told


def test_a_run_that_is_ended_reports_what_it_has_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.bench", "--servers=stubserve", "--only=^1 MiB", "--seconds=1"]
    command += ["--rounds=1000", f"--markdown={tmp_path / 'report.md'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = list(takewhile(lambda line: not line.startswith("    requests/s: "), process.stderr))
        assert told[-1] == "round 1 of 1000: 1 MiB, 4 connections: stubserve\n"
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert re.search(r"^1 MiB, 4 connections +requests/s +\d", text, re.MULTILINE)
    assert re.search(r"^not finished: ended by SIGTERM, at this point: round \d+ of 1000: 1 MiB", text, re.MULTILINE)
    assert "- not finished: ended by SIGTERM" in (tmp_path / "report.md").read_text()


def test_the_page_has_a_line_for_each_server_and_says_what_rivals_lack() -> None:
    page = versus.page(filled(["triton", "stubserve", "mosec"], {("load", RATE): 2.5}), "make bench")
    for line in (
        "    make bench\n",
        "| load | requests/s | 110 (100-120) | 330 (300-360) | 3.00x | 2.5x met |",
        "| server | requests/s | p50 µs |",
        "| triton | 110 (100-120) · 3.00x | 50.0 (50.0-50.0) · 2.00x |",
        "| stubserve | 330 (300-360) | 25.0 (25.0-25.0) |",
        "| mosec | 165 · 2.00x | - |",
        "- **mosec**: ",
    ):
        assert line in page
    assert "litserve" not in page.partition("## How")[2]


def test_requests_that_differ_are_sent_in_turn_and_each_is_checked(tmp_path: Path) -> None:
    first, second = (payloads.distinct("m", 4, number, 3) for number in (0, 1))
    assert json.loads(first.body[: int(first.headers[payloads.JSON_LENGTH_HEADER])])["id"] == "request-0000"
    first.check(*binary_answer(struct.pack("<4f", 0, 3, 6, 9)))
    second.check(*binary_answer(struct.pack("<4f", 3, 6, 9, 12)))
    with pytest.raises(WrongAnswerError):
        second.check(*binary_answer(struct.pack("<4f", 0, 3, 6, 9)))
    script = tmp_path / "load.lua"
    wrk.write_script(script, first, second)
    assert [Path(f"{script.with_suffix('.body')}{number}").read_bytes() for number in (1, 2)] == [
        first.body,
        second.body,
    ]


@pytest.mark.skipif(not onnx_loads.available(), reason="needs onnx and onnxruntime")
def test_the_bare_loop_runs_what_the_servers_serve(tmp_path: Path) -> None:
    onnx_models.write(tmp_path)
    model = onnx_models.MODELS[0]
    path = tmp_path / model.name / "1" / "model.onnx"
    pace = bare_loop.run(sys.executable, path, model.values, 4, 0.01)
    assert pace.rows_per_s == pytest.approx(4 / pace.ms_per_run * 1000)
    (given,) = onnx_models.inputs(model, 1)
    answer = onnx_models.session_of(model).run(None, {"X": given})[0]
    np.testing.assert_allclose(onnx_models.open_session(path).run(None, {"X": given})[0], answer, rtol=1e-6)
    right = onnx_loads.PlainComputedPayload(model.name, {}, given.tobytes(), answer.tobytes())
    right.check(answer.tobytes(), None)
    with pytest.raises(WrongAnswerError):
        right.check((answer + 1).tobytes(), None)


@pytest.mark.skipif(not torch_loads.available(), reason="needs torch")
def test_the_bare_loop_runs_torchscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch_loads.MODELS[0]
    monkeypatch.setattr(torch_loads, "MODELS", [model])
    torch_loads.write(tmp_path)
    pace = bare_loop.run(sys.executable, tmp_path / model.name / "1" / "model.pt", model.values, 4, 0.01)
    assert pace.rows_per_s == pytest.approx(4 / pace.ms_per_run * 1000)


def test_every_target_is_of_a_row_that_can_be_measured() -> None:
    names = {AFTERWARDS, *(workload.name for workload in all_workloads(installed=False))}
    assert {workload for workload, _ in (*TARGETS, *BOUNDS)} <= names


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
@pytest.mark.parametrize("connections", [1, 16, 64])
def test_a_rival_is_sent_the_bare_tensor_on_a_route_that_its_program_has(rival: Rival, connections: int) -> None:
    routes = {"identity_fp32", "identity_fp32_single", "identity_fp32_json", "identity_bytes"}
    for sample in (
        Sample("identity_fp32", Form.FLOATS, 16, connections),
        Sample("identity_fp32", Form.JSON, 16, connections),
        Sample("identity_bytes", Form.STRINGS, 16, connections),
    ):
        payload = payload_maker(rival)(sample)
        routes.discard(payload.path[1:])
        payload.check(payload.body, None)
        with pytest.raises(WrongAnswerError):
            payload.check(b"[0.5, 1.5]", None)
        assert payload.shortest_answer <= len(payload.body)
    assert routes in ({"identity_fp32"}, {"identity_fp32_single"})


def test_who_runs_onnx_models_alone_has_no_other_row() -> None:
    server = Program("any", (), sys.executable, {})
    loads = {type(load): load for load in (*onnx_loads.all_loads(), WrkLoad("16 floats", "identity_fp32", 16, 1))}
    for only, rows in ((False, [onnx_loads.OnnxLoad, WrkLoad]), (True, [onnx_loads.OnnxLoad])):
        assert [kind for kind, load in loads.items() if serves(load, replace(server, only_onnx=only))] == rows


def test_a_checkout_of_before_is_measured_under_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--servers=stubserve", f"--before={sys.executable}"])
    assert [each.name for each in programs(parse_arguments())] == ["before", "stubserve"]


def test_everybody_is_first_in_turn() -> None:
    assert [turns(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert [turns(["a", "b"], number) for number in range(2)] == [["a", "b"], ["b", "a"]]


def test_the_soak_names_the_stubs_that_have_grown_most() -> None:
    same = {f"same{number}": 20.0 for number in range(everything.MOST_GROWN)}
    grows = ({"grows": 1.0, "gone": 9.0}, {"more": 2.0}, {"grows": 3.5, "new": 70.0})
    lines = everything.most_grown([{**same, **one} for one in grows])
    assert lines[0] == "stub grows: 1.0 0.0 3.5"
    assert len(lines) == everything.MOST_GROWN
    assert not any("gone" in line or "new" in line for line in lines)


def test_the_soak_compares_the_last_minute_with_the_first() -> None:
    loads = [wrk.Load(1000, 100.0, 100.0, 400.0), wrk.Load(10, 1.0, 1.0, 1.0), wrk.Load(900, 90.0, 100.0, 500.0)]
    memories = [Memory(parent, 0, stub, 0, 0, 0) for parent, stub in ((50, 30), (70, 60), (52, 29.5))]
    assert steady.verdict(loads, memories) == (
        "last minute beside the first: p99 1.25x, requests/s 0.90x, parent RSS +2.0 MiB, stub RSS -0.5 MiB"
    )


def test_memory_of_a_tree_counts_parent_and_largest_child() -> None:
    child = "import sys; held = bytearray(64 << 20); print(flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        memory = ProcessTree(process.pid).memory()
        process.communicate()
    assert memory.stub_anon > 64
    assert memory.stub_rss > memory.stub_anon
    assert 0 < memory.parent_anon < memory.parent_rss < 64
    assert memory.total_pss >= memory.total_uss > 64


def test_a_program_fills_in_its_ports_and_shows_no_folders() -> None:
    program = Program("p", ("/opt/x/server", "REPO", "--http-port", "HTTP"), "/opt/x/python", {})
    assert program.command(Path("/models"), (1, 2, 3)) == ["/opt/x/server", "/models", "--http-port", "1"]
    assert str(program) == "server REPO --http-port HTTP"


def test_the_sleeping_model_sleeps_once_a_batch() -> None:
    head, body = repository.SLEEPING.split("def execute(self, requests):\n")
    assert "import time\n" in head
    assert body.splitlines()[0] == "        time.sleep(0.002)"


def test_a_row_of_a_text_model_has_to_be_like_the_right_one() -> None:
    right = np.array([3, 4], np.float32)
    text_loads.require_like([3.1, 4], right)
    for wrong in ([4, -3], [3, 4, 0], [float("nan"), 4]):
        with pytest.raises(WrongAnswerError):
            text_loads.require_like(wrong, right)


@pytest.mark.long
@pytest.mark.skipif(not text_loads.available(), reason="`make examples` installs the packages")
def test_the_classifier_says_something_of_each_word_piece(tmp_path: Path) -> None:
    text_loads.write_classifier(tmp_path / "model.onnx")
    session = onnx_models.open_session(tmp_path / "model.onnx")
    ids = np.array([[101, 7592, 102], [101, 102, 0]])
    (scores,) = session.run(None, {"input_ids": ids, "attention_mask": np.sign(ids)})
    assert scores.shape == (2, 3, text_loads.MODELS["classifier"][0])
    assert (scores[0, 0] == scores[1, 0]).all()
    assert (scores[0, 1] != scores[0, 0]).any()


def test_a_neighbour_walks_as_long_as_it_is_wanted() -> None:
    with Neighbour(True) as neighbour:
        process = neighbour._process
        assert process is not None
        before = psutil.Process(process.pid).cpu_times().user
        deadline = time.monotonic() + 60
        while psutil.Process(process.pid).cpu_times().user < before + 0.05:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert process.poll() is not None
    with Neighbour(False) as nobody:
        assert nobody._process is None

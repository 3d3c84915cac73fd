"""Reading the metrics of a server with many models, and what that is to a client who asks meanwhile.

The models are loaded and have answered, each by one stub. Real Triton takes several gigabytes for as many, so the row
is of stubserve alone, with a bound.
"""

from __future__ import annotations

import http.client
import statistics
import threading
import time

from . import payloads, repository
from .payloads import Form, Sample
from .servers import Program, Server
from .workloads import Figures, Metric, Subject

MODELS = 200
SCRAPE = Metric("ms that a scrape takes (p50)", False)
MEANWHILE = Metric("p99 µs of a lone client meanwhile", False)


class Scrapes:
    """Scrapes one after the other, and beside them one client that asks one of the models without a pause."""

    name = f"metrics of {MODELS} models"
    large = False

    def serves(self, program: Program) -> bool:
        return program.kserve and program.name != "triton"

    def prepare(self, subject: Subject) -> None:
        server = self._server(subject)
        with server.awake():
            for number in range(MODELS):
                payload = subject.program.payload(Sample(f"identity_{number:02}", Form.FLOATS, 16, 1))
                payloads.send(server.http_port, payload)
            scrape(server)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        server = self._server(subject)
        payload = subject.program.payload(Sample("identity_00", Form.FLOATS, 16, 1))
        taken: list[float] = []
        asked: list[float] = []
        end = time.monotonic() + seconds

        def ask() -> None:
            while time.monotonic() < end:
                begin = time.perf_counter()
                payloads.send(server.http_port, payload)
                asked.append(time.perf_counter() - begin)

        with server.awake():
            client = threading.Thread(target=ask)
            client.start()
            while time.monotonic() < end:
                begin = time.perf_counter()
                scrape(server)
                taken.append(time.perf_counter() - begin)
                time.sleep(0.1)
            client.join()
        return {
            SCRAPE: statistics.median(taken) * 1e3,
            MEANWHILE: statistics.quantiles(asked, n=100)[98] * 1e6,
        }

    def _server(self, subject: Subject) -> Server:
        return subject.serving("many", lambda folder: repository.write_many(folder, MODELS))


def scrape(server: Server) -> None:
    """Raises ValueError unless the metrics of all models come."""
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
    finally:
        connection.close()
    if text.count(b"nv_inference_exec_count{") != MODELS:
        raise ValueError("the metrics of some models are missing")

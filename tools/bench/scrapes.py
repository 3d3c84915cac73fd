"""Reading the metrics of a server with many models, and what that is to a client who asks meanwhile.

The models are loaded and have answered, each by one stub. Real Triton takes several gigabytes for as many, so the row
is of stubserve alone, with a bound. A scrape that kept requests waiting would show in how long the slowest of them
take; so they are shown beside those of the same client before anybody scrapes.
"""

from __future__ import annotations

import http.client
import statistics
import threading
import time

from . import payloads, repository, wrk
from .payloads import Form, Sample
from .servers import Program, Server
from .workloads import Figures, Metric, Subject
from .wrk import Load

MODELS = 200
SCRAPE = Metric("ms that a scrape takes (p50)", False)
LONGEST_SCRAPE = Metric("ms of the longest scrape", None)
ALONE = Metric("p99 µs of a lone client, nobody scrapes", None)
MEANWHILE = Metric("p99 µs of a lone client meanwhile", False)
LONGEST_ALONE = Metric("its longest, µs, nobody scrapes", None)
LONGEST_MEANWHILE = Metric("its longest, µs, meanwhile", False)
# Many times as often as Prometheus does
PAUSE_S = 0.1


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
        taken: list[float] = []
        over = threading.Event()

        def scrape_all_the_time() -> None:
            while not over.is_set():
                begin = time.perf_counter()
                scrape(server)
                taken.append(time.perf_counter() - begin)
                over.wait(PAUSE_S)

        with server.awake():
            alone = self._ask(subject, seconds)
            scraper = threading.Thread(target=scrape_all_the_time)
            scraper.start()
            try:
                meanwhile = self._ask(subject, seconds)
            finally:
                over.set()
                scraper.join()
        return {
            SCRAPE: statistics.median(taken) * 1e3,
            LONGEST_SCRAPE: max(taken) * 1e3,
            ALONE: alone.p99_us,
            MEANWHILE: meanwhile.p99_us,
            LONGEST_ALONE: alone.longest_us,
            LONGEST_MEANWHILE: meanwhile.longest_us,
        }

    def _ask(self, subject: Subject, seconds: int) -> Load:
        payload = subject.program.payload(Sample("identity_00", Form.FLOATS, 16, 1))
        script = subject.workspace / "scraped.lua"
        if not script.exists():
            wrk.write_script(script, payload)
        return wrk.run(self._server(subject).http_port, script, payload, 1, seconds)

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

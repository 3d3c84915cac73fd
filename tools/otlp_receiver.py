"""A small collector of OpenTelemetry: takes traces by OTLP over HTTP, and writes each export as a line of JSON.

`python -m tools.otlp_receiver FILE [PORT] [--hang]` prints the address that it listens on. With --hang it takes
connections and never answers, to show what a collector that hangs does to a server.
"""

from __future__ import annotations

import gzip
import http.server
import json
import sys
import threading
from base64 import b64decode
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_IDS = ("traceId", "spanId", "parentSpanId")


def with_hex_ids(value: Any) -> Any:
    """OTLP's JSON has ids in hexadecimal digits, where protobuf's JSON would have base64."""
    if isinstance(value, dict):
        return {
            name: b64decode(one).hex() if name in _IDS and isinstance(one, str) else with_hex_ids(one)
            for name, one in value.items()
        }
    return [with_hex_ids(one) for one in value] if isinstance(value, list) else value


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--hang"]
    if not 1 <= len(words) <= 2:
        sys.exit("usage: python -m tools.otlp_receiver FILE [PORT] [--hang]")
    path, port = words[0], int(words[1]) if len(words) == 2 else 0
    hangs = "--hang" in sys.argv
    writing = threading.Lock()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if hangs:
                threading.Event().wait()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            export = with_hex_ids(json_format.MessageToDict(ExportTraceServiceRequest.FromString(body)))
            with writing, open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(export) + "\n")
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Receiver)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}/v1/traces", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

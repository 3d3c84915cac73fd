"""Asks the model, which `stubserve serve` serves, for twice some numbers: python client.py [--url URL]

It needs nothing but Python. tritonclient, which comes from PyPI, speaks the same protocol, over gRPC as well.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

MODEL = Path(__file__).resolve().parent.name

parser = argparse.ArgumentParser(description="Asks the model for twice some numbers.")
parser.add_argument("--url", default="http://localhost:8000", help="where the server is (%(default)s)")
SERVER = parser.parse_args().url

# One request with a batch of two rows. The data is written flat: row by row.
question = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]}
request = urllib.request.Request(
    f"{SERVER}/v2/models/{MODEL}/infer",
    json.dumps(question).encode(),
    {"Content-Type": "application/json"},
)
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        output = json.load(answer)["outputs"][0]
except urllib.error.HTTPError as error:
    sys.exit(f"the server at {SERVER} refused: {json.load(error)['error']}")
except OSError as error:
    reason = getattr(error, "reason", error)
    folder = Path(__file__).parent
    sys.exit(f"no server answers at {SERVER} ({reason}): start one with `stubserve serve {folder}`")
print(output["name"], output["shape"], output["data"])

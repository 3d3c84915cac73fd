"""Sends two vectors to add_sub and prints what comes back.

    python model_repository/add_sub/client.py [--url localhost:8000]

Needs numpy and `tritonclient[http]`. Servers ignore this file: they read only config.pbtxt and the version folders.
"""

import argparse
import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--url", default="localhost:8000", help="HOST:PORT of the server's HTTP side (default: %(default)s)"
    )
    args = parser.parse_args()

    # max_batch_size is above 0 in config.pbtxt, so the first dimension counts vectors: here one.
    a = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32)
    b = np.array([[10.0, 20.0, 30.0, 40.0]], dtype=np.float32)
    inputs = []
    for name, values in (("INPUT0", a), ("INPUT1", b)):
        tensor = triton.InferInput(name, list(values.shape), "FP32")
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)

    try:
        with triton.InferenceServerClient(args.url) as client:
            result = client.infer("add_sub", inputs)
    except OSError as error:
        sys.exit(f"no server answers at {args.url} ({error}): start one with `stubserve serve model_repository`")
    except InferenceServerException as error:
        sys.exit(f"the server at {args.url} refused: {error}")

    total, difference = result.as_numpy("SUM"), result.as_numpy("DIFFERENCE")
    for left, right, plus, minus in zip(a[0], b[0], total[0], difference[0], strict=True):
        print(f"{left:g} + {right:g} = {plus:g}    {left:g} - {right:g} = {minus:g}")


if __name__ == "__main__":
    main()

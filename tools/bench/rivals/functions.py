"""What all rivals serve: the benchmark's models as plain functions, and the bodies that they read and write.

A model takes a list of inputs and returns a list of outputs, as `execute` does for Triton: nothing is stacked, since
identity has no use for it. Every rival hands these functions the request's body as bytes and sends the bytes they
return, so that none pays for a slower parser than another. The folders of the model repository say what to serve.
"""

import argparse
import time
from pathlib import Path

import msgpack
import numpy
import orjson

MAX_BATCH_SIZE = 64
SLEEP_MAX_BATCH_SIZE = 8
SLEEP_WORKERS = 4
ONNX_MAX_BATCH_SIZE = 32


def identity(inputs):
    return list(inputs)


def sleep_2ms(inputs):
    time.sleep(0.002)
    return list(inputs)


def decode_floats(body):
    return numpy.frombuffer(body, numpy.float32)


def encode_floats(tensor):
    return tensor.tobytes()


def decode_json(body):
    return numpy.array(orjson.loads(body), numpy.float32)


def encode_json(tensor):
    return orjson.dumps(tensor, option=orjson.OPT_SERIALIZE_NUMPY)


def decode_strings(body):
    return msgpack.unpackb(body)


def encode_strings(strings):
    return msgpack.packb(strings)


FLOATS = (decode_floats, encode_floats)
JSON = (decode_json, encode_json)
STRINGS = (decode_strings, encode_strings)


class Onnx:
    """An ONNX model, opened where it first runs: a session stays in its process. Inputs are rows, as are outputs."""

    def __init__(self, path):
        self._path = str(path)
        self._session = None

    def __call__(self, inputs):
        if self._session is None:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(self._path, options, providers=["CPUExecutionProvider"])
        return list(self._session.run(None, {"X": numpy.stack(inputs)})[0])


def served(repository, batch_from):
    """Yields (route, codec, function, max_batch_size, workers) for each folder in `repository`.

    The float model has a route without batching too: a rival that always waits for a batch would lose where none forms.
    Strings and JSON are only measured with 16 connections, so they are batched where batching pays from there.
    """
    batched_at_16 = MAX_BATCH_SIZE if batch_from <= 16 else 1
    for folder in sorted(Path(repository).iterdir()):
        if (folder / "1" / "model.onnx").exists():
            yield folder.name, FLOATS, Onnx(folder / "1" / "model.onnx"), ONNX_MAX_BATCH_SIZE, 1
        elif folder.name == "sleep_2ms":
            yield folder.name, FLOATS, sleep_2ms, SLEEP_MAX_BATCH_SIZE, SLEEP_WORKERS
        elif folder.name == "identity_bytes":
            yield folder.name, STRINGS, identity, batched_at_16, 1
        else:
            yield folder.name, FLOATS, identity, MAX_BATCH_SIZE, 1
        if folder.name == "identity_fp32":
            yield f"{folder.name}_single", FLOATS, identity, 1, 1
            yield f"{folder.name}_json", JSON, identity, batched_at_16, 1


def arguments():
    """What every rival's program takes. Those of the server's own are left alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repository", required=True)
    parser.add_argument("--batch-from", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api-servers", type=int)
    return parser.parse_known_args()[0]

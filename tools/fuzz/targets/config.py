"""A `config.pbtxt` from anybody's repository, read strictly, leniently and as JSON, and then validated."""

from __future__ import annotations

import contextlib

from stubserve.errors import ServeError
from stubserve.model_config.parse import decode_text, parse_json, parse_text
from stubserve.model_config.reading import read_leniently
from stubserve.model_config.validate import problems, validate

from ..finding import Finding
from ..server import CONFIGS


def fuzz_one(data: bytes) -> None:
    try:
        text = decode_text(data)
    except UnicodeDecodeError:
        return
    try:
        config = parse_text(text, "config.pbtxt")
    except ServeError:
        config = None
    reading = read_leniently(text)
    if (config is None) is not bool(reading.mistakes):
        raise Finding("only one way to read it finds mistakes", f"{config is None} {reading.mistakes}")
    if config is not None:
        if reading.config != config:
            raise Finding("read leniently it is something else", f"\n{config}\n{reading.config}")
        found = list(problems(config))
        try:
            validate(config)
        except ServeError as error:
            if not found:
                raise Finding("refused without a problem", str(error)) from None
        for problem in found:
            str(problem)
    for mistake in reading.mistakes:
        reading.follows_from_mistake(mistake.path)
        reading.line_of(mistake.path)
    with contextlib.suppress(ServeError):
        parse_json(data)


SEEDS = [
    *(text.encode() for text in CONFIGS.values()),
    b'name: "m" backend: "python" max_batch_size: 8 # a comment\n'
    b'input [ { name: "I" data_type: TYPE_FP32 dims: [ 3, -1 ] reshape { shape: [ -1 ] } } ]\n'
    b'output [ { name: "O" data_type: TYPE_STRING dims: [ 1 ] label_filename: "l.txt" } ]\n'
    b"instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_GPU gpus: [ 0 ] } ]\n"
    b"dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 100 priority_levels: 2\n"
    b"  default_priority_level: 1 priority_queue_policy { key: 1 value { max_queue_size: 3 } } }\n"
    b'parameters { key: "k" value: { string_value: "v" } }\n'
    b"version_policy: { specific { versions: [ 1, 2 ] } }\n"
    b"model_transaction_policy { decoupled: true }\n",
    b'sequence_batching { max_sequence_idle_microseconds: 5 direct { } control_input [ { name: "START" control [ {\n'
    b"  kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]\n"
    b'  state [ { input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [ -1 ]\n'
    b'    initial_state { name: "s" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } ] }\n',
    b'platform: "ensemble" ensemble_scheduling { step [ { model_name: "a" model_version: -1\n'
    b'  input_map { key: "A" value: "x" } output_map { key: "B" value: "y" } } ] }\n',
    b'{"name":"m","backend":"python","maxBatchSize":8,"input":[{"name":"I","dataType":"type_fp32","dims":["3"]}]}',
    b'nmae: "m"\nmax_batch_size: "x"\ninput { name: "I" data_type: TYPE_FP3 dims: 1 }\n',
    b"\xef\xbb\xbfname: 'm' # \xff\n",
]
WORDS = [
    b"input ",
    b"output ",
    b"instance_group ",
    b"dynamic_batching ",
    b"sequence_batching ",
    b"parameters ",
    b"dims: ",
    b"TYPE_FP32",
    b"KIND_GPU",
    b"KIND_CPU",
    b"{ ",
    b" }",
    b"[ ",
    b" ]",
    b": ",
    b"<",
    b">",
    b"-1",
    b"'",
    b'"',
    b"#",
    b"\\",
    b";",
    b"model_warmup ",
    b"batch_input ",
    b"optimization ",
    b"[type.googleapis.com/inference.ModelConfig] {",
]

"""What a configuration says to the llamacpp backend: its parameters, its inputs and outputs, its file.

The server checks a configuration with this module as well, so nothing here imports xllamacpp.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple

from stubserve_stub.backends.card import FileProblem
from stubserve_stub.backends.loading import HEAD_BYTES, Parameters, resemblance
from stubserve_stub.runtime.failure import Refusal

REQUEST, RESPONSE = "openai_request", "openai_response"
TEXT, EMBEDDING = "text_input", "embedding"
DEFAULT_FILE = "model.gguf"
_MAGIC = b"GGUF"
_DEFAULT_SLOTS = 4
# Texts that an embedding model gets in one batch, unless its configuration says otherwise
_TEXTS = 32

# Parameters that are numbers, and have the name that they have in xllamacpp's CommonParams
_NUMBERS = ("n_ctx", "n_batch", "n_ubatch", "n_gpu_layers")
_POOLING = ("none", "mean", "cls", "last", "rank")
_OTHERS = ("n_parallel", "n_threads", "lora", "embedding", "pooling", "chat_template")


class Options(NamedTuple):
    """The parameters of one model. `numbers` has those that are given, by name."""

    numbers: Dict[str, int]
    slots: int
    # 0 for the instance's share of the cores
    threads: int
    # (file, scale)
    lora: List[Tuple[str, float]]
    embedding: bool
    # Empty for the model's own
    pooling: str
    chat_template: str


def options_of(config: Mapping[str, Any]) -> Options:
    """Raises Refusal for parameters that mean nothing."""
    given = Parameters("llamacpp", config, {})
    names = sorted((*_NUMBERS, *_OTHERS))
    for name in config.get("parameters", {}):
        # Parameters of the server are in capitals.
        if name.islower() and name not in names:
            raise Refusal(f"{given.called(name)} is none of the llamacpp backend, which has {', '.join(names)}")
    pooling = given.text("pooling")
    if pooling and pooling not in _POOLING:
        raise Refusal(f"{given.called('pooling')} must be {' or '.join(_POOLING)}, got '{pooling}'")
    return Options(
        numbers={name: given.integer(name) for name in _NUMBERS if given.text(name)},
        slots=given.integer("n_parallel") or _DEFAULT_SLOTS,
        threads=given.integer("n_threads"),
        lora=[_adapter(given, part.strip()) for part in given.text("lora").split(",") if part.strip()],
        embedding=bool(given.boolean("embedding")),
        pooling=pooling,
        chat_template=given.text("chat_template"),
    )


def _adapter(given: Parameters, text: str) -> Tuple[str, float]:
    path, colon, scale = text.rpartition(":")
    if not colon:
        return text, 1.0
    try:
        return path, float(scale)
    except ValueError:
        raise Refusal(
            "{} must be files with commas between them, each with a scale behind a colon if that is not 1, got "
            "'{}'".format(given.called("lora"), text)
        ) from None


def complete(config: Dict[str, Any]) -> None:
    """Fills in inputs, outputs and policies where the configuration has none. Raises Refusal."""
    if options_of(config).embedding:
        if not config.get("input") and not config.get("output"):
            config["max_batch_size"] = config.get("max_batch_size") or _TEXTS
            config.setdefault("dynamic_batching", {})
        tensors = (TEXT, EMBEDDING)
    else:
        tensors = (REQUEST, RESPONSE)
        config.setdefault("model_transaction_policy", {}).setdefault("decoupled", True)
    given, made = tensors
    config["input"] = config.get("input") or [{"name": given, "data_type": "TYPE_STRING", "dims": [1]}]
    kind, dims = ("TYPE_FP32", -1) if made == EMBEDDING else ("TYPE_STRING", 1)
    config["output"] = config.get("output") or [{"name": made, "data_type": kind, "dims": [dims]}]


def validate(config: Mapping[str, Any]) -> None:
    """Raises Refusal for parameters, inputs and outputs that are not the backend's."""
    embedding = options_of(config).embedding
    if config.get("max_batch_size") and not embedding:
        raise Refusal(
            f"model '{config['name']}': the llamacpp backend batches by itself, token by token: max_batch_size must be "
            f"0, got {config['max_batch_size']}"
        )
    for what, name in zip(("input", "output"), (TEXT, EMBEDDING) if embedding else (REQUEST, RESPONSE)):
        kind = "TYPE_FP32" if name == EMBEDDING else "TYPE_STRING"
        for tensor in config.get(what, ()):
            if (tensor["name"], tensor["data_type"]) != (name, kind):
                raise Refusal(
                    f"model '{config['name']}': the {what} of the llamacpp backend is '{name}' of {kind}, got "
                    f"'{tensor['name']}' of {tensor['data_type']}"
                )


def file_problems(config: Mapping[str, Any], version_dir: str) -> Iterator[FileProblem]:
    try:
        find_file(version_dir, config)
    except Refusal as refusal:
        yield FileProblem(version_dir, str(refusal))


def find_file(version_dir: str, config: Mapping[str, Any]) -> str:
    """The path of a model's file. Raises Refusal if that is no GGUF."""
    path = os.path.join(version_dir, config.get("default_model_filename") or DEFAULT_FILE)
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise Refusal(f"unable to find '{path}' for model '{config['name']}': {error.strerror}") from None
    if not head.startswith(_MAGIC):
        raise Refusal(f"'{path}' is no GGUF file{resemblance(head)}")
    return path

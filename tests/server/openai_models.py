"""Models for OpenAI's routes, one for each way in which a model may take a request and answer it."""

from __future__ import annotations

from pathlib import Path

from tests.real_server import write_model

# Answers the words of its text one by one. The text may be an order: "show" answers what came with it, "fail <words>"
# an error behind these words, "die" kills the stub after a word, and "wait" goes on until it is cancelled.
WORDS = """
    import json, os, signal, time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def told(tensor):
        values = [v.decode() if isinstance(v, bytes) else v for v in tensor.as_numpy().reshape(-1).tolist()]
        return values[0] if len(values) == 1 else values

    def response(text, **parameters):
        data = np.array([text if isinstance(text, bytes) else text.encode()], object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", data)], parameters=parameters)

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = os.path.join(args["model_repository"], args["model_version"])

        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                given = {tensor.name(): told(tensor) for tensor in request.inputs()}
                order, *words = given[TEXT_NAME].split() or [""]
                if order in ("show", "fail", "die", "wait", "bytes", "large", "flood"):
                    getattr(self, order)(request, sender, given, words)
                else:
                    self.say(sender, [order, *words], given.get("max_tokens", 1000))

        def say(self, sender, words, most):
            counts = {"num_input_tokens": len(words), "num_output_tokens": 1}
            for at, word in enumerate(words[:most]):
                sender.send(response(" " * bool(at) + word, **counts))
            sender.send(response("", finish_reason="length" if most < len(words) else "stop"), 1)

        def show(self, request, sender, given, words):
            shown = {"inputs": given, "parameters": json.loads(request.parameters())}
            sender.send(response(json.dumps(shown)), 1)

        def fail(self, request, sender, given, words):
            for word in words:
                sender.send(response(word))
            error = pb_utils.TritonError("no more", pb_utils.TritonError.INVALID_ARG)
            sender.send(pb_utils.InferenceResponse(error=error), 1)

        def die(self, request, sender, given, words):
            sender.send(response("dying"))
            while not os.path.exists(os.path.join(self.folder, "go")):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

        def wait(self, request, sender, given, words):
            while not request.is_cancelled():
                sender.send(response("on "))
                time.sleep(0.01)
            with open(os.path.join(self.folder, "cancelled"), "a") as file:
                file.write("x")
            sender.send(flags=1)

        def flood(self, request, sender, given, words):
            for _ in range(2000):
                sender.send(response("x" * 65536))
            sender.send(flags=1)

        def bytes(self, request, sender, given, words):
            for byte in "é€".encode():
                sender.send(response(bytes([byte])))
            sender.send(flags=1)

        def large(self, request, sender, given, words):
            for _ in range(3):
                sender.send(response("é" * 400_000))
            sender.send(flags=1)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
OUTPUT = 'output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]'

# Answers the objects that the last message lists; "show" answers the body.
OBJECTS = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                body = json.loads(pb_utils.get_input_tensor_by_name(request, "openai_request").as_numpy()[0])
                asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
                shown = {"choices": [{"message": {"content": json.dumps(body)}}]}
                sender = request.get_response_sender()
                for piece in [shown] if asked == "show" else json.loads(asked):
                    text = piece if isinstance(piece, str) else json.dumps(piece)
                    output = pb_utils.Tensor("openai_response", np.array([text.encode()], object))
                    sender.send(pb_utils.InferenceResponse([output]))
                sender.send(flags=1)
"""

EMBEDDER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()) for request in requests]

        def answer(self, texts):
            rows = [[len(text), texts.size, 0.5] for text in texts.reshape(-1)]
            shape = (*texts.shape[:-1], 3)
            vectors = np.array(rows, np.float32).reshape(shape)
            return pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", vectors)])
"""
EMBEDDER_CONFIG = """
backend: "python"
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "EMBEDDING" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
# Not decoupled
WHOLE = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            texts = [pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]) for text in texts]
"""


def text_input(name: str, kind: str = "STRING", dims: str = "1", optional: bool = False) -> str:
    return f'input [ {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] optional: {str(optional).lower()} }} ]\n'


def routes(value: str) -> str:
    return f'parameters {{ key: "OPENAI_ROUTES" value {{ string_value: "{value}" }} }}\n'


def write_words(repository: Path, name: str, inputs: str, more: str = "", text: str = "text_input") -> Path:
    """A model that streams the words of one of its inputs."""
    source = WORDS.replace("TEXT_NAME", repr(text))
    return write_model(repository, name, source, f'backend: "python"\n{inputs}{OUTPUT}\n{DECOUPLED}\n{more}')


def write_objects(repository: Path) -> Path:
    """A model that answers OpenAI's objects."""
    tensors = text_input("openai_request") + OUTPUT.replace("text_output", "openai_response")
    return write_model(repository, "objects", OBJECTS, f'backend: "python"\n{tensors}\n{DECOUPLED}')


def write_models(repository: Path) -> None:
    text = text_input("text_input")
    write_words(
        repository,
        "words",
        text
        + text_input("stream", "BOOL", optional=True)
        + text_input("max_tokens", "INT32", optional=True)
        + text_input("temperature", "FP32", optional=True),
    )
    write_words(repository, "chat", text_input("messages"), text="messages")
    write_words(repository, "joined", text, routes("chat, completions"))
    write_words(repository, "hidden", text, routes("none"))
    write_words(repository, "stops", text + text_input("stop", dims="-1", optional=True))
    vllm = ("exclude_input_in_output", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
    write_words(
        repository,
        "vllm",
        text
        + text_input("stream", "BOOL", optional=True)
        + text_input("sampling_parameters", optional=True)
        + "".join(text_input(name, "BOOL", optional=True) for name in vllm),
    )
    write_objects(repository)
    write_model(repository, "rows", EMBEDDER, f"{EMBEDDER_CONFIG}max_batch_size: 4\n")
    write_model(repository, "single", EMBEDDER, EMBEDDER_CONFIG)
    write_model(repository, "whole", WHOLE, f'backend: "python"\nmax_batch_size: 8\n{text}{OUTPUT}')
    write_model(repository, "echo")

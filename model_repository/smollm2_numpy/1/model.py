"""Continuous batching: each `execute` makes the next token of all answers under way, then asks for them all again.

The server gives a rescheduled request back in the next batch, together with requests that have come meanwhile. So a new
request joins between two tokens, and one that has ended leaves at once.
"""

import json

import numpy as np
import tokenizers
import triton_python_backend_utils as pb_utils
from tokenizers import decoders, models, pre_tokenizers

from .network import Network, Text

SYSTEM = {"role": "system", "content": "You are a helpful AI assistant named SmolLM, trained by Hugging Face"}
START = 1  # the flag of a request's first execution
# An answer that is in none of so many batches has lost its client.
MISSED = 4


class Answer(Text):
    """The text of one request. `count` are its tokens so far, `most` how many it may have."""

    def __init__(self, tokens, network, asked):
        super().__init__(tokens, network)
        self.prompt, self.count = len(tokens), 0
        self.most = min(asked.get("max_tokens", 256), network.most - len(tokens))
        self.temperature = asked.get("temperature", 0)
        self.random = np.random.default_rng(asked.get("seed"))

    def choose(self, logits):
        self.count += 1
        if not self.temperature:
            return int(logits.argmax())
        weights = np.exp((logits - logits.max()) / self.temperature)
        return int(self.random.choice(len(logits), p=weights / weights.sum()))


class TritonPythonModel:
    def initialize(self, args):
        self.network = Network(f"{args['model_repository']}/{args['model_version']}/model.gguf")
        names, merges = (self.network.fields(f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
        kinds = self.network.fields("tokenizer.ggml.token_type")
        self.end = self.network.fields("tokenizer.ggml.eos_token_id")
        pairs = [tuple(merge.split(" ")) for merge in merges]
        self.tokenizer = tokenizers.Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, pairs))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        self.tokenizer.decoder = decoders.ByteLevel()
        self.tokenizer.add_special_tokens([name for name, kind in zip(names, kinds, strict=True) if kind == 3])
        self.names = names
        self.bytes = byte_of_letter()
        # By the number that a request has while it is under way: its answer, and the last batch that it was in
        self.under_way = {}
        self.batch = 0

    def execute(self, requests):
        self.batch += 1
        answers = []
        for request in requests:
            key = request.correlation_id()
            answer = self.begin(request) if request.flags() & START else self.under_way[key][0]
            self.under_way[key] = answer, self.batch
            answers.append(answer)
        logits = self.network.step(answers)
        for request, answer, row in zip(requests, answers, logits, strict=True):
            sender = request.get_response_sender()
            if answer.todo and not request.is_cancelled():
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                continue  # a long prompt
            token = answer.choose(row)
            reason = "stop" if token == self.end else "length" if answer.count >= answer.most else ""
            text = b"" if token == self.end else self.bytes_of(token)
            told = {"num_input_tokens": answer.prompt, "num_output_tokens": 1}
            sender.send(response(text, **told, **({"finish_reason": reason} if reason else {})))
            if reason or request.is_cancelled():
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                del self.under_way[request.correlation_id()]
            else:
                answer.todo = [token]
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        for key in [key for key, (_, seen) in self.under_way.items() if self.batch - seen > MISSED]:
            del self.under_way[key]

    def begin(self, request):
        (messages,) = pb_utils.get_input_tensor_by_name(request, "messages").as_numpy().reshape(-1)
        said = json.loads(messages)
        turns = said if said[0]["role"] == "system" else [SYSTEM, *said]
        text = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)
        tokens = self.tokenizer.encode(text + "<|im_start|>assistant\n").ids
        return Answer(tokens[-self.network.most // 2 :], self.network, json.loads(request.parameters()))

    def bytes_of(self, token):
        """The bytes of a token, which may end within a character: the server waits for the rest."""
        return bytes(self.bytes[letter] for letter in self.names[token])


def response(text, **parameters):
    output = pb_utils.Tensor("text_output", np.array([[text]], object))
    return pb_utils.InferenceResponse([output], parameters=parameters)


def byte_of_letter():
    """The letters by which the names of tokens stand for bytes: printable ones for themselves, others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}

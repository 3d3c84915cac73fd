"""Text to the numbers of its word pieces, with the tokenizer that the network was trained with."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

LONGEST = 256  # word pieces; what is beyond them is left out, as when the network was trained

# Requests can only be computed together where they have the same length. Rounded up, like lengths become the same.
MULTIPLE = 16


class TritonPythonModel:
    def initialize(self, args):
        file = Path(args["model_repository"]) / args["model_version"] / "tokenizer.json"
        self.tokenizer = Tokenizer.from_file(str(file))
        self.tokenizer.enable_truncation(LONGEST)
        self.tokenizer.enable_padding(pad_to_multiple_of=MULTIPLE)

    def execute(self, requests):
        return [self.tokenize(request) for request in requests]

    def tokenize(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
        encodings = self.tokenizer.encode_batch([text.decode(errors="replace") for text in texts])
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("input_ids", np.array([one.ids for one in encodings])),
                pb_utils.Tensor("attention_mask", np.array([one.attention_mask for one in encodings])),
                pb_utils.Tensor("token_type_ids", np.array([one.type_ids for one in encodings])),
            ]
        )

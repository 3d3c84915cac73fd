"""What a model of texts computes: word pieces, a network, and the mean of what that says of each piece.

The served models import this file from their own folder, so it imports nothing of the benchmark's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

# The tokenizer's threads would get in the way of the client's.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer

LONGEST = 256  # word pieces


class TextModel:
    """The tokenizer in tokenizer.json of a folder, and the network in model.onnx, run by one thread.

    The network gets `most` texts at once, of like lengths where there are more: what is added to the shorter ones costs
    as much as words do.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._most = most
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        file = str(folder / "model.onnx")
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self._names = {one.name for one in self._session.get_inputs()}

    def run(self, texts: list[str]) -> np.ndarray[Any, Any]:
        """A row of floats for each text."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        rows: list[Any] = [None] * len(texts)
        for start in range(0, len(order), self._most):
            places = order[start : start + self._most]
            for place, row in zip(places, self._run([texts[place] for place in places]), strict=True):
                rows[place] = row
        return np.array(rows)

    def _run(self, texts: list[str]) -> np.ndarray[Any, Any]:
        encodings = self._tokenizer.encode_batch(texts)
        mask = np.array([one.attention_mask for one in encodings])
        inputs = {"input_ids": np.array([one.ids for one in encodings]), "attention_mask": mask}
        if "token_type_ids" in self._names:
            inputs["token_type_ids"] = np.zeros_like(mask)
        (pieces,) = self._session.run(None, inputs)
        weights = (mask / mask.sum(axis=1, keepdims=True)).astype(np.float32)
        means: np.ndarray[Any, Any] = (weights[:, np.newaxis] @ pieces)[:, 0]
        return means

"""Embeddings: the rows of a model's output of floats, as lists of numbers or in base64."""

# Compiled by mypyc.
from __future__ import annotations

import base64

import numpy as np
import orjson
from stubserve_stub.wire.datatypes import BY_NUMBER

from stubserve.errors import internal, invalid
from stubserve.http.openai.writer import Form, Writer
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Response
from stubserve.inference.token_counts import TokenCounts


class VectorWriter(Writer):
    """The embeddings of `rows` texts, the first of which is number `index`; they have `size` numbers, 0 for any."""

    def __init__(
        self,
        tokens: TokenCounts,
        form: Form,
        index: int,
        rows: int,
        output: str,
        size: int,
        in_base64: bool,
    ) -> None:
        super().__init__(tokens, index)
        self._form = form
        self._index = index
        self._rows = rows
        self._output = output
        self._size = size
        self._in_base64 = in_base64

    def read(self, response: Response) -> LongWork[list[bytes]]:
        self.usage.add(response)
        tensor = next((tensor for tensor in response.outputs if tensor.name == self._output), None)
        if tensor is None:
            return []
        values = np.frombuffer(tensor.buffer, BY_NUMBER[tensor.datatype].numpy)
        if not len(values) or len(values) % self._rows:
            raise internal(
                f"model '{self._form.model}' gave an output '{self._output}' of shape {list(tensor.shape)} for "
                f"{self._rows} texts"
            )
        vectors = values.astype("<f4").reshape(self._rows, -1)
        if self._size and vectors.shape[1] != self._size:
            raise invalid(
                f"model '{self._form.model}' makes embeddings of {vectors.shape[1]} numbers, not of {self._size}"
            ).at("dimensions")
        self.over = True
        rows: list[bytes] = []
        for number, vector in enumerate(vectors, self._index):
            if rows:
                rows.append(b",")
                yield None
            if self._in_base64:
                written = b'"%b"' % base64.b64encode(vector.data)
            else:
                written = orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)
            rows.append(b'{"object":"embedding","index":%d,"embedding":%b}' % (number, written))
        return rows

    def end(self) -> list[bytes]:
        if not self.over:
            raise internal(f"model '{self._form.model}' gave no output '{self._output}'")
        return []

"""The body of a request to OpenAI's routes, and the answer to it, in which its stops are looked for.

The first byte says which route it is, and the second in how long pieces the model answers the texts of the request.
"""

from __future__ import annotations

import json
from typing import Any

from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BYTES

from stubserve.api.placement import BodyPlacer
from stubserve.errors import ServeError
from stubserve.http.openai.body import Asked, pack_asked, read_body, unpack_asked
from stubserve.http.openai.texts import TextWriter
from stubserve.http.openai.use import CHAT, COMPLETIONS, EMBEDDINGS, TEXT_OUTPUT
from stubserve.http.openai.writer import Form
from stubserve.inference.long_work import finish
from stubserve.inference.request import Response
from stubserve.inference.tensor import Tensor
from stubserve.inference.token_counts import TokenCounts

from ..finding import Finding, same
from ..server import Memory

ROUTES = [CHAT, COMPLETIONS, EMBEDDINGS]


def fuzz_one(data: bytes) -> None:
    if len(data) < 2:
        return
    route, size = ROUTES[data[0] % len(ROUTES)], data[1] % 64 + 1
    try:
        asked = read_body(data[2:], route)
    except ServeError:
        return
    memory = Memory()
    same(unpack_asked(pack_asked(asked, BodyPlacer(b"", None, 0, memory.store))), asked, "it is handed on changed")
    if memory.held:
        raise Finding("blocks are held afterwards", str(memory.held))
    if route != EMBEDDINGS:
        text = "".join(asked.texts)
        stops = [at for at in map(text.find, asked.stops) if at >= 0]
        expected = text[: min(stops, default=len(text))]
        same(_answer(asked, route, [text]), expected, "a stop is overlooked, or none is found")
        pieces = [text[at : at + size] for at in range(0, len(text), max(size, len(text) // 100))]
        whole = "".join(pieces)
        stops = [at for at in map(whole.find, asked.stops) if at >= 0]
        same(_answer(asked, route, pieces), whole[: min(stops, default=len(whole))], "it hangs on the pieces")


def _answer(asked: Asked, route: str, pieces: list[str]) -> str:
    """What a client is sent of a model's pieces."""
    writer = TextWriter(TokenCounts(), Form(route, asked.model, False, False), 0, 0, asked.stops)
    written: list[bytes] = []
    for piece in pieces:
        if not writer.over:
            told = Tensor(TEXT_OUTPUT, BYTES, [1], strings.join([piece.encode()]))
            written += finish(writer.read(Response([told])))
    choice: Any = json.loads(b"".join([*written, *writer.end()]))
    text: str = choice["message"]["content"] if route == CHAT else choice["text"]
    return text


def seed(route: str, size: int, **members: object) -> bytes:
    return bytes([ROUTES.index(route), size]) + json.dumps({"model": "m", **members}).encode()


PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SEEDS = [
    seed(COMPLETIONS, 3, prompt="abababababac", stop="ababac", max_tokens=5, temperature=0.5),
    seed(COMPLETIONS, 0, prompt=["one two", "three"], stop=["two", "e"], n=2, stream=True, echo=True, logprobs=1),
    seed(COMPLETIONS, 1, prompt="ab" * 4000, stop="ab" * 3900 + "c"),
    seed(CHAT, 7, messages=[{"role": "user", "content": PARTS}, {"role": "a", "content": None}], stop=["o\u00e9", "t"]),
    seed(CHAT, 2, messages=[{"role": "user", "content": "x"}], tools=[TOOL], tool_choice="required", stream=True),
    seed(EMBEDDINGS, 0, input=["a", "b"], encoding_format="base64", dimensions=3),
]
WORDS = [
    b'"stop":',
    b'["ab","b"]',
    b'"n":128,',
    b'"messages":',
    b'"content":',
    b'"tools":[],',
    b'"tool_choice":{"type":"function","function":{"name":"g"}},',
    b'"stream_options":{"include_usage":true},',
    b'"parameters":{},',
    b'"min_tokens":-1,',
    b"null",
    b"1e400",
    b'"\\ud83d"',
    b'"\\ud83d\\ude00"',
]

"""Clients of models that strangers have to do with, and of a front."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from typing import Any

from ..grpc_clients import Unary
from ..http_clients import Binary, HttpClient, Sums, Vanishing, json_events, read, require_success
from ..world import ANSWER_WITHIN_S, HOST, Refused, World, Wrong
from .stranger import FRAMES

# Of an error's text
MOST_LETTERS = 10_000
# The event loop does half a millisecond of long work at a time. So long it stands still on no machine.
HALTS_S = 5.0
PIPELINED = 500
# For how long an unanswered setting may still come
LATE_S = 60.0


class Peer(Binary):
    """A model of another server."""

    model = "peer"


class UnaryPeer(Unary):
    model = "peer"


class Lied(Binary):
    """The other server lies: its client gets an error, in words that are for it."""

    model = "lied"

    def ask(self) -> None:
        _, body, headers = self.request()
        try:
            read(self.post(f"/v2/models/{self.model}/infer", body, headers))
        except Refused as error:
            if len(str(error)) > MOST_LETTERS or "Traceback" in str(error) or 'File "' in str(error):
                raise Wrong(f"an error that is not for clients: {str(error)[:500]}") from None
            raise
        raise Wrong("a lie of another server was passed on")


class VanishingPeers(Vanishing):
    tensor_models, streaming = ("peer", "lied"), "counts"


class Frames(HttpClient):
    """All frames of a video. A stub that dies in the middle leaves some out, and says so."""

    def ask(self) -> None:
        for event in follow(self, self.world.stranger.clip):
            if event.get("EVENT") == "ended" and event.get("NUMBER", FRAMES - 1) != FRAMES - 1:
                raise Wrong(f"a video of {FRAMES} frames ended with number {event['NUMBER']}")


class Sources(HttpClient):
    """Addresses of no video. Some stay to the end, which has to come; the others leave."""

    def ask(self) -> None:
        source = self.random.choice(self.world.stranger.sources)
        if self.random.random() < 0.3:
            follow(self, source)
            return
        body = json.dumps({"SOURCE": source}).encode()
        head = f"POST /v2/models/video/generate_stream HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        with self.world.connect(self.world.http_port) as connection:
            connection.sendall(head.encode() + body)
            connection.settimeout(self.random.choice([0.01, 0.5, 2]))
            with contextlib.suppress(TimeoutError):
                connection.recv(10_000)


def follow(client: HttpClient, source: str) -> list[dict[str, Any]]:
    """The events of a source. Raises Refused if it ends with an error."""
    body = json.dumps({"SOURCE": source, "EVENT": True}).encode()
    events = json_events(read(client.post("/v2/models/video/generate_stream", body)))
    require_success(events)
    return events


class Completions(HttpClient):
    """The words of a prompt come back, whole or as events, up to a stop."""

    def ask(self) -> None:
        words = [str(self.random.randrange(1 << 20)) for _ in range(self.random.choice([1, 10, 300]))]
        stop = self.random.choice([None, words[-1], [words[-1], "x" * 100]])
        body = {"model": "words", "prompt": " ".join(words), "stop": stop, "stream": self.random.random() < 0.5}
        expected = " ".join(words) if stop is None else " ".join(words).partition(words[-1])[0]
        said = completed(self, body)
        if said != expected:
            raise Wrong(f"completion of {str(body)[:200]}: ...{said[-100:]!r}")


class NearlyStops(HttpClient):
    """A long text that repeats most of its long stop, and never all of it."""

    pause_s = 1.0

    def ask(self) -> None:
        size = self.random.choice([1000, 100_000, 400_000])
        text = "ab" * (size // 2)
        said = completed(self, {"model": "words", "prompt": text, "stop": "a" + text + "!"})
        if said != text:
            raise Wrong(f"{len(said)} of {size} letters of a text without its stop")


def completed(client: HttpClient, body: dict[str, Any]) -> str:
    answer = read(client.post("/v1/completions", json.dumps(body).encode()))
    if not body.get("stream"):
        return str(json.loads(answer)["choices"][0]["text"])
    events = json_events(answer)
    require_success(events)
    return "".join(event["choices"][0]["text"] for event in events)


MEMBERS: dict[str, Any] = {
    "model": "words",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "1 2"}]}],
    "prompt": ["1 2", "3"],
    "n": 2,
    "stop": ["2"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": "required",
    "logprobs": 1,
    "min_tokens": -1,
    "user": "a",
}


class Bodies(HttpClient):
    """Any members on any of OpenAI's routes, with the value of their own or another: an answer, or an error."""

    def ask(self) -> None:
        names = self.random.sample(list(MEMBERS), self.random.randrange(len(MEMBERS)))
        body: dict[str, Any] = {"model": "words"}
        for name in names:
            other = self.random.choice([name] * 6 + names)
            body[name] = MEMBERS[other]
        route = self.random.choice(["chat/completions", "completions", "embeddings"])
        read(self.post(f"/v1/{route}", json.dumps(body).encode()))


class Poison(HttpClient):
    """A request that kills the stub which executes it."""

    pause_s = 0.3

    def ask(self) -> None:
        raise Wrong(f"poison was survived: {str(self.infer_json('poisoned', 'X', 'FP32', [-1]))[:200]}")


class Healthy(Binary):
    """Good requests to the same model."""

    model, factor, more = "poisoned", 1.0, 0.0


class Pulse(HttpClient):
    """Whether the server answers at all. No request may halt it."""

    pause_s = 0.05

    def ask(self) -> None:
        began = time.monotonic()
        read(self.post("/v2/health/live", None, method="GET"))
        taken = time.monotonic() - began
        if taken > HALTS_S and self.world.ran_since(began):
            raise Wrong(f"health was answered after {taken:.1f} s")


class Fronted(HttpClient):
    """Asks the front, which ends the connections of a server that is too slow to say that it lives."""

    _downs = 0

    def was_cut(self) -> bool:
        """Whether the front has taken a server for dead since this was last asked."""
        before, self._downs = self._downs, self.world.front_downs()
        return self._downs != before

    def port(self) -> int:
        if not self.world.front_port:
            raise Refused("there is no HAProxy")
        return self.world.front_port


class FrontBinary(Fronted, Binary):
    pass


IDS = ["%d", "a%d", " lead %d", ",x%d", "caf\u00e9 %d", '"%d', "%d}", "\u4e2d%d"]


class FrontSums(Fronted, Sums):
    """Sequences that have to stay where they are, however their ids are spelled."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.steps.id = IDS[seed] % (seed + 1) if seed < len(IDS) else "0"

    def ask(self) -> None:
        value, begins, ends = self.steps.next()
        body = spelled(value, self.steps.parameters(begins, ends), self.random)
        answer = json.loads(read(self.post("/v2/models/sums/infer", body)))
        self.steps.check(answer["outputs"][0]["data"][0])


def spelled(value: int, parameters: dict[str, Any], chance: random.Random) -> bytes:
    """A step of a sequence, in one of the ways in which JSON may say it."""
    tensor = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    members = {"inputs": [tensor], "parameters": parameters, "id": '"sequence_id": 7'}
    names = chance.sample(list(members), len(members))
    text = json.dumps({name: members[name] for name in names}, ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.3:
        text = text.replace('"sequence_id"', chance.choice(['"sequence\\u005fid"', '"sequence_id" \t']))
    return text.encode()


class FrontSettings(Fronted):
    """Sets what all servers have to have alike. There is one such client.

    A setting that a server has not answered may come to the server late.
    """

    pause_s = 0.1
    _unanswered_at = -LATE_S

    def ask(self) -> None:
        path = self.random.choice(["/v2/logging", "/v2/loggin%67", "/v2/%6Cogging", "//v2/logging", "/v2/./logging"])
        body = json.dumps({"log_warning": self.random.random() < 0.5}).encode()
        try:
            read(self.post(path, body))
        except (Refused, OSError) as error:
            if "404" not in str(error):
                self._unanswered_at = time.monotonic()
            raise
        seen = [self._seen(port) for port in (self.world.http_port, self.world.neighbour_port)]
        if seen[0] != seen[1] and time.monotonic() - self._unanswered_at > LATE_S:
            raise Wrong(f"{path} has reached one server: {seen}")

    def _seen(self, port: int) -> bool:
        connection = self.world.http(port)
        try:
            connection.request("GET", "/v2/logging")
            return bool(json.loads(connection.getresponse().read())["log_warning"])
        finally:
            connection.close()


class FrontFlood(Fronted):
    """Many requests that are no inference, each of another sequence."""

    def ask(self) -> None:
        head = "GET /v2/models/nobody/infer HTTP/1.1\r\nHost: a\r\nx-sequence-id: %d\r\n\r\n"
        data = "".join(head % self.random.randrange(1 << 62) for _ in range(PIPELINED)).encode()
        with socket.create_connection((HOST, self.port()), ANSWER_WITHIN_S) as connection:
            connection.sendall(data)
            with contextlib.suppress(ConnectionError):
                seen = 0
                while seen < PIPELINED and (piece := connection.recv(1 << 16)):
                    seen += piece.count(b"HTTP/1.1 ")

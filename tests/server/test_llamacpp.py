"""The llamacpp backend in a server, with SmolLM2 (0.1 GB): chats, embeddings, clients that go, a stub that dies."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples import REPOSITORY, fetch
from tests.real_server import PATIENCE_S, WORK_S, Serving, eventually, refused
from tools.bench import chats, servers
from tools.bench.chats import SmolLM2
from tools.bench.workloads import Subject

pytestmark = pytest.mark.long
pytest.importorskip("xllamacpp", reason="`make test-long` installs it")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SLOTS = 4

# A template that is made of the tools alone
TOOLS_TEMPLATE = "{% for tool in tools %}The capital of {{ tool.function.name }} is{% endfor %}"


def write(repository: Path, name: str, **parameters: Any) -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.gguf").symlink_to(REPOSITORY / "smollm2" / "1" / "model.gguf")
    (folder / "1" / "tools.jinja").write_text(TOOLS_TEMPLATE)
    given = {"n_threads": 1, "n_ctx": 2048, "n_parallel": SLOTS, **parameters}
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in given.items()]
    (folder / "config.pbtxt").write_text("\n".join(['backend: "llamacpp"', *lines]))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    fetch()
    repository = tmp_path_factory.mktemp("models")
    write(repository, "smollm2")
    write(repository, "tools", chat_template="tools.jinja")
    write(repository, "vectors", embedding=1, pooling="mean")
    with Serving(repository, "--openai") as server:
        server.patience_s = WORK_S
        server.wait_until_ready()
        yield server


def ask(serving: Serving, path: str, status: int = 200, **body: Any) -> Any:
    answer = serving.request("POST", path, json.dumps({"model": "smollm2", **body}).encode())
    assert answer.status == status, answer
    return answer.json()


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_chats_and_completions(serving: Serving) -> None:
    chat = ask(serving, CHAT, messages=user("Say hello."), max_tokens=8, temperature=0)
    (choice,) = chat["choices"]
    assert "Hello" in choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert chat["usage"]["completion_tokens"] == 8
    answer = ask(serving, COMPLETIONS, prompt=["One, two,", "Red, green"], n=2, max_tokens=3, logprobs=1)
    assert sorted(choice["index"] for choice in answer["choices"]) == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 12
    assert all(choice["logprobs"] for choice in answer["choices"])


def test_json_by_a_schema(serving: Serving) -> None:
    schema = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {**schema, "additionalProperties": False}},
    }
    answer = ask(serving, CHAT, messages=user("Which color has the sky?"), response_format=form, max_tokens=40)
    assert json.loads(answer["choices"][0]["message"]["content"])["color"] in ("red", "blue")
    grammar = ask(serving, COMPLETIONS, prompt="The sky is", grammar='root ::= " green"', max_tokens=9)
    assert grammar["choices"][0]["text"] == " green"


def test_the_template_gets_tools(serving: Serving) -> None:
    tool = {"type": "function", "function": {"name": "France", "parameters": {"type": "object", "properties": {}}}}
    body = {"messages": user("Where is it?"), "tools": [tool], "tool_choice": "none", "max_tokens": 4}
    answer = ask(serving, CHAT, model="tools", temperature=0, **body)
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_embeddings(serving: Serving) -> None:
    answer = ask(serving, "/v1/embeddings", model="vectors", input=["a dog", "a dog", "seven"])
    first, second, third = [row["embedding"] for row in answer["data"]]
    assert first == pytest.approx(second, abs=1e-3)
    assert len(first) == 576
    assert first != pytest.approx(third, abs=1e-3)


def test_requests_that_the_engine_refuses(serving: Serving) -> None:
    error = ask(serving, COMPLETIONS, 400, prompt="a " * 3000)["error"]
    assert re.match(r"request \(\d+ tokens\) exceeds the available context size", error["message"])
    error = ask(serving, CHAT, 400, messages=user("a"), tools=[{"type": "odd"}])["error"]
    assert error["message"]
    error = ask(serving, COMPLETIONS, 400, prompt="a", grammar="root ::= (")["error"]
    assert error["message"]


def begin(serving: Serving, body: dict[str, Any]) -> socket.socket:
    """A stream, after its first event."""
    text = json.dumps({"model": "smollm2", "stream": True, **body}).encode()
    connection = socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_S)
    connection.sendall(
        b"POST %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
        % (CHAT.encode(), len(text), text)
    )
    return connection


def running(serving: Serving) -> int:
    found = re.search(r'vllm:num_requests_running\{model_name="smollm2"[^}]*\} (\d+)', serving.metrics().body.decode())
    assert found is not None
    return int(found[1])


def test_clients_that_vanish_leave_no_slot(serving: Serving) -> None:
    body = {"messages": user("Tell a story without an end."), "max_tokens": 1500, "ignore_eos": True}
    for _ in range(10):
        for connection in [begin(serving, body) for _ in range(20)]:
            connection.close()
    eventually(lambda: running(serving) == 0)
    with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
        asked = [pool.submit(ask, serving, COMPLETIONS, prompt=f"{n}", max_tokens=2) for n in range(SLOTS)]
        assert all(one.result()["usage"]["completion_tokens"] == 2 for one in asked)


def test_a_stub_that_is_killed(serving: Serving) -> None:
    (pid,) = [one for one in serving.stub_pids() if "smollm2" in Path(f"/proc/{one}/cmdline").read_text()]
    connection = begin(serving, {"messages": user("Count to a thousand."), "max_tokens": 1500, "ignore_eos": True})
    with connection, connection.makefile("rb") as lines:
        while b'"content":"' not in lines.readline():
            pass
        os.kill(pid, signal.SIGKILL)
        *_, last = [line for line in lines if line.startswith(b"data: ")]
    assert b"killed by signal 9" in last
    assert b'"error"' in last
    assert ask(serving, COMPLETIONS, prompt="One, two,", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_file_alone(tmp_path: Path) -> None:
    fetch()
    file = tmp_path / "Smol.LM2.gguf"
    file.symlink_to(REPOSITORY / "smollm2" / "1" / "model.gguf")
    with Serving(file, "--openai") as server:
        assert [one["id"] for one in server.get("/v1/models").json()["data"]] == ["Smol.LM2"]
        assert ask(server, CHAT, model="Smol.LM2", messages=user("a"), max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes((REPOSITORY / "smollm2" / "1" / "model.gguf").read_bytes()[:100_000])
    server = refused(file)
    server.wait_for(r"llama\.cpp cannot load '.*/broken\.gguf', and says why in the log")
    server.wait_for(r"(?i)failed to (load|read)")


def test_the_row_of_the_bench_that_compares_it_with_the_engines_own_server(tmp_path: Path) -> None:
    fetch()
    program = servers.stubserve(Path(sys.executable))
    subject = Subject(program, servers.Server(program, tmp_path, tmp_path / "log"), tmp_path)
    with subject.stack:
        figures = SmolLM2(1, 16).measure(subject, 0)
    assert figures[chats.TOKENS] > 0
    assert figures[chats.ENGINES[chats.TOKENS]] > 0

"""The process of a repository agent: it runs the agent's hooks, which a socket names.

It imports nothing of the server. Each line of the socket is a JSON object; hooks run in threads, since those of one
model may take long while those of another are wanted. It ends with the server.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

# The last hooks of a model
_LAST = ("load_fail", "unload_complete")


class AgentModel:
    """The model of a hook: its `name`, the folder with its files, and the agent's `parameters`.

    `new_folder` is an empty folder for an agent that relocates the model; it is removed with the model.
    """

    def __init__(self, name: str, folder: str, parameters: dict[str, str], new_folder: str) -> None:
        self.name = name
        self.folder = Path(folder)
        self.parameters = parameters
        self.new_folder = Path(new_folder)

    def __repr__(self) -> str:
        return f"<Model {self.name} in {self.folder}>"


class Runner:
    """The agent's objects, one for each load of a model."""

    def __init__(self, agent_class: Any, connection: socket.socket) -> None:
        self._agent_class = agent_class
        self._connection = connection
        self._sending = threading.Lock()
        self._agents: dict[int, Any] = {}

    def serve(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                threading.Thread(target=self._answer, args=(json.loads(line),), daemon=True).start()

    def _answer(self, asked: dict[str, Any]) -> None:
        answer = {"id": asked["id"]}
        try:
            found = self._run(asked)
            answer["folder"] = None if found is None else os.fspath(found)
        except BaseException as raised:
            text = "".join(traceback.format_exception_only(type(raised), raised)).strip()
            answer["error"] = text
            traceback.print_exc()
        text = json.dumps(answer, default=str) + "\n"
        with self._sending:
            self._connection.sendall(text.encode())

    def _run(self, asked: dict[str, Any]) -> Any:
        run, hook = asked["run"], asked["hook"]
        if run not in self._agents:
            self._agents[run] = self._agent_class()
        agent = self._agents[run]
        if hook in _LAST:
            del self._agents[run]
        method = getattr(agent, hook, None)
        model = AgentModel(asked["name"], asked["folder"], asked["parameters"], asked["new_folder"])
        return None if method is None else method(model)


def main() -> None:
    file, descriptor = sys.argv[1], int(sys.argv[2])
    # As `stubserve.closed_process`: its environment has the server's secrets, and models run as the same user.
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    connection = socket.socket(fileno=descriptor)
    sys.path[0] = os.path.dirname(file)
    try:
        spec = importlib.util.spec_from_file_location("agent", file)
        assert spec is not None and spec.loader is not None  # noqa: PT018
        module = importlib.util.module_from_spec(spec)
        sys.modules["agent"] = module
        spec.loader.exec_module(module)
        agent_class = module.TritonRepoAgent
    except BaseException as raised:
        traceback.print_exc()
        connection.sendall(json.dumps({"id": 0, "error": f"{type(raised).__name__}: {raised}"}).encode() + b"\n")
        raise SystemExit(1) from None
    connection.sendall(b'{"id": 0}\n')
    Runner(agent_class, connection).serve()


if __name__ == "__main__":
    main()

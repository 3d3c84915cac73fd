"""Nodes on one machine: network namespaces on a bridge, which can be cut off. Needs root and iproute2."""

from __future__ import annotations

import contextlib
import secrets
import subprocess


class Network:
    """Nodes with the addresses `prefix`.1, `prefix`.2 and so on; this machine has `prefix`.254. `undo` ends it."""

    def __init__(self, prefix: str, nodes: int, undo: contextlib.ExitStack) -> None:
        """Raises OSError or CalledProcessError where this machine makes no networks."""
        self._prefix = prefix
        # What is deleted may last until its last process is gone, so each network has names of its own.
        self._link = f"sbr{secrets.token_hex(3)}"
        self.names = [f"{self._link}n{node}" for node in range(nodes)]
        run("ip", "link", "add", self._link, "type", "bridge")
        undo.callback(run, "ip", "link", "del", self._link)
        run("ip", "addr", "add", f"{prefix}.254/24", "dev", self._link)
        run("ip", "link", "set", self._link, "up")
        for node, name in enumerate(self.names):
            here = f"{self._link}v{node}"
            run("ip", "netns", "add", name)
            undo.callback(run, "ip", "netns", "del", name)
            run("ip", "link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", here, "master", self._link, "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")

    def address(self, node: int) -> str:
        return f"{self._prefix}.{node + 1}"

    def within(self, node: int) -> list[str]:
        """The beginning of a command that runs on a node."""
        return ["ip", "netns", "exec", self.names[node]]

    def cut_off(self, node: int) -> None:
        run("ip", "link", "set", f"{self._link}v{node}", "down")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

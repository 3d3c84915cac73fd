"""`testing.serve`: a real server for a test of somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from stubserve import testing
from tests.real_server import write_model


def test_lists_become_arrays_of_the_models_types(repository: Path) -> None:
    write_model(repository, "echo")
    with testing.serve(repository) as server:
        assert server.infer("echo", INPUT0=[1, 2])["OUTPUT0"].tolist() == [1.0, 2.0]
        with pytest.raises(testing.ModelError, match="unexpected inference input 'OTHER'"):
            server.infer("echo", OTHER=[1])


def test_a_server_that_does_not_start_says_why(repository: Path) -> None:
    write_model(repository, "broken", "import nothing_like_it")
    with pytest.raises(RuntimeError, match="No module named 'nothing_like_it'"), testing.serve(repository):
        pass


def test_neither_a_quiet_log_nor_a_proxy_keeps_a_test_from_its_server(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(repository, "echo")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with testing.serve(repository, "--log-info=false", f"--log-file={tmp_path / 'log'}") as server:
        assert server.infer("echo", INPUT0=[1])["OUTPUT0"].tolist() == [1.0]

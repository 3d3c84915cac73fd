"""Models whose names say something to shells, formats of text, and readers of options."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import quote

from tests.real_server import Serving, write_model

# Each would leave a file in the working folder of a shell, or an interpreter, that reads it.
COMMANDS = ["$(touch made)", "`touch made`", "'\";touch made;", "a&&touch made", "a|touch made", "-c open('made','w')"]
# Odd, but names
ODD = ["--help", "-", "%s%n", "a b"]
ONE = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [5]}


def test_a_name_is_never_a_command(tmp_path: Path) -> None:
    """Neither that of a folder in the repository, nor that of a model that a request makes."""
    here, models = tmp_path / "here", tmp_path / "models"
    here.mkdir()
    for name in (*COMMANDS, *ODD):
        write_model(models, name)
    serving = Serving(models, "--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false")
    serving.command = ["env", "-C", str(here), *serving.command]
    with serving as server:
        server.wait_until_ready()
        for name in COMMANDS:
            path = f"/v2/repository/models/{quote(name, safe='')}"
            made = {"parameters": {"config": json.dumps({"backend": "python"}), "file:1/model.py": "eA=="}}
            for body in ({}, made):
                answer = server.request("POST", f"{path}/load", json.dumps(body).encode())
                assert (answer.status, answer.error) == (400, "Invalid stub name: contains invalid characters")
        for name in ODD:
            answer = server.infer_json(quote(name, safe=""), [ONE])
            assert (answer.status, b"[5.0]" in answer.body) == (200, True), (name, answer)
        assert sorted(row["name"] for row in server.request("POST", "/v2/repository/index").json()) == sorted(ODD)
        assert os.listdir(here) == []

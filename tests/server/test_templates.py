"""Repositories whose templates nobody has filled in, as tensorrtllm_backend's before its script has run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.real_server import Serving, io_config, write_model


def test_a_load_names_file_line_and_template(repository: Path) -> None:
    folder = write_model(repository, "m", config='backend: "python"\nmax_batch_size: ${triton_max_batch_size}\n')
    with Serving(repository, "--exit-on-error=false") as server:
        (row,) = server.request("POST", "/v2/repository/index").json()
        assert (row["name"], row["state"]) == ("m", "UNAVAILABLE")
        place = f"{folder / 'config.pbtxt'}: line 2, column 17: ${{triton_max_batch_size}} is a template"
        assert place in row["reason"]
        assert "tools/fill_template.py -i config.pbtxt triton_max_batch_size:VALUE" in row["reason"]
        server.wait_for(re.escape(place))


def test_a_model_with_templates_in_strings_is_served_and_the_log_names_them(repository: Path) -> None:
    extra = 'parameters { key: "dir" value { string_value: "${engine_dir}" } }'
    folder = write_model(repository, "m", config=io_config(extra=extra))
    with Serving(repository) as server:
        server.wait_until_ready()
        shown = server.get("/v2/models/m/config").json()["parameters"]["dir"]["string_value"]
        assert shown == "${engine_dir}"
        said = f"{folder / 'config.pbtxt'}:6: ${{engine_dir}} is a template that has not been filled in"
        server.wait_for_all(said, 1)

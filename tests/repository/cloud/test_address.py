"""Addresses of repositories in the cloud, and whose credentials are taken for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stubserve.errors import ServeError
from stubserve.repository.cloud.store import Address, parse_address


def options(address: Address) -> dict[str, Any]:
    """Those that tests look at."""
    return {name: value for name, value in address.options.items() if name != "config_kwargs"}


@pytest.mark.parametrize(
    ("text", "protocol", "path", "expected"),
    [
        ("s3://bucket/a/b", "s3", "bucket/a/b", {}),
        ("s3://bucket/", "s3", "bucket", {}),
        ("s3://localhost:4566/bucket/a", "s3", "bucket/a", {"endpoint_url": "http://localhost:4566"}),
        ("s3://http://10.0.0.1:9000/bucket", "s3", "bucket", {"endpoint_url": "http://10.0.0.1:9000"}),
        ("s3://https://host:443/bucket/a/", "s3", "bucket/a", {"endpoint_url": "https://host:443"}),
        ("gs://bucket/a", "gs", "bucket/a", {}),
        ("as://account/container/a", "abfs", "container/a", {"account_name": "account"}),
        ("as://account.blob.core.windows.net/container", "abfs", "container", {"account_name": "account"}),
    ],
)
def test_addresses(text: str, protocol: str, path: str, expected: dict[str, Any]) -> None:
    address = parse_address(text, {})
    assert (address.protocol, address.path, options(address)) == (protocol, path, expected)


@pytest.mark.parametrize("text", ["s3://", "s3://localhost:4566/", "ftp://host/a", "/models", "as://account"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ServeError, match=r"is no address of a repository|names no bucket"):
        parse_address(text, {})


def test_environment() -> None:
    assert options(parse_address("s3://b", {"AWS_DEFAULT_REGION": "eu-west-1"})) == {
        "client_kwargs": {"region_name": "eu-west-1"}
    }
    assert options(parse_address("gs://b", {"GOOGLE_APPLICATION_CREDENTIALS": "/key"})) == {"token": "/key"}
    assert options(parse_address("as://a/c", {"AZURE_STORAGE_KEY": "k"})) == {"account_name": "a", "account_key": "k"}
    managed = {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "me"}
    assert options(parse_address("as://a/c", managed)) == {"account_name": "a", "anon": False, "client_id": "me"}


@pytest.fixture
def credentials(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "credentials.json"
    file.write_text(
        json.dumps(
            {
                "s3": {
                    "": {"key_id": "any", "secret_key": "s"},
                    "s3://one": {"key_id": "one", "secret_key": "s", "region": "r", "session_token": "t"},
                    "s3://one/deeper": {"profile": "p"},
                },
                "gs": {"gs://known": "/key.json"},
                "as": {"": {"account_str": "acc", "account_key": "k"}},
            }
        )
    )
    return {"TRITON_CLOUD_CREDENTIAL_PATH": str(file), "AWS_DEFAULT_REGION": "e"}


def test_the_longest_prefix_in_the_file_wins(credentials: dict[str, str]) -> None:
    assert options(parse_address("s3://other/a", credentials))["key"] == "any"
    assert options(parse_address("s3://one/a", credentials)) == {
        "key": "one",
        "secret": "s",
        "token": "t",
        "client_kwargs": {"region_name": "r"},
    }
    deeper = parse_address("s3://one/deeper/a", credentials)
    assert (deeper.options["profile"], "key" in deeper.options) == ("p", False)
    assert options(parse_address("gs://known/a", credentials)) == {"token": "/key.json"}
    assert options(parse_address("gs://other/a", credentials)) == {}
    assert options(parse_address("as://x/c", credentials)) == {"account_name": "x", "account_key": "k"}
    assert "secret" not in repr(deeper)


@pytest.mark.parametrize("text", ["{", "[]", '{"s3": []}', '{"s3": {"": 5}}'])
def test_a_file_that_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(text)
    with pytest.raises(ServeError, match=str(file)):
        parse_address("s3://b/c", {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})

"""Addresses of repositories in the cloud, as upstream writes them, and how their stores are opened.

    s3://bucket/path     s3://host:port/bucket/path     s3://https://host:port/bucket/path
    gs://bucket/path     as://account/container/path

Credentials are those of the provider's own environment variables, or of the file that TRITON_CLOUD_CREDENTIAL_PATH
names: `{"s3": {"<prefix>": {...}}, "gs": {"<prefix>": "<file>"}, "as": {"<prefix>": {...}}}`, of which the longest
prefix of an address wins. `options` are what fsspec's file system of the protocol is made with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stubserve.errors import ServeError, internal, invalid

CREDENTIAL_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"

_WITH_HOST = re.compile(r"s3://(?:(https?)://)?([^/:]+:\d+)/(.*)")
# How long S3 may take to be reached, and to send anything, before the next try
_S3_PATIENCE = {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 3, "mode": "standard"}}


@dataclass(frozen=True)
class Address:
    """A place in a store: `path` is what the file system of `protocol` calls it, made with `options`.

    `package` is the extra of stubserve that has the file system; `credentials` says to people where they come from.
    """

    text: str
    protocol: str
    path: str
    package: str
    credentials: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_address(text: str, environment: Mapping[str, str]) -> Address:
    """Raises ServeError: INVALID_ARG for what is no address, INTERNAL for a file of credentials that cannot be read."""
    scheme, between, rest = text.partition("://")
    if not between or scheme not in _READERS:
        raise invalid(f"'{text}' is no address of a repository: it begins with s3://, gs:// or as://")
    given = _given_credentials(scheme, text, environment)
    address = _READERS[scheme](text, rest.strip("/"), given, environment)
    if not address.path.strip("/"):
        raise invalid(f"'{text}' names no bucket")
    return address


def _s3(text: str, rest: str, given: Any, environment: Mapping[str, str]) -> Address:
    options: dict[str, Any] = {"config_kwargs": _S3_PATIENCE}
    client: dict[str, Any] = {}
    match = _WITH_HOST.fullmatch(text)
    path = rest
    if match is not None:
        path = match[3].strip("/")
        options["endpoint_url"] = f"{match[1] or 'http'}://{match[2]}"
        # As upstream: a store at an address of one's own knows no names of buckets before its host's.
        options["config_kwargs"] = {**_S3_PATIENCE, "s3": {"addressing_style": "path"}}
    credentials = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN or AWS_PROFILE"
    if given is not None:
        if not isinstance(given, dict):
            raise internal(f"the credentials of '{text}' in {environment[CREDENTIAL_FILE]} must be an object")
        credentials = environment[CREDENTIAL_FILE]
        for name, option in ("key_id", "key"), ("secret_key", "secret"), ("session_token", "token"):
            if given.get(name):
                options[option] = given[name]
        if given.get("profile"):
            options["profile"] = given["profile"]
        if given.get("region"):
            client["region_name"] = given["region"]
    if "region_name" not in client and environment.get("AWS_DEFAULT_REGION"):
        client["region_name"] = environment["AWS_DEFAULT_REGION"]
    if client:
        options["client_kwargs"] = client
    return Address(text, "s3", path, "s3", credentials, options)


def _gs(text: str, rest: str, given: Any, environment: Mapping[str, str]) -> Address:
    if given is not None:
        return Address(text, "gs", rest, "gcs", environment[CREDENTIAL_FILE], {"token": str(given)})
    file = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    # Without a file gcsfs tries the account of the machine, and then goes without one.
    return Address(text, "gs", rest, "gcs", "GOOGLE_APPLICATION_CREDENTIALS", {"token": file} if file else {})


def _as(text: str, rest: str, given: Any, environment: Mapping[str, str]) -> Address:
    host, _, path = rest.partition("/")
    account = host.partition(".")[0]
    names = {
        "account_str": environment.get("AZURE_STORAGE_ACCOUNT", ""),
        "account_key": environment.get("AZURE_STORAGE_KEY", ""),
        "auth_type": environment.get("AZURE_STORAGE_AUTH_TYPE", ""),
        "client_id": environment.get("AZURE_STORAGE_CLIENT_ID", ""),
    }
    credentials = "AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY or AZURE_STORAGE_AUTH_TYPE"
    if given is not None:
        if not isinstance(given, dict):
            raise internal(f"the credentials of '{text}' in {environment[CREDENTIAL_FILE]} must be an object")
        names = {name: str(given.get(name, "")) for name in names}
        credentials = environment[CREDENTIAL_FILE]
    options: dict[str, Any] = {"account_name": account or names["account_str"]}
    if names["account_key"]:
        options["account_key"] = names["account_key"]
    elif names["auth_type"] in ("default", "managed_identity"):
        # adlfs takes the chain of Azure's own defaults then, which knows of managed identities.
        options["anon"] = False
        if names["client_id"]:
            options["client_id"] = names["client_id"]
    return Address(text, "abfs", path, "azure", credentials, options)


_READERS = {"s3": _s3, "gs": _gs, "as": _as}


def _given_credentials(scheme: str, text: str, environment: Mapping[str, str]) -> Any:
    """What the file of credentials has for an address; None without a file, or where nothing in it fits."""
    file = environment.get(CREDENTIAL_FILE)
    if not file:
        return None
    try:
        document = json.loads(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _unreadable(file, str(why)) from None
    if not isinstance(document, dict):
        raise _unreadable(file, "no object")
    prefixes = document.get(scheme, {})
    if not isinstance(prefixes, dict):
        raise _unreadable(file, f"'{scheme}' is no object")
    fitting = [prefix for prefix in prefixes if text.startswith(prefix)]
    return prefixes[max(fitting, key=len)] if fitting else None


def _unreadable(file: str, why: str) -> ServeError:
    return internal(f"the file of credentials {file}, which {CREDENTIAL_FILE} names, cannot be read: {why}")

"""A store of objects, as repositories need it: its address, the names below a place, the bytes of one object.

    s3://bucket/path     s3://host:port/bucket/path     s3://https://host:port/bucket/path
    gs://bucket/path     as://account/container/path

Addresses are as upstream writes them. Credentials come from the provider's own environment variables, or from the file
that TRITON_CLOUD_CREDENTIAL_PATH names: `{"s3": {"<prefix>": {...}}, "gs": {"<prefix>": "<file>"}, "as": {"<prefix>":
{...}}}`; the longest prefix of an address wins. `options` are the arguments of fsspec's file system.

The file systems are fsspec's (s3fs, gcsfs, adlfs), imported when the first repository is opened: a server without one
does not need them. All calls block, so they are for threads; every error is a ServeError that names the address.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stubserve.errors import ServeError, internal, invalid, not_found, unavailable

CREDENTIAL_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"

_WITH_HOST = re.compile(r"s3://(?:(https?)://)?([^/:]+:\d+)/(.*)")
# How long a connection to S3, and each read, may take before the next try
_S3_PATIENCE = {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 3, "mode": "standard"}}


@dataclass(frozen=True)
class Address:
    """A place in a store: `path` in the file system of `protocol`, which is made with `options`.

    `package` is the extra of stubserve with the file system; `credentials` tells people the source of the credentials.
    """

    text: str
    protocol: str
    path: str
    package: str
    credentials: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_address(text: str, environment: Mapping[str, str]) -> Address:
    """Raises ServeError: INVALID_ARG for text that is no address, INTERNAL for an unreadable file of credentials."""
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
        # As upstream: a store at a custom address does not have bucket names in front of its host's.
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
        # adlfs then uses Azure's own default chain, which includes managed identities.
        options["anon"] = False
        if names["client_id"]:
            options["client_id"] = names["client_id"]
    return Address(text, "abfs", path, "azure", credentials, options)


_READERS = {"s3": _s3, "gs": _gs, "as": _as}


def _given_credentials(scheme: str, text: str, environment: Mapping[str, str]) -> Any:
    """The credentials of an address in the file; None without a file, or if no prefix fits."""
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


log = logging.getLogger("stubserve.repository")

# The fields that tell contents of an object apart, by the names of the different stores
_TAGS = ("ETag", "etag", "md5Hash", "generation", "version_id")
_TIMES = ("LastModified", "last_modified", "updated", "mtime")


@dataclass(frozen=True)
class Stamp:
    """The known facts of an object without its content: when they change, the object has changed."""

    size: int
    tag: str


class Store:
    """The objects below an address. Safe for threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._opening = threading.Lock()
        self._system: Any = None

    def names(self) -> list[str]:
        """The possible models: the names of the folders at the address. Raises ServeError."""
        root = self._address.path
        found = self._ask(lambda system: system.ls(root, detail=True, refresh=True))
        names = {self._below(entry["name"], root) for entry in found if entry["type"] == "directory"}
        return sorted(name for name in names if name and "/" not in name)

    def listing(self, name: str) -> dict[str, Stamp]:
        """The objects of a model by their path in it; empty if there are none. Raises ServeError."""
        root = f"{self._address.path}/{name}"
        try:
            found = self._ask(lambda system: system.find(root, detail=True, refresh=True))
        except ServeError as error:
            if error.__cause__ is None or not isinstance(error.__cause__, FileNotFoundError):
                raise
            found = {}
        stamps = {}
        for path, entry in found.items():
            inside = self._below(path, root)
            if not inside or path.endswith("/"):
                continue  # the marker of a folder
            if any(part in ("", ".", "..") for part in inside.split("/")) or "\\" in inside or "\0" in inside:
                log.warning("ignore object '%s' of %s: its name is no path of a file", path, self._address.text)
                continue
            stamps[inside] = _stamp(entry)
        return stamps

    def fetch(self, name: str, path: str, target: Path) -> None:
        """Writes an object of a model to a file. Raises ServeError."""
        self._ask(lambda system: system.get_file(f"{self._address.path}/{name}/{path}", str(target)))

    def _ask(self, what: Any) -> Any:
        """Calls the store. Raises ServeError; its cause is the error of the store's client."""
        system = self._open()
        try:
            # By default the file system remembers listings.
            system.invalidate_cache()
            return what(system)
        except Exception as raised:
            raise self._told(raised) from raised

    def _open(self) -> Any:
        with self._opening:
            if self._system is None:
                address = self._address
                try:
                    self._system = importlib.import_module("fsspec").filesystem(
                        address.protocol, skip_instance_cache=True, **address.options
                    )
                except ImportError:
                    raise unavailable(
                        f"repository '{address.text}' needs a package: run `pip install 'stubserve[{address.package}]'`"
                    ) from None
                except Exception as raised:
                    raise self._told(raised) from raised
            return self._system

    def _told(self, raised: Exception) -> ServeError:
        text = str(raised) or type(raised).__name__
        where = f"repository '{self._address.text}'"
        if isinstance(raised, FileNotFoundError):
            return not_found(f"{where} cannot be read: there is no {text}")
        if isinstance(raised, PermissionError):
            return internal(f"{where} cannot be read: {text}. Credentials come from {self._address.credentials}.")
        if "credential" in text.lower():
            return internal(f"{where} cannot be read: {text}. They come from {self._address.credentials}.")
        return unavailable(f"{where} cannot be read: {text}")

    def _below(self, path: str, root: str) -> str:
        """The part of a path below a root; empty if the path is not below it."""
        start = root.strip("/") + "/"
        plain = path.lstrip("/")
        return plain[len(start) :].rstrip("/") if plain.startswith(start) else ""


def _stamp(entry: Mapping[str, Any]) -> Stamp:
    tag = next((str(entry[key]) for key in _TAGS if entry.get(key)), "")
    changed = next((str(entry[key]) for key in _TIMES if entry.get(key)), "")
    return Stamp(int(entry.get("size") or 0), f"{tag} {changed}")

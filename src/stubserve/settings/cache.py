"""The settings of `--cache-config`: which response cache there is, and how it is used."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from msgspec import Struct

from stubserve.errors import UsageError

LOCAL, REDIS = "local", "redis"

_LOCAL_OPTIONS = frozenset(("size", "coalesce"))
_REDIS_OPTIONS = frozenset(
    (
        *("host", "port", "db", "user", "username", "password", "pool_size", "wait_timeout"),
        *("connect_timeout", "socket_timeout", "tls_enabled", "cacert", "cacert_dir", "cert", "key", "ttl", "coalesce"),
    )
)
_OPTIONS = {LOCAL: _LOCAL_OPTIONS, REDIS: _REDIS_OPTIONS}
# A comma separates only in front of a known setting: a password may have commas.
_SEPARATOR = re.compile(f",(?=(?:{'|'.join(sorted(_LOCAL_OPTIONS | _REDIS_OPTIONS))})=)")
_SIZE = re.compile(r"([0-9]+)([KMGT]?)", re.IGNORECASE)
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_TRUE = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}

# The names of upstream's Redis client
USER_VARIABLE, PASSWORD_VARIABLE = "TRITONCACHE_REDIS_USERNAME", "TRITONCACHE_REDIS_PASSWORD"


class RedisSettings(Struct, frozen=True):
    """Where Redis is, and how long it may take. An entry is kept for `ttl_s`; 0: for as long as Redis likes."""

    host: str
    port: int
    db: int = 0
    user: str = ""
    password: str = ""
    pool_size: int = 16
    wait_timeout_s: float = 0.1
    connect_timeout_s: float = 0.25
    timeout_s: float = 0.25
    tls: bool = False
    cacert: str = ""
    cacert_dir: str = ""
    cert: str = ""
    key: str = ""
    ttl_s: int = 0

    def __repr__(self) -> str:
        return f"<RedisSettings {self.host}:{self.port}>"


class CacheSettings(Struct, frozen=True):
    """The response cache. `config` has (name of the cache, settings) per flag; `byte_size` is the old flag's."""

    config: tuple[tuple[str, Mapping[str, str]], ...] = ()
    byte_size: int = 0

    @property
    def name(self) -> str:
        """The name of the cache; empty for none."""
        return self.config[0][0] if self.config else LOCAL if self.byte_size else ""

    @property
    def in_redis(self) -> bool:
        return self.name == REDIS

    @property
    def local_bytes(self) -> int:
        """The most bytes that a local cache keeps. Raises UsageError."""
        if self.byte_size:
            return self.byte_size
        text = self._options().get("size", "")
        size = _SIZE.fullmatch(text)
        if size is None:
            raise UsageError("Failed to initialize LocalCache: config didn't contain a valid 'size' field.")
        nbytes = int(size[1]) << _SHIFTS[size[2].upper()]
        if not nbytes:
            raise UsageError(f"Failed to initialize LocalCache: a size of {text} bytes holds no answer")
        return nbytes

    @property
    def redis(self) -> RedisSettings:
        """How to reach Redis. Raises UsageError."""
        options = self._options()
        for required in ("host", "port"):
            if not options.get(required):
                raise UsageError(f"--cache-config=redis,... needs '{required}', as redis,{required}=...")
        return RedisSettings(
            options["host"],
            _number(options, "port", 1, 65535, 0),
            _number(options, "db", 0, 1 << 20, 0),
            options.get("user") or options.get("username") or os.environ.get(USER_VARIABLE, ""),
            options.get("password") or os.environ.get(PASSWORD_VARIABLE, ""),
            _number(options, "pool_size", 1, 1024, 16),
            _milliseconds(options, "wait_timeout", 100),
            _milliseconds(options, "connect_timeout", 250),
            _milliseconds(options, "socket_timeout", 250),
            _switch(options, "tls_enabled"),
            options.get("cacert", ""),
            options.get("cacert_dir", ""),
            options.get("cert", ""),
            options.get("key", ""),
            _number(options, "ttl", 0, 1 << 31, 0),
        )

    @property
    def coalesces(self) -> bool:
        """Whether equal requests at the same time are computed once. Raises UsageError."""
        return _switch(self._options(), "coalesce")

    def check(self) -> None:
        """Raises UsageError."""
        if self.byte_size and self.config:
            raise UsageError(
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide "
                "one or the other."
            )
        names = dict.fromkeys(name for name, _ in self.config)
        if len(names) > 1:
            raise UsageError("found multiple cache configurations, but only a single cache is currently supported")
        for name in names:
            if name not in _OPTIONS:
                raise UsageError(f"--cache-config: there is no cache '{name}'; there are local and redis")
            for option in self._options():
                if option not in _OPTIONS[name]:
                    known = ", ".join(sorted(_OPTIONS[name]))
                    raise UsageError(f"--cache-config: the {name} cache has no setting '{option}'; it has {known}")
        if self.name == LOCAL:
            _ = self.local_bytes, self.coalesces
        elif self.name == REDIS:
            _ = self.redis, self.coalesces

    def _options(self) -> dict[str, str]:
        return {option: value for _, options in self.config for option, value in options.items()}


def parse_cache_config(text: str) -> tuple[str, dict[str, str]]:
    """`<cache name>,<setting>=<value>` with as many settings as you like. Raises UsageError."""
    name, comma, rest = text.partition(",")
    assignments = [one.partition("=") for one in _SEPARATOR.split(rest)] if comma else []
    if not name or "=" in name or not assignments or not all(map(all, assignments)):
        raise UsageError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}")
    return name, {setting: value for setting, _, value in assignments}


def _number(options: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UsageError(f"--cache-config: '{name}' is a number from {least} to {most}. Got {text}")
    return int(text)


def _milliseconds(options: Mapping[str, str], name: str, default: int) -> float:
    """Seconds from a number of milliseconds. Upstream's 0, "for ever", could stop a request; here it is the default."""
    return (_number(options, name, 0, 60_000, default) or default) / 1000


def _switch(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in _TRUE:
        raise UsageError(f"--cache-config: '{name}' is true or false. Got {text}")
    return _TRUE[text]

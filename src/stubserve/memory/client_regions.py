"""The regions of shared memory that clients have registered: which there are, and how one is opened.

A client registers a file in /dev/shm. From then on its requests name bytes of that region instead of sending them.
Registering makes the server open files, so it is off unless --allow-client-shm allows it.

Confinement. A key is a name in /dev/shm as in shm_open: slashes in front do not count, slashes within are refused, and
so are `.` and `..`. Only a regular file is opened, never a link. The kernel decides whether the server may open the
file, so another user's file is as safe as its permissions. The prefix of Triton's own regions is refused as in Triton;
this server's own memory has no names. The number of regions is bounded, because each needs a descriptor.

A client may shrink its file at any time, so nothing here maps it. Small inputs and strings are read with `preadv`, and
the size of the file is checked with each request. The stubs' part is `stubserve_stub.runtime.client_regions`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import stat
import weakref

from stubserve.errors import Code, ServeError, internal, invalid, not_found, unavailable
from stubserve.memory.device_regions import Copier, DeviceRegion
from stubserve.memory.regions import Region, RegionPlace, unknown_cuda, unknown_system

log = logging.getLogger("stubserve.regions")

FOLDER = "/dev/shm"
RESERVED_PREFIX = "triton_python_backend_shm_region_"
MAX_NAME = 1024
MAX_REGIONS = 4096

_UINT64 = (1 << 64) - 1


class ClientRegion:
    """One region (`memory.regions.Region`). Its descriptor is closed with the last reference to it."""

    on_device = False

    def __init__(self, name: str, key: str, number: int, descriptor: int, start: int, nbytes: int) -> None:
        self.name = name
        self.key = key
        self.number = number
        self.descriptor = descriptor
        self.start = start
        self.nbytes = nbytes

    def check(self) -> None:
        if os.fstat(self.descriptor).st_size < self.start + self.nbytes:
            raise self._gone()

    def read(self, offset: int, into: memoryview) -> None:
        at = self.start + offset
        while into:
            count = os.preadv(self.descriptor, [into], at)
            if not count:
                raise self._gone()
            into = into[count:]
            at += count

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self.check()
        left = memoryview(data)
        at = self.start + offset
        try:
            while left:
                count = os.pwrite(self.descriptor, left, at)
                left = left[count:]
                at += count
        except OSError as error:
            raise internal(f"shared memory region '{self.name}' cannot be written to: {error.strerror}") from None

    def row(self) -> dict[str, str | int]:
        """The region as the status route shows it."""
        return {"name": self.name, "key": self.key, "offset": self.start, "byte_size": self.nbytes}

    def _gone(self) -> ServeError:
        return invalid(
            f"shared memory region '{self.name}' is smaller than when it was registered: '{self.key}' should have "
            f"{self.start + self.nbytes} bytes. Make it that large, or unregister the region and register it again"
        )

    def __del__(self) -> None:
        os.close(self.descriptor)


class ClientRegions:
    """All regions. Methods that change or name one raise ServeError, with upstream's texts if there are any."""

    def __init__(self) -> None:
        self._regions: dict[str, ClientRegion | DeviceRegion] = {}
        # Regions that have been unregistered while requests use them
        self._leaving: weakref.WeakValueDictionary[str, ClientRegion | DeviceRegion] = weakref.WeakValueDictionary()
        self._numbers = 0
        self._copier = Copier()
        self._most = min(MAX_REGIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Opens the file that a key names; the region is `nbytes` of it from `offset` on."""
        if not key.lstrip("/"):
            raise invalid(f"cannot register shared memory region '{name}' - invalid shm key '{key}'")
        if key.lstrip("/").startswith(RESERVED_PREFIX):
            raise invalid(
                f"cannot register shared memory region '{name}' with key '{key}' as the key contains the "
                f"reserved prefix '{RESERVED_PREFIX}'"
            )
        self._check_new(name)
        descriptor = _open(key)
        try:
            size = os.fstat(descriptor).st_size
            if offset + nbytes > size:
                raise invalid(f"failed to register shared memory region '{name}': invalid args")
            if not nbytes:
                raise invalid(
                    f"failed to register shared memory region '{name}': unable to process address spaceInvalid argument"
                )
        except BaseException:
            os.close(descriptor)
            raise
        self._numbers += 1
        self._regions[name] = ClientRegion(name, key, self._numbers, descriptor, offset, nbytes)

    async def register_on_device(self, name: str, handle: bytes, device: int, nbytes: int) -> None:
        """Opens memory of a GPU by its client's handle (cudaIpcMemHandle_t, 64 bytes)."""
        self._check_new(name)
        if nbytes <= 0:
            raise invalid("failed to register shared memory region: invalid args")
        self._numbers += 1
        region = await asyncio.to_thread(self._copier.open, name, self._numbers, device, handle, nbytes)
        self._check_new(name)
        self._regions[name] = region

    def _check_new(self, name: str) -> None:
        if len(name) > MAX_NAME:
            raise invalid(f"the name of a shared memory region may have {MAX_NAME} characters, not {len(name)}")
        if name in self:
            raise ServeError(Code.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")
        if len(self._regions) + len(self._leaving) >= self._most:
            raise unavailable(
                f"cannot register shared memory region '{name}': there are {self._most} regions already, as many "
                "as the server keeps open. Unregister some, or raise the limit of open files (ulimit -n)"
            )

    def unregister(self, name: str, on_device: bool = False) -> None:
        """Removes a region from the list, or all of its kind for an empty name; requests that use them go on."""
        for one in [name] if name else list(self._regions):
            region = self._regions.get(one)
            if region is None:
                continue
            if region.on_device == on_device:
                self._leaving[one] = self._regions.pop(one)
            elif name:
                raise _other_kind(region)

    def close(self) -> None:
        """The server stops."""
        self._copier.close()

    def find(self, name: str, offset: int, nbytes: int) -> RegionPlace:
        """A piece of a region, for a request that keeps the region. Raises ServeError, with upstream's texts."""
        region = self._regions.get(name)
        if region is None:
            raise unknown(name)
        last = region.nbytes - 1
        if offset > last:
            raise invalid(f"Invalid offset for shared memory region: '{name}'")
        if offset + nbytes > _UINT64:
            raise invalid(
                f"Integer overflow detected: byte_size ({nbytes}) + offset ({offset}) exceeds maximum value "
                f"({_UINT64}) for region '{name}'"
            )
        if (offset + nbytes - 1) & _UINT64 > last:
            raise invalid(f"Invalid offset + byte size for shared memory region: '{name}'")
        region.check()
        return RegionPlace(region, offset, nbytes)

    def __contains__(self, name: str) -> bool:
        return name in self._regions or name in self._leaving

    def rows(self, on_device: bool = False) -> list[dict[str, str | int]]:
        """The status of all regions of a kind, by name."""
        listed = {**dict(self._leaving), **self._regions}
        return [listed[name].row() for name in sorted(listed) if listed[name].on_device == on_device]

    def row(self, name: str, on_device: bool = False) -> dict[str, str | int]:
        """The status of one region."""
        region = self._regions.get(name) or self._leaving.get(name)
        if region is None:
            raise unknown_cuda(name) if on_device else unknown_system(name)
        if region.on_device != on_device:
            raise _other_kind(region)
        return region.row()


def unknown(name: str) -> ServeError:
    """The refusal of an unknown region in a request."""
    return not_found(f"Unable to find shared memory region: '{name}'")


def _other_kind(region: Region) -> ServeError:
    """The refusal of a region where one of the other kind was asked for."""
    kinds = ("CUDA", "system") if region.on_device else ("system", "CUDA")
    return not_found(
        f"The region named '{region.name}' is registered as {kinds[0]} shared memory, not {kinds[1]} shared memory"
    )


def _open(key: str) -> int:
    """The file behind a key, for reading and writing. Raises ServeError."""
    name = key.lstrip("/")
    refusal = internal(f"Unable to open shared memory region: '{key}'")
    if "/" in name or "\0" in name or name in (".", ".."):
        raise refusal
    path = f"{FOLDER}/{name}"
    try:
        # The check comes before the open: to open a device may have effects, and to open a pipe may block.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            log.warning("refused to register '%s' as shared memory: it is no regular file", path)
            raise refusal
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        log.debug("'%s' cannot be opened as shared memory: %s", path, error)
        raise refusal from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    return descriptor

/* Device memory: virtual memory management, plain allocations and their handles, and registered host memory. */
#include "emulator.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int live_handles, live_ranges, live_mappings, live_registrations;

/* Memory of a device. An imported one is not counted against what the device has. */
typedef struct {
    int fd;
    int device;
    size_t size;
    int references;
    bool imported;
} Memory;

typedef struct Handle {
    struct Handle *next;
    CUmemGenericAllocationHandle id;
    Memory *memory;
} Handle;

/* Reserved addresses; those of a plain allocation are reserved and mapped in one. */
typedef struct Range {
    struct Range *next;
    CUdeviceptr start;
    size_t size;
} Range;

typedef enum { BY_MAP, BY_ALLOC, BY_IPC } Origin;

typedef struct Mapping {
    struct Mapping *next;
    CUdeviceptr start;
    size_t size;
    Memory *memory;
    unsigned readable, writable; /* a bit for each device */
    Origin origin;
} Mapping;

typedef struct Registration {
    struct Registration *next;
    uintptr_t start;
    size_t size;
    bool locked;
} Registration;

static Handle *handles;
static Range *ranges;
static Mapping *mappings;
static Registration *registrations;

/* Takes the entry out of a list that `condition` (on `one`) is true of. */
#define TAKE(Type, list, condition, found)                       \
    Type *found = NULL;                                          \
    for (Type **at = &list; *at && !found;) {                    \
        Type *one = *at;                                         \
        if (condition) {                                         \
            found = one;                                         \
            *at = one->next;                                     \
        } else                                                   \
            at = &one->next;                                     \
    }

static const char NAME[] = "emulated-gpu-";

static Memory *new_memory(int device, size_t size, CUresult *result) {
    char name[32];
    if (size > machine.memory - machine.used[device]) {
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    snprintf(name, sizeof name, "%s%d", NAME, device);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, size)) {
        if (fd >= 0) close(fd);
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    Memory *memory = malloc(sizeof *memory);
    *memory = (Memory){fd, device, size, 1, false};
    machine.used[device] += size;
    return memory;
}

/* The memory behind a descriptor, which this then owns; NULL for a descriptor of something else. */
static Memory *known_memory(int fd) {
    char path[64], target[64] = "";
    struct stat about;
    int device;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || readlink(path, target, sizeof target - 1) < 0 || fstat(fd, &about)) return NULL;
    if (sscanf(target, "/memfd:emulated-gpu-%d", &device) != 1 || !known_device(device)) return NULL;
    Memory *memory = malloc(sizeof *memory);
    *memory = (Memory){fd, device, about.st_size, 1, true};
    return memory;
}

static void let_go(Memory *memory) {
    if (--memory->references) return;
    if (!memory->imported) machine.used[memory->device] -= memory->size;
    close(memory->fd);
    free(memory);
}

static Handle *handle_of(CUmemGenericAllocationHandle id) {
    Handle *one = handles;
    while (one && one->id != id) one = one->next;
    return one;
}

static CUmemGenericAllocationHandle new_handle(Memory *memory) {
    static CUmemGenericAllocationHandle last;
    Handle *handle = malloc(sizeof *handle);
    *handle = (Handle){handles, ++last, memory};
    handles = handle;
    live_handles++;
    return handle->id;
}

static CUdeviceptr reserve(size_t size) {
    void *at = mmap(NULL, size + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 0;
    uintptr_t start = ((uintptr_t)at + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    if (start > (uintptr_t)at) munmap(at, start - (uintptr_t)at);
    munmap((void *)(start + size), (uintptr_t)at + GRANULARITY - start);
    return start;
}

static Mapping *map(CUdeviceptr start, size_t size, Memory *memory, Origin origin) {
    void *at = mmap((void *)start, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0);
    if (at == MAP_FAILED) return NULL;
    Mapping *mapping = malloc(sizeof *mapping);
    *mapping = (Mapping){mappings, start, size, memory, 0, 0, origin};
    mappings = mapping;
    memory->references++;
    live_mappings++;
    return mapping;
}

static void drop(Mapping *mapping) {
    let_go(mapping->memory);
    free(mapping);
    live_mappings--;
}

static bool overlaps(CUdeviceptr start, size_t size) {
    for (Mapping *one = mappings; one; one = one->next)
        if (start < one->start + one->size && one->start < start + size) return true;
    return false;
}

static bool is_whole(size_t size) { return size && size % GRANULARITY == 0; }

static bool is_usual(const CUmemAllocationProp *prop) {
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           known_device(prop->location.id);
}

/* ---- Virtual memory management ---- */

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    CUresult result = enter("cuMemGetAllocationGranularity");
    if (!result && !machine.vmm) result = CUDA_ERROR_NOT_SUPPORTED;
    if (!result && !is_usual(prop)) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) *granularity = GRANULARITY;
    return leave(result);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    CUresult result = enter("cuMemCreate");
    if (!result && !machine.vmm) result = CUDA_ERROR_NOT_SUPPORTED;
    if (!result && (!is_usual(prop) || !is_whole(size) || flags)) result = CUDA_ERROR_INVALID_VALUE;
    if (!result && prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (!result) result = machine.lost[prop->location.id];
    if (!result) {
        Memory *memory = new_memory(prop->location.id, size, &result);
        if (memory) *handle = new_handle(memory);
    }
    return leave(result);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle id) {
    CUresult result = enter("cuMemRelease");
    if (result) return leave(result);
    TAKE(Handle, handles, one->id == id, handle)
    if (!handle) return leave(CUDA_ERROR_INVALID_VALUE);
    let_go(handle->memory);
    free(handle);
    live_handles--;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle id,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    CUresult result = enter("cuMemExportToShareableHandle");
    if (result) return leave(result);
    Handle *handle = handle_of(id);
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags) return leave(CUDA_ERROR_INVALID_VALUE);
    int fd = fcntl(handle->memory->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return leave(CUDA_ERROR_UNKNOWN);
    *(int *)shareable = fd;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *id, void *shareable,
                                        CUmemAllocationHandleType type) {
    CUresult result = enter("cuMemImportFromShareableHandle");
    if (!result && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) result = CUDA_ERROR_NOT_SUPPORTED;
    if (result) return leave(result);
    int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
    Memory *memory = known_memory(fd);
    if (memory)
        *id = new_handle(memory);
    else if (fd >= 0)
        close(fd);
    return leave(memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAddressReserve(CUdeviceptr *start, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
    CUresult result = enter("cuMemAddressReserve");
    if (!result && (!is_whole(size) || alignment > GRANULARITY || hint || flags)) result = CUDA_ERROR_INVALID_VALUE;
    if (result) return leave(result);
    *start = reserve(size);
    if (!*start) return leave(CUDA_ERROR_OUT_OF_MEMORY);
    Range *range = malloc(sizeof *range);
    *range = (Range){ranges, *start, size};
    ranges = range;
    live_ranges++;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr start, size_t size) {
    CUresult result = enter("cuMemAddressFree");
    if (!result && overlaps(start, size)) result = CUDA_ERROR_INVALID_VALUE;
    if (result) return leave(result);
    TAKE(Range, ranges, one->start == start && one->size == size, range)
    if (!range) return leave(CUDA_ERROR_INVALID_VALUE);
    munmap((void *)start, size);
    free(range);
    live_ranges--;
    return leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr start, size_t size, size_t offset, CUmemGenericAllocationHandle id,
                  unsigned long long flags) {
    CUresult result = enter("cuMemMap");
    if (result) return leave(result);
    Handle *handle = handle_of(id);
    Range *range = ranges;
    while (range && !(range->start <= start && start + size <= range->start + range->size)) range = range->next;
    if (!handle || !range || !is_whole(size) || start % GRANULARITY || offset || flags || size != handle->memory->size ||
        overlaps(start, size))
        return leave(CUDA_ERROR_INVALID_VALUE);
    return leave(map(start, size, handle->memory, BY_MAP) ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED);
}

CUresult cuMemUnmap(CUdeviceptr start, size_t size) {
    CUresult result = enter("cuMemUnmap");
    if (result) return leave(result);
    TAKE(Mapping, mappings, one->start == start && one->size == size && one->origin == BY_MAP, mapping)
    if (!mapping) return leave(CUDA_ERROR_INVALID_VALUE);
    mmap((void *)start, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    drop(mapping);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr start, size_t size, const CUmemAccessDesc *access, size_t count) {
    CUresult result = enter("cuMemSetAccess");
    if (result) return leave(result);
    Mapping *mapping = mappings;
    while (mapping && !(mapping->start == start && mapping->size == size)) mapping = mapping->next;
    if (!mapping || !count) return leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t at = 0; at < count; at++) {
        int device = access[at].location.id;
        if (access[at].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !known_device(device))
            return leave(CUDA_ERROR_INVALID_DEVICE);
        if (device != mapping->memory->device && !machine.peers) return leave(CUDA_ERROR_INVALID_DEVICE);
        unsigned bit = 1u << device;
        mapping->readable = access[at].flags & 1 ? mapping->readable | bit : mapping->readable & ~bit;
        mapping->writable = access[at].flags & 2 ? mapping->writable | bit : mapping->writable & ~bit;
    }
    return leave(CUDA_SUCCESS);
}

/* ---- Plain allocations, as clients have them, and their handles ---- */

typedef struct {
    char magic[8];
    int pid, fd;
} Shared;

static CUresult map_whole(CUdeviceptr *start, Memory *memory, Origin origin) {
    *start = reserve(memory->size);
    Mapping *mapping = *start ? map(*start, memory->size, memory, origin) : NULL;
    if (mapping) mapping->readable = mapping->writable = 1u << memory->device;
    let_go(memory);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult unmap_whole(const char *function, CUdeviceptr start, Origin origin) {
    int device;
    CUresult result = enter_context(function, &device);
    if (result) return leave(result);
    TAKE(Mapping, mappings, one->start == start && one->origin == origin, mapping)
    if (!mapping) return leave(CUDA_ERROR_INVALID_VALUE);
    munmap((void *)start, mapping->size);
    drop(mapping);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc(CUdeviceptr *start, size_t size) {
    int device;
    CUresult result = enter_context("cuMemAlloc", &device);
    if (!result && !size) result = CUDA_ERROR_INVALID_VALUE;
    if (result) return leave(result);
    Memory *memory = new_memory(device, (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY, &result);
    return leave(memory ? map_whole(start, memory, BY_ALLOC) : result);
}

CUresult cuMemFree(CUdeviceptr start) { return unmap_whole("cuMemFree", start, BY_ALLOC); }

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr start) {
    int device;
    CUresult result = enter_context("cuIpcGetMemHandle", &device);
    Mapping *mapping = mappings;
    while (mapping && !(mapping->start == start && mapping->origin == BY_ALLOC)) mapping = mapping->next;
    if (!result && !mapping) result = CUDA_ERROR_INVALID_VALUE;
    if (result) return leave(result);
    Shared shared = {"emulate", getpid(), mapping->memory->fd};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &shared, sizeof shared);
    return leave(CUDA_SUCCESS);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *start, CUipcMemHandle handle, unsigned int flags) {
    int device;
    CUresult result = enter_context("cuIpcOpenMemHandle", &device);
    Shared shared;
    memcpy(&shared, &handle, sizeof shared);
    if (!result && (strcmp(shared.magic, "emulate") || flags != 1)) result = CUDA_ERROR_INVALID_VALUE;
    if (!result && shared.pid == getpid()) result = CUDA_ERROR_INVALID_CONTEXT;
    if (result) return leave(result);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.pid, shared.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    Memory *memory = known_memory(fd);
    if (!memory && fd >= 0) close(fd);
    return leave(memory ? map_whole(start, memory, BY_IPC) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *size, CUdeviceptr address) {
    CUresult result = enter("cuMemGetAddressRange");
    if (result) return leave(result);
    Mapping *mapping = mappings;
    while (mapping && !(mapping->start <= address && address < mapping->start + mapping->size)) mapping = mapping->next;
    if (!mapping) return leave(CUDA_ERROR_INVALID_VALUE);
    *start = mapping->start;
    *size = mapping->size;
    return leave(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr start) { return unmap_whole("cuIpcCloseMemHandle", start, BY_IPC); }

/* ---- Registered host memory ---- */

CUresult cuMemHostRegister(void *host, size_t size, unsigned int flags) {
    int device;
    CUresult result = enter_context("cuMemHostRegister", &device);
    if (!result && (!host || !size)) result = CUDA_ERROR_INVALID_VALUE;
    for (Registration *one = registrations; one && !result; one = one->next)
        if ((uintptr_t)host < one->start + one->size && one->start < (uintptr_t)host + size)
            result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (result) return leave(result);
    Registration *registration = malloc(sizeof *registration);
    *registration = (Registration){registrations, (uintptr_t)host, size, false};
    registrations = registration;
    live_registrations++;
    /* The driver keeps the pages. Pages that are locked cannot be given back either: madvise says EINVAL. */
    registration->locked = !mlock(host, size);
    count_bytes(REGISTRATIONS, 1);
    return leave(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *host) {
    int device;
    CUresult result = enter_context("cuMemHostUnregister", &device);
    if (result) return leave(result);
    TAKE(Registration, registrations, one->start == (uintptr_t)host, registration)
    if (!registration) return leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    if (registration->locked) munlock(host, registration->size);
    free(registration);
    live_registrations--;
    return leave(CUDA_SUCCESS);
}

bool is_registered(const void *host, size_t nbytes) {
    for (Registration *one = registrations; one; one = one->next)
        if (one->start <= (uintptr_t)host && (uintptr_t)host + nbytes <= one->start + one->size) return true;
    return false;
}

bool is_partly_registered(const void *host, size_t nbytes) {
    for (Registration *one = registrations; one; one = one->next)
        if (one->start < (uintptr_t)host + nbytes && (uintptr_t)host < one->start + one->size)
            return !is_registered(host, nbytes);
    return false;
}

/* ---- Bytes at device addresses ---- */

/* Visits the mappings of a range in order. A `buffer` of NULL only asks whether all of it may be read and written. */
static bool visit(CUdeviceptr address, size_t nbytes, int device, char *buffer, bool write) {
    while (nbytes) {
        Mapping *mapping = mappings;
        while (mapping && !(mapping->start <= address && address < mapping->start + mapping->size))
            mapping = mapping->next;
        if (!mapping || !((write ? mapping->writable : mapping->readable) & 1u << device)) return false;
        off_t offset = address - mapping->start;
        size_t part = mapping->size - offset < nbytes ? mapping->size - offset : nbytes;
        for (size_t done = 0; buffer && done < part;) {
            ssize_t moved = write ? pwrite(mapping->memory->fd, buffer + done, part - done, offset + done)
                                  : pread(mapping->memory->fd, buffer + done, part - done, offset + done);
            if (moved <= 0) return false;
            done += moved;
        }
        if (buffer) buffer += part;
        address += part;
        nbytes -= part;
    }
    return true;
}

bool access_memory(CUdeviceptr address, size_t nbytes, int device, void *buffer, bool write) {
    return visit(address, nbytes, device, buffer, write);
}

bool accessible(CUdeviceptr address, size_t nbytes, int device) {
    return visit(address, nbytes, device, NULL, false);
}

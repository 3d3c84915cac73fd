/* Devices, contexts, the names of errors, how functions are found, and what a test can ask for and look at. */
#include "emulator.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
Machine machine;

#define MAX_STACK 16
static __thread CUcontext stack[MAX_STACK];
static __thread int depth;

static struct {
    char function[64];
    int after;
    int error;
} failure;

static uint64_t *counters;

static long long setting(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text ? atoll(text) : otherwise;
}

/* ---- What a test can ask for ---- */

/* Call number `after` + 1 of a function from now on fails with `error`, once. */
void emulator_fail(const char *function, int after, int error) {
    pthread_mutex_lock(&big_lock);
    snprintf(failure.function, sizeof failure.function, "%s", function);
    failure.after = after;
    failure.error = error;
    pthread_mutex_unlock(&big_lock);
}

/* From now on every call for this device fails with `error`, and its work is never done. */
void emulator_lose(int device, int error) {
    pthread_mutex_lock(&big_lock);
    lose(device, error);
    pthread_mutex_unlock(&big_lock);
}

/* How many bytes were copied in a direction: 0 up, 1 down, 2 within a device, 3 peer, 4 peer by way of the host. */
unsigned long long emulator_bytes(int direction) {
    pthread_mutex_lock(&big_lock);
    unsigned long long found = counters ? counters[direction] : 0;
    pthread_mutex_unlock(&big_lock);
    return found;
}

/* How many of a kind there are in this process. */
int emulator_live(const char *kind) {
    int found = -1;
    pthread_mutex_lock(&big_lock);
#define ANSWER(one) \
    if (!strcmp(kind, #one)) found = live_##one;
    LIVE_KINDS(ANSWER)
#undef ANSWER
    pthread_mutex_unlock(&big_lock);
    return found;
}

/* ---- The beginning and the end of every function ---- */

CUresult enter(const char *function) {
    pthread_mutex_lock(&big_lock);
    if (failure.error && !strcmp(failure.function, function) && failure.after-- == 0) {
        int error = failure.error;
        failure.error = 0;
        return error;
    }
    /* After a fork the driver is of no use to the child. */
    return machine.pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult enter_context(const char *function, int *device) {
    CUresult result = enter(function);
    if (result) return result;
    if (!depth || !stack[depth - 1]) return CUDA_ERROR_INVALID_CONTEXT;
    *device = stack[depth - 1]->device;
    return machine.retained[*device] ? machine.lost[*device] : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult leave(CUresult result) {
    pthread_mutex_unlock(&big_lock);
    return result;
}

bool known_device(int device) { return device >= 0 && device < machine.count; }

void lose(int device, int error) {
    machine.lost[device] = error;
    pthread_cond_broadcast(&changed);
}

void count_bytes(int what, size_t nbytes) {
    if (counters) __atomic_fetch_add(&counters[what], nbytes, __ATOMIC_RELAXED);
}

/* ---- The driver ---- */

CUresult cuInit(unsigned int flags) {
    pthread_mutex_lock(&big_lock);
    if (flags) return leave(CUDA_ERROR_INVALID_VALUE);
    if (machine.pid == getpid()) return leave(CUDA_SUCCESS);
    /* A child of a process that had called it cannot begin again. */
    if (machine.pid) return leave(CUDA_ERROR_NOT_INITIALIZED);
    machine.count = setting("EMULATED_GPUS", 2);
    if (machine.count > MAX_DEVICES) machine.count = MAX_DEVICES;
    if (machine.count < 1) return leave(CUDA_ERROR_NO_DEVICE);
    machine.peers = setting("EMULATED_PEERS", 1);
    machine.vmm = setting("EMULATED_VMM", 1);
    machine.memory = setting("EMULATED_GPU_MEMORY", 1LL << 30);
    const char *order = getenv("EMULATED_ORDER");
    machine.random_order = order && !strcmp(order, "random");
    for (int device = 0; device < machine.count; device++) machine.contexts[device].device = device;
    const char *path = getenv("EMULATED_COUNTERS");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : memfd_create("counters", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(uint64_t) * COUNTS)) return leave(CUDA_ERROR_UNKNOWN);
    counters = mmap(NULL, sizeof(uint64_t) * COUNTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (counters == MAP_FAILED) return leave(CUDA_ERROR_UNKNOWN);
    machine.pid = getpid();
    return leave(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version) {
    *version = 12040;
    return CUDA_SUCCESS;
}

static const struct {
    int error;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text) {name, #name, text}
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static CUresult about(int error, const char **found, bool name) {
    for (size_t at = 0; at < sizeof errors / sizeof *errors; at++)
        if (errors[at].error == error) {
            *found = name ? errors[at].name : errors[at].text;
            return CUDA_SUCCESS;
        }
    *found = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name) { return about(error, name, true); }
CUresult cuGetErrorString(CUresult error, const char **text) { return about(error, text, false); }

CUresult cuDeviceGetCount(int *count) {
    CUresult result = enter("cuDeviceGetCount");
    if (!result) *count = machine.count;
    return leave(result);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult result = enter("cuDeviceGet");
    if (!result && !known_device(ordinal)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) *device = ordinal;
    return leave(result);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    CUresult result = enter("cuDeviceGetName");
    if (!result && !known_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) snprintf(name, length, "Emulated GPU");
    return leave(result);
}

CUresult cuDeviceTotalMem(size_t *nbytes, CUdevice device) {
    CUresult result = enter("cuDeviceTotalMem");
    if (!result && !known_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) *nbytes = machine.memory;
    return leave(result);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    CUresult result = enter("cuDeviceGetAttribute");
    if (!result && !known_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (result) return leave(result);
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
        case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: *value = 1; break;
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = machine.vmm; break;
        default: result = CUDA_ERROR_INVALID_VALUE;
    }
    return leave(result);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    CUresult result = enter("cuDeviceCanAccessPeer");
    if (!result && (!known_device(device) || !known_device(peer))) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) *can = device != peer && machine.peers;
    return leave(result);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = enter("cuDevicePrimaryCtxRetain");
    if (!result && !known_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) result = machine.lost[device];
    if (!result) {
        machine.retained[device]++;
        *context = &machine.contexts[device];
    }
    return leave(result);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    CUresult result = enter("cuDevicePrimaryCtxRelease");
    if (!result && !known_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result && !machine.retained[device]) result = CUDA_ERROR_INVALID_CONTEXT;
    if (!result) machine.retained[device]--;
    return leave(result);
}

CUresult cuCtxPushCurrent(CUcontext context) {
    CUresult result = enter("cuCtxPushCurrent");
    if (!result && depth == MAX_STACK) result = CUDA_ERROR_UNKNOWN;
    if (!result) stack[depth++] = context;
    return leave(result);
}

CUresult cuCtxPopCurrent(CUcontext *context) {
    CUresult result = enter("cuCtxPopCurrent");
    if (!result && !depth) result = CUDA_ERROR_INVALID_CONTEXT;
    if (!result) {
        CUcontext popped = stack[--depth];
        if (context) *context = popped;
    }
    return leave(result);
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
    int device;
    CUresult result = enter_context("cuMemGetInfo", &device);
    if (!result) {
        *free_bytes = machine.memory - machine.used[device];
        *total = machine.memory;
    }
    return leave(result);
}

/* Kernels cannot run here. */
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    int device;
    CUresult result = enter_context("cuModuleLoadData", &device);
    return leave(result ? result : CUDA_ERROR_NOT_SUPPORTED);
}

/* ---- How functions are found ---- */

#define FUNCTIONS(entry)                                                                                     \
    entry(cuInit, 2000) entry(cuDriverGetVersion, 2020) entry(cuGetErrorName, 6000) entry(cuGetErrorString, 6000) \
    entry(cuDeviceGetCount, 2000) entry(cuDeviceGet, 2000) entry(cuDeviceGetName, 2000)                      \
    entry(cuDeviceTotalMem, 3020) entry(cuDeviceGetAttribute, 2000) entry(cuDeviceCanAccessPeer, 4000)       \
    entry(cuDevicePrimaryCtxRetain, 7000) entry(cuDevicePrimaryCtxRelease, 11000)                            \
    entry(cuCtxPushCurrent, 4000) entry(cuCtxPopCurrent, 4000) entry(cuMemGetInfo, 3020)                     \
    entry(cuModuleLoadData, 2000)

#define ELSEWHERE(entry)                                                                                     \
    entry(cuMemCreate, 10020) entry(cuMemRelease, 10020) entry(cuMemExportToShareableHandle, 10020)          \
    entry(cuMemImportFromShareableHandle, 10020) entry(cuMemAddressReserve, 10020)                           \
    entry(cuMemAddressFree, 10020) entry(cuMemMap, 10020) entry(cuMemUnmap, 10020)                           \
    entry(cuMemSetAccess, 10020) entry(cuMemGetAllocationGranularity, 10020) entry(cuMemAlloc, 3020)         \
    entry(cuMemFree, 3020) entry(cuIpcGetMemHandle, 4010) entry(cuIpcOpenMemHandle, 11000)                   \
    entry(cuIpcCloseMemHandle, 4010) entry(cuMemGetAddressRange, 3020) entry(cuMemHostRegister, 6050) entry(cuMemHostUnregister, 4000)         \
    entry(cuStreamCreate, 2000) entry(cuStreamDestroy, 4000) entry(cuStreamSynchronize, 2000)                \
    entry(cuStreamWaitEvent, 3020) entry(cuEventCreate, 2000) entry(cuEventDestroy, 4000)                    \
    entry(cuEventRecord, 2000) entry(cuEventQuery, 2000) entry(cuEventSynchronize, 2000)                     \
    entry(cuEventElapsedTime, 2000) entry(cuCtxSynchronize, 2000) entry(cuMemcpyHtoDAsync, 3020) entry(cuMemcpyDtoHAsync, 3020)            \
    entry(cuMemcpyDtoDAsync, 3020) entry(cuMemcpyPeerAsync, 4000)

#ifndef WITH_CUDA_HEADER
#define DECLARE(name, version) extern CUresult name();
ELSEWHERE(DECLARE)
#undef DECLARE
#endif

/* The names are written before NVIDIA's header can put other forms of the functions in their place. */
static const struct {
    const char *name;
    int version;
    void *function;
} functions[] = {
#define ENTRY(name, version) {#name, version, (void *)name},
    FUNCTIONS(ENTRY) ELSEWHERE(ENTRY)
#undef ENTRY
};

CUresult cuGetProcAddress(const char *symbol, void **found, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
    CUdriverProcAddressQueryResult ignored;
    if (!status) status = &ignored;
    *found = NULL;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t at = 0; at < sizeof functions / sizeof *functions; at++)
        if (!strcmp(functions[at].name, symbol)) {
            *status = version == functions[at].version ? CU_GET_PROC_ADDRESS_SUCCESS
                                                       : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
            if (*status == CU_GET_PROC_ADDRESS_SUCCESS) *found = functions[at].function;
        }
    return *found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

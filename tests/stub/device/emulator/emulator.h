/* A CUDA driver for tests, without a GPU: what the other files of this folder share.
 *
 * Built as a library, it stands in for libcuda.so.1. It is stricter and slower than a GPU wherever a mistake could hide:
 *
 * - Device memory is a memfd. Its addresses are mapped without access, so a host that touches one gets a SIGSEGV.
 * - Work runs on a thread, as late as it may: by default only what somebody waits for. So a missing wait gives wrong
 *   bytes in every run. With EMULATED_ORDER=random, work of all streams runs in a random order that streams and events
 *   allow, as soon as it can; EMULATED_SEED changes the order.
 * - A copy reads registered host memory when it runs, and finds its device addresses then. So host memory that is used
 *   again too early, and device memory that is unmapped too early, show.
 * - Registered host memory is locked, so nobody can give its pages back to the system.
 * - Memory crosses processes only as a descriptor, or by a handle that names a process which still lives.
 * - Functions are found by cuGetProcAddress alone, and only in the version of their form that is written here.
 *
 * The environment says what the machine has: EMULATED_GPUS (2), EMULATED_GPU_MEMORY (bytes of each, 1 GiB),
 * EMULATED_PEERS (1), EMULATED_VMM (1). EMULATED_COUNTERS names a file that counts the bytes of several processes.
 * A process counts only the memory that it has made itself against EMULATED_GPU_MEMORY.
 *
 * Not emulated: kernels (NOT_SUPPORTED), and the default stream's waits for other streams.
 */
#pragma once
#define _GNU_SOURCE

#ifdef WITH_CUDA_HEADER
#include <cuda.h>
#else
#include "cuda_abi.h"
#endif

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MAX_DEVICES 8
#define GRANULARITY ((size_t)2 << 20)

/* Where bytes went: up to a device, down to the host, within a device, between devices, between devices by the host.
 * Besides: the bytes that went down into registered memory, and how often host memory was registered. */
enum { UP, DOWN, WITHIN, PEER, STAGED, DOWN_REGISTERED, REGISTRATIONS, COUNTS };

struct CUctx_st {
    int device;
};

typedef struct {
    int count;
    bool peers;
    bool vmm;
    bool random_order;
    size_t memory;
    size_t used[MAX_DEVICES];
    int lost[MAX_DEVICES]; /* the error that every call gets, 0 while the device works */
    struct CUctx_st contexts[MAX_DEVICES];
    int retained[MAX_DEVICES];
    pid_t pid; /* that called cuInit */
} Machine;

/* One lock for everything; `changed` says that work was added or done. */
extern pthread_mutex_t big_lock;
extern pthread_cond_t changed;
extern Machine machine;

/* Each entry takes the lock and says what is wrong: no cuInit in this process, or a failure that a test wants. */
CUresult enter(const char *function);
/* The same where a context has to be current; `device` is that context's. */
CUresult enter_context(const char *function, int *device);
CUresult leave(CUresult result);
bool known_device(int device);
void lose(int device, int error);
void count_bytes(int what, size_t nbytes);

/* Copies between a buffer and device memory as `device` sees it. False where that is not all mapped and accessible. */
bool access_memory(CUdeviceptr address, size_t nbytes, int device, void *buffer, bool write);
bool accessible(CUdeviceptr address, size_t nbytes, int device);
bool is_registered(const void *host, size_t nbytes);
/* Whether only a part of it is: no copy may lead there. */
bool is_partly_registered(const void *host, size_t nbytes);

#define LIVE_KINDS(entry) entry(handles) entry(ranges) entry(mappings) entry(registrations) entry(streams) entry(events)
#define DECLARE(kind) extern int live_##kind;
LIVE_KINDS(DECLARE)
#undef DECLARE

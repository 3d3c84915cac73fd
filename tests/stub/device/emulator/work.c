/* Streams, events and copies: what runs when. See emulator.h for how late that is, and why. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int live_streams, live_events;

struct CUevent_st {
    int device;
    bool timed;
    int references;
    CUstream stream; /* of the last record */
    unsigned long long asked, reached;
    double reached_ms;
};

typedef struct Operation {
    struct Operation *next;
    enum { COPY, RECORD, WAIT } kind;
    /* A copy: one of `up_from` and `from`, and one of `down_to` and `to`. The device sees its addresses by a context. */
    int direction;
    const void *up_from;
    void *down_to;
    CUdeviceptr from, to;
    int from_device, to_device;
    size_t nbytes;
    void *snapshot; /* of host memory that is not registered */
    /* A record or a wait: the event, its count, and where the record is */
    CUevent event;
    unsigned long long count;
    CUstream recorded_in;
} Operation;

/* A destroyed stream stays in the list, since its work is still done. */
struct CUstream_st {
    struct CUstream_st *next;
    int device;
    bool destroyed;
    Operation *first, *last;
};

/* Who waits, on the stack of its thread. */
typedef struct Waiter {
    struct Waiter *next;
    CUstream stream;
} Waiter;

static struct CUstream_st default_streams[MAX_DEVICES];
static CUstream streams;
static Waiter *waiters;
static uint64_t chance;

static unsigned pick(unsigned count) {
    chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
    return chance % count;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void let_go(CUevent event) {
    if (!--event->references) free(event);
}

static bool blocked(const Operation *operation) {
    return operation->kind == WAIT && operation->event->reached < operation->count;
}

static void done(CUstream stream) {
    Operation *operation = stream->first;
    stream->first = operation->next;
    if (!stream->first) stream->last = NULL;
    if (operation->event) let_go(operation->event);
    free(operation->snapshot);
    free(operation);
}

static bool copy(const Operation *one) {
    static char *buffer;
    static size_t room;
    bool good = true;
    if (one->nbytes > room) buffer = realloc(buffer, room = one->nbytes);
    if (one->up_from)
        memcpy(buffer, one->snapshot ? one->snapshot : one->up_from, one->nbytes);
    else
        good = access_memory(one->from, one->nbytes, one->from_device, buffer, false);
    if (good && one->down_to)
        memcpy(one->down_to, buffer, one->nbytes);
    else if (good)
        good = access_memory(one->to, one->nbytes, one->to_device, buffer, true);
    if (good) count_bytes(one->direction, one->nbytes);
    return good;
}

static void run(CUstream stream) {
    Operation *first = stream->first;
    if (first->kind == RECORD) {
        first->event->reached = first->count;
        first->event->reached_ms = now_ms();
    } else if (first->kind == COPY && !copy(first))
        lose(stream->device, CUDA_ERROR_ILLEGAL_ADDRESS);
    done(stream);
}

/* The stream whose first operation has to run next for `stream` to go on, NULL if there is none. */
static CUstream needed_for(CUstream stream) {
    while (stream && stream->first && blocked(stream->first)) stream = stream->first->recorded_in;
    return stream && stream->first ? stream : NULL;
}

static CUstream any_ready(void) {
    unsigned ready = 0;
    CUstream found = NULL;
    for (CUstream one = streams; one; one = one->next)
        if (one->first && !blocked(one->first) && !pick(++ready)) found = one;
    return found;
}

static CUstream next_stream(void) {
    if (machine.random_order) return any_ready();
    for (Waiter *waiter = waiters; waiter; waiter = waiter->next) {
        CUstream found = needed_for(waiter->stream);
        if (found) return found;
    }
    return NULL;
}

/* The work of a lost device is never done. */
static void forget_lost(void) {
    for (CUstream one = streams; one; one = one->next)
        while (machine.lost[one->device] && one->first) done(one);
}

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&big_lock);
    for (;;) {
        forget_lost();
        CUstream stream = next_stream();
        if (stream) {
            run(stream);
            pthread_cond_broadcast(&changed);
            /* Others may add work between any two operations. */
            pthread_mutex_unlock(&big_lock);
            pthread_mutex_lock(&big_lock);
        } else
            pthread_cond_wait(&changed, &big_lock);
    }
    return NULL;
}

static void begin(void) {
    static bool begun;
    pthread_t thread;
    if (begun) return;
    begun = true;
    const char *seed = getenv("EMULATED_SEED");
    chance = (seed ? strtoull(seed, NULL, 10) : 0) * 2654435761u + 88172645463325252u;
    for (int device = 0; device < machine.count; device++) {
        default_streams[device].device = device;
        default_streams[device].next = streams;
        streams = &default_streams[device];
    }
    pthread_create(&thread, NULL, work, NULL);
    pthread_detach(thread);
}

/* Waits until an event has come so far, or for a stream to be empty. The error of a device that is lost meanwhile. */
static CUresult wait_for(CUstream stream, int device, CUevent event, unsigned long long count) {
    Waiter waiter = {waiters, stream};
    waiters = &waiter;
    pthread_cond_broadcast(&changed);
    while (!machine.lost[device] && (event ? event->reached < count : stream->first != NULL))
        pthread_cond_wait(&changed, &big_lock);
    Waiter **at = &waiters;
    while (*at != &waiter) at = &(*at)->next;
    *at = waiter.next;
    return machine.lost[device];
}

/* The stream that a handle means: NULL is the device's default one. Its device must be that of the current context. */
static CUresult enter_stream(const char *function, CUstream *stream) {
    int device;
    CUresult result = enter_context(function, &device);
    if (result) return result;
    begin();
    if (!*stream) *stream = &default_streams[device];
    CUstream one = streams;
    while (one && one != *stream) one = one->next;
    if (!one || one->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    return one->device == device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static Operation *add(CUstream stream, Operation operation) {
    Operation *added = malloc(sizeof *added);
    *added = operation;
    added->next = NULL;
    if (stream->last)
        stream->last->next = added;
    else
        stream->first = added;
    stream->last = added;
    pthread_cond_broadcast(&changed);
    return added;
}

/* ---- Streams ---- */

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    int device;
    CUresult result = enter_context("cuStreamCreate", &device);
    if (result) return leave(result);
    begin();
    *stream = calloc(1, sizeof **stream);
    (*stream)->device = device;
    (*stream)->next = streams;
    streams = *stream;
    live_streams++;
    return leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream stream) {
    CUresult result = enter_stream("cuStreamDestroy", &stream);
    if (!result) {
        stream->destroyed = true;
        live_streams--;
    }
    return leave(result);
}

CUresult cuStreamSynchronize(CUstream stream) {
    CUresult result = enter_stream("cuStreamSynchronize", &stream);
    return leave(result ? result : wait_for(stream, stream->device, NULL, 0));
}

/* Waits for every stream of the device. */
CUresult cuCtxSynchronize(void) {
    int device;
    CUresult result = enter_context("cuCtxSynchronize", &device);
    if (!result) begin();
    for (CUstream one = streams; one && !result; one = one->next)
        if (one->device == device && one->first) result = wait_for(one, device, NULL, 0);
    return leave(result);
}

/* ---- Events ---- */

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    int device;
    CUresult result = enter_context("cuEventCreate", &device);
    if (result) return leave(result);
    *event = calloc(1, sizeof **event);
    (*event)->device = device;
    (*event)->timed = !(flags & CU_EVENT_DISABLE_TIMING);
    (*event)->references = 1;
    live_events++;
    return leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent event) {
    CUresult result = enter("cuEventDestroy");
    if (!result) {
        let_go(event);
        live_events--;
    }
    return leave(result);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    CUresult result = enter_stream("cuEventRecord", &stream);
    if (!result && event->device != stream->device) result = CUDA_ERROR_INVALID_HANDLE;
    if (result) return leave(result);
    event->stream = stream;
    event->references++;
    add(stream, (Operation){.kind = RECORD, .event = event, .count = ++event->asked});
    return leave(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    CUresult result = enter_stream("cuStreamWaitEvent", &stream);
    if (result) return leave(result);
    event->references++;
    add(stream, (Operation){.kind = WAIT, .event = event, .count = event->asked, .recorded_in = event->stream});
    return leave(CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent event) {
    CUresult result = enter("cuEventSynchronize");
    return leave(result ? result : wait_for(event->stream, event->device, event, event->asked));
}

/* Whoever asks may ask in a loop, so asking lets one operation run. */
CUresult cuEventQuery(CUevent event) {
    CUresult result = enter("cuEventQuery");
    if (!result) result = machine.lost[event->device];
    if (!result && event->reached < event->asked) {
        CUstream next = needed_for(event->stream);
        if (next) run(next);
        result = machine.lost[event->device];
        pthread_cond_broadcast(&changed);
        if (!result && event->reached < event->asked) result = CUDA_ERROR_NOT_READY;
    }
    return leave(result);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent last) {
    CUresult result = enter("cuEventElapsedTime");
    if (!result && !(first->timed && last->timed && first->asked && last->asked)) result = CUDA_ERROR_INVALID_HANDLE;
    if (!result && (first->reached < first->asked || last->reached < last->asked)) result = CUDA_ERROR_NOT_READY;
    if (!result) *milliseconds = last->reached_ms - first->reached_ms;
    return leave(result);
}

/* ---- Copies ---- */

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t nbytes, CUstream stream) {
    CUresult result = enter_stream("cuMemcpyHtoDAsync", &stream);
    if (!result && !accessible(to, nbytes, stream->device)) result = CUDA_ERROR_INVALID_VALUE;
    if (result) return leave(result);
    Operation copy = {.kind = COPY, .direction = UP, .up_from = from, .to = to, .to_device = stream->device,
                      .nbytes = nbytes};
    if (!is_registered(from, nbytes)) {
        copy.snapshot = malloc(nbytes);
        memcpy(copy.snapshot, from, nbytes);
    }
    add(stream, copy);
    return leave(CUDA_SUCCESS);
}

/* Into host memory that is not registered it returns when the bytes are there, as with a GPU. */
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t nbytes, CUstream stream) {
    CUresult result = enter_stream("cuMemcpyDtoHAsync", &stream);
    if (!result && (!accessible(from, nbytes, stream->device) || is_partly_registered(to, nbytes)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result) return leave(result);
    if (is_registered(to, nbytes)) count_bytes(DOWN_REGISTERED, nbytes);
    add(stream, (Operation){.kind = COPY, .direction = DOWN, .down_to = to, .from = from,
                            .from_device = stream->device, .nbytes = nbytes});
    return leave(is_registered(to, nbytes) ? CUDA_SUCCESS : wait_for(stream, stream->device, NULL, 0));
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream stream) {
    CUresult result = enter_stream("cuMemcpyDtoDAsync", &stream);
    if (!result && !(accessible(to, nbytes, stream->device) && accessible(from, nbytes, stream->device)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        add(stream, (Operation){.kind = COPY, .direction = WITHIN, .to = to, .from = from,
                                .to_device = stream->device, .from_device = stream->device, .nbytes = nbytes});
    return leave(result);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t nbytes, CUstream stream) {
    CUresult result = enter_stream("cuMemcpyPeerAsync", &stream);
    if (!result && !(to_context && from_context)) result = CUDA_ERROR_INVALID_CONTEXT;
    if (!result && !(accessible(to, nbytes, to_context->device) && accessible(from, nbytes, from_context->device)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        add(stream, (Operation){.kind = COPY, .direction = machine.peers ? PEER : STAGED, .to = to, .from = from,
                                .to_device = to_context->device, .from_device = from_context->device,
                                .nbytes = nbytes});
    return leave(result);
}

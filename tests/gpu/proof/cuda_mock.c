/* A libcuda.so.1 for tests of the proof itself, beside the libnvidia-ml.so.1 of tests/gpu/nvml: it has the calls that
 * cuda_client.py makes, shows the cards of `nvml.state` that CUDA_VISIBLE_DEVICES names, lists its process there, keeps
 * the limits of MPS where a control daemon's pipe is, and makes an XID of a fault. Kernels are known by their names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../nvml/state.h"

enum { CUDA_OK = 0, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, ILLEGAL_ADDRESS = 700, MISALIGNED = 716,
       MPS_CONNECTION_FAILED = 805 };
enum { CONTEXT = 64 << 20, SMALL = 1 << 20, BLOCKS = 4096 };

static struct state *state;
static struct card *visible[CARDS];
static int count;
static u64 held, limit = ~0ULL;
static u32 percent = 100, broken;
static struct process *self;
static struct { u64 place, size; } block[BLOCKS];

static int mps(void) {
    char path[4096];
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(path, sizeof path, "%s/control", folder ? folder : "/tmp/nvidia-mps");
    return access(path, F_OK) == 0 ? 1 : folder ? -1 : 0;
}

static void list(void) {
    struct card *card = visible[0];
    if (!self) {
        self = &card->process[__atomic_fetch_add(&card->processes, 1, __ATOMIC_SEQ_CST) % PROCESSES];
        *self = (struct process){.pid = (u32)getpid(), .kinds = mps() > 0 ? 4 : 1, .gpu_instance = ~0u, .compute_instance = ~0u};
    }
    __atomic_fetch_add(&card->used, held + CONTEXT - self->used, __ATOMIC_SEQ_CST);
    self->used = held + CONTEXT;
}

__attribute__((destructor)) static void leave(void) {
    if (!self) return;
    __atomic_fetch_sub(&visible[0]->used, self->used, __ATOMIC_SEQ_CST);
    self->kinds = 0;
}

static int instance(const struct card *card, const char *wanted) {
    for (u32 i = 0; i < card->parts; i++)
        if (card->part[i].uuid[0] && strstr(wanted, card->part[i].uuid)) return 1;
    return 0;
}

u32 cuInit(u32 flags) {
    (void)flags;
    Dl_info info;
    char path[4096];
    if (!dladdr((void *)&state, &info)) return NOT_INITIALIZED;
    if (!realpath(info.dli_fname, path)) return NOT_INITIALIZED;
    char *slash = strrchr(path, '/');
    const char *told = getenv("CUDA_MOCK_STATE");
    snprintf(slash ? slash + 1 : path, 16, "nvml.state");
    int file = open(told ? told : path, O_RDWR | O_CLOEXEC);
    void *place = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (place == MAP_FAILED) return NOT_INITIALIZED;
    state = place;
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES"), *bytes = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    const char *share = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    for (u32 i = 0; i < state->count; i++)
        if (!wanted || strstr(wanted, state->card[i].uuid) || instance(&state->card[i], wanted))
            visible[count++] = &state->card[i];
    if (!count) return NO_DEVICE;
    if (mps() < 0) return MPS_CONNECTION_FAILED;
    if (mps() > 0 && bytes && strchr(bytes, '=')) limit = strtoull(strchr(bytes, '=') + 1, NULL, 10) << 20;
    if (getenv("CUDA_MOCK_GENEROUS")) limit = ~0ULL;
    if (mps() > 0 && share) percent = (u32)atoi(share);
    return CUDA_OK;
}
u32 cuDeviceGetCount(int *found) { *found = count; return CUDA_OK; }
u32 cuDeviceGet(int *device, int number) { *device = number; return number < count ? CUDA_OK : NO_DEVICE; }
u32 cuDeviceGetUuid(unsigned char *uuid, int device) {
    const char *text = visible[device]->uuid + 4;
    for (int i = 0; i < 16; text += 2, i++) {
        if (*text == '-') text++;
        sscanf(text, "%2hhx", &uuid[i]);
    }
    return CUDA_OK;
}
u32 cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = state; list(); return CUDA_OK; }
u32 cuCtxSetCurrent(void *context) { (void)context; return CUDA_OK; }
u32 cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)attribute, (void)device;
    *value = (int)(132 * percent / 100);
    return CUDA_OK;
}
u32 cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = limit < visible[0]->total ? limit : visible[0]->total;
    *free = *total - held;
    return CUDA_OK;
}
u32 cuMemAlloc_v2(u64 *place, size_t size) {
    if (broken) return broken;
    if (held + size + CONTEXT > limit || held + size > visible[0]->total) return OUT_OF_MEMORY;
    for (u32 i = 0; i < BLOCKS; i++) {
        if (block[i].size) continue;
        /* What is only held takes an address that nothing reads. */
        block[i].place = size <= SMALL ? (u64)(size_t)calloc(1, size) : 1ULL << 46;
        *place = block[i].place;
        block[i].size = size;
        held += size;
        list();
        return CUDA_OK;
    }
    return OUT_OF_MEMORY;
}
u32 cuMemFree_v2(u64 place) {
    for (u32 i = 0; i < BLOCKS; i++) {
        if (!block[i].size || block[i].place != place) continue;
        if (block[i].size <= SMALL) free((void *)(size_t)place);
        held -= block[i].size;
        block[i].size = 0;
        list();
        return CUDA_OK;
    }
    return 1;
}
u32 cuMemcpyDtoH_v2(void *target, u64 place, size_t size) {
    memcpy(target, (void *)(size_t)place, size);
    return CUDA_OK;
}
u32 cuModuleLoadData(void **module, const char *text) { *module = state; return strstr(text, ".entry") ? CUDA_OK : 218; }
u32 cuModuleGetFunction(const char **function, void *module, const char *name) {
    (void)module;
    *function = strcmp(name, "mark") ? "multiply" : "mark";
    return CUDA_OK;
}
static u32 breaks(u32 code, u32 xid) {
    u32 number = state->next_event;
    state->event[number % EVENTS] = (struct event){(u32)(visible[0] - state->card), ~0u, ~0u, 0, 8, xid};
    __atomic_store_n(&state->next_event, number + 1, __ATOMIC_SEQ_CST);
    return broken = code;
}
u32 cuLaunchKernel(const char *function, u32 blocks, u32 y, u32 z, u32 threads, u32 ty, u32 tz, u32 shared, void *stream,
                   void **arguments, void **extra) {
    (void)y, (void)z, (void)ty, (void)tz, (void)shared, (void)stream, (void)extra;
    if (broken) return broken;
    u64 place = *(u64 *)arguments[0];
    u32 value = *(u32 *)arguments[1];
    if (strcmp(function, "mark")) return usleep(1000), CUDA_OK;
    if (place < 4096) return breaks(ILLEGAL_ADDRESS, 31), CUDA_OK;
    if (place % 4) return breaks(MISALIGNED, 13), CUDA_OK;
    for (u32 i = 0; i < blocks * threads; i++) ((u32 *)(size_t)place)[i] = value + i;
    return CUDA_OK;
}
u32 cuCtxSynchronize(void) { return broken; }

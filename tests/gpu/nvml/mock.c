/* A libnvidia-ml.so.1 for tests: all its state lies in one file, which a test changes while it runs.
 *
 * The file is `nvml.state` beside the library; its layout is that of struct state here and of nvml_mock.py. Every entry
 * point counts its calls, then hangs, crashes or fails as the state says. As with the real library, the cards are
 * those of initialisation when `sticky` is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

static struct state *state;
static u32 attached;
static u32 seen_events;
static u64 registered[CARDS + 1];

static void attach(void) {
    Dl_info info;
    char path[4096];
    if (state || !dladdr((void *)&state, &info)) return;
    snprintf(path, sizeof path, "%s", info.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 16, "nvml.state");
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *place = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (place == MAP_FAILED || ((struct state *)place)->size != sizeof *state) raise(SIGABRT);
    state = place;
}

static void nap(void) { nanosleep(&(struct timespec){0, 2000000}, NULL); }
static u64 now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000 + (u64)time.tv_nsec / 1000000;
}

/* Count a call, and do what a broken driver would. */
static u32 enter(u32 call, const struct card *card) {
    attach();
    __atomic_fetch_add(&state->calls[call], 1, __ATOMIC_SEQ_CST);
    while (*(volatile u32 *)&state->hangs[call]) nap();
    while (card && *(volatile u32 *)&card->errors[call] == HANG) nap();
    u32 error = card && card->errors[call] ? card->errors[call] : state->errors[call];
    if (error == CRASH) raise(SIGSEGV);
    return error;
}

#define ENTER(name, card) do { u32 fails = enter(CALL_##name, card); if (fails) return fails; } while (0)

static u32 counted(void) { return state->sticky ? attached : state->count; }

/* A handle points to a card or to a part of one. */
static struct part *part_of(void *handle) {
    for (u32 i = 0; i <= CARDS; i++)
        for (u32 j = 0; j < PARTS; j++)
            if (handle == &state->card[i].part[j]) return handle;
    return NULL;
}
static struct card *card_of(void *handle) { return part_of(handle) ? NULL : handle; }

u32 nvmlInitWithFlags(u32 flags) {
    (void)flags;
    ENTER(nvmlInitWithFlags, NULL);
    attached = state->count;
    seen_events = state->next_event;
    return OK;
}
u32 nvmlSystemGetDriverVersion(char *text, u32 size) {
    ENTER(nvmlSystemGetDriverVersion, NULL);
    snprintf(text, size, "%s", state->version);
    return OK;
}
u32 nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(nvmlSystemGetCudaDriverVersion_v2, NULL);
    *version = 12080;
    return OK;
}
u32 nvmlDeviceGetCount_v2(u32 *count) {
    ENTER(nvmlDeviceGetCount_v2, NULL);
    *count = counted();
    return OK;
}
u32 nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
    attach();
    if (index >= CARDS) return INVALID;
    ENTER(nvmlDeviceGetHandleByIndex_v2, &state->card[index]);
    if (index >= counted()) return INVALID;
    *handle = &state->card[index];
    return OK;
}
u32 nvmlDeviceGetUUID(void *handle, char *text, u32 size) {
    ENTER(nvmlDeviceGetUUID, card_of(handle));
    snprintf(text, size, "%s", part_of(handle) ? part_of(handle)->uuid : card_of(handle)->uuid);
    return OK;
}
u32 nvmlDeviceGetName(void *handle, char *text, u32 size) {
    ENTER(nvmlDeviceGetName, card_of(handle));
    snprintf(text, size, "%s", part_of(handle) ? part_of(handle)->name : card_of(handle)->name);
    return OK;
}
u32 nvmlDeviceGetMinorNumber(struct card *card, u32 *minor) {
    ENTER(nvmlDeviceGetMinorNumber, card);
    *minor = card->minor;
    return OK;
}
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char text[32]; };
u32 nvmlDeviceGetPciInfo_v3(struct card *card, struct pci *pci) {
    ENTER(nvmlDeviceGetPciInfo_v3, card);
    memcpy(pci->text, card->bus, sizeof pci->text);
    return OK;
}
u32 nvmlDeviceGetCudaComputeCapability(struct card *card, int *major, int *minor) {
    ENTER(nvmlDeviceGetCudaComputeCapability, card);
    *major = (int)card->major;
    *minor = (int)card->minor_capability;
    return OK;
}
struct memory { u64 total, free, used; };
u32 nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    ENTER(nvmlDeviceGetMemoryInfo, card_of(handle));
    struct part *part = part_of(handle);
    u64 total = part ? part->megabytes << 20 : card_of(handle)->total;
    u64 used = part ? part->used : card_of(handle)->used;
    *memory = (struct memory){total, total - used, used};
    return OK;
}
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
u32 nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
    ENTER(nvmlDeviceGetMemoryInfo_v2, card_of(handle));
    if (memory->version != 0x02000028) return 25;
    struct part *part = part_of(handle);
    memory->total = part ? part->megabytes << 20 : card_of(handle)->total;
    memory->used = part ? part->used : card_of(handle)->used;
    memory->reserved = 1 << 20;
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}
struct field { u32 id, scope; long long time, latency; u32 type, error; u64 bits; };
u32 nvmlDeviceGetFieldValues(struct card *card, int count, struct field *fields) {
    ENTER(nvmlDeviceGetFieldValues, card);
    for (int i = 0; i < count; i++) {
        struct value unknown = {0, 3, 0};
        struct value value = fields[i].id == 230 ? card->recovery : fields[i].id == 4 ? card->ecc : unknown;
        fields[i].type = value.type;
        fields[i].error = value.error;
        fields[i].bits = value.bits;
    }
    return OK;
}
u32 nvmlDeviceGetMigMode(struct card *card, u32 *current, u32 *pending) {
    ENTER(nvmlDeviceGetMigMode, card);
    *current = *pending = card->mig;
    return OK;
}
u32 nvmlDeviceGetMaxMigDeviceCount(struct card *card, u32 *count) {
    ENTER(nvmlDeviceGetMaxMigDeviceCount, card);
    *count = state->max_parts;
    return OK;
}
u32 nvmlDeviceGetMigDeviceHandleByIndex(struct card *card, u32 index, void **handle) {
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, card);
    if (index >= card->parts || !card->part[index].uuid[0]) return NOT_FOUND;
    *handle = &card->part[index];
    return OK;
}
u32 nvmlDeviceGetGpuInstanceId(struct part *part, u32 *id) {
    ENTER(nvmlDeviceGetGpuInstanceId, NULL);
    *id = part->gpu_instance;
    return OK;
}
u32 nvmlDeviceGetComputeInstanceId(struct part *part, u32 *id) {
    ENTER(nvmlDeviceGetComputeInstanceId, NULL);
    *id = part->compute_instance;
    return OK;
}
struct attributes { u32 multiprocessors, copy, decoders, encoders, jpeg, ofa, slices, compute_slices; u64 megabytes; };
u32 nvmlDeviceGetAttributes_v2(struct part *part, struct attributes *attributes) {
    ENTER(nvmlDeviceGetAttributes_v2, NULL);
    *attributes = (struct attributes){.ofa = part->ofa, .slices = part->slices, .compute_slices = part->compute_slices,
                                      .megabytes = part->megabytes};
    return OK;
}
struct entry { u32 pid; u64 used; u32 gpu_instance, compute_instance; };
static u32 list(const struct card *card, u32 kind, u32 *count, struct entry *entries) {
    u32 found = 0;
    for (u32 i = 0; i < card->processes; i++) {
        const struct process *one = &card->process[i];
        if (!(one->kinds & kind)) continue;
        if (entries && found < *count)
            entries[found] = (struct entry){one->pid, one->used, one->gpu_instance, one->compute_instance};
        found++;
    }
    if (state->process_count) found = state->process_count;  /* a count that somebody made up */
    u32 room = entries ? *count : 0;
    *count = found;
    return found > room ? TOO_SMALL : OK;
}
#define LIST(name, kind) \
    u32 name(struct card *card, u32 *count, struct entry *entries) { \
        ENTER(name, card); \
        return list(card, kind, count, entries); \
    }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 4)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 4)

u32 nvmlDeviceGetNvLinkState(struct card *card, u32 link, u32 *active) {
    ENTER(nvmlDeviceGetNvLinkState, card);
    if (link >= LINKS || !card->link[link].there) return INVALID;
    *active = card->link[link].active;
    return OK;
}
u32 nvmlDeviceGetNvLinkRemotePciInfo_v2(struct card *card, u32 link, struct pci *pci) {
    ENTER(nvmlDeviceGetNvLinkRemotePciInfo_v2, card);
    if (link >= LINKS || !card->link[link].there) return INVALID;
    memcpy(pci->text, card->link[link].end, sizeof pci->text);
    return OK;
}
u32 nvmlDeviceGetTopologyCommonAncestor(struct card *one, struct card *other, u32 *level) {
    ENTER(nvmlDeviceGetTopologyCommonAncestor, one);
    *level = one->node == other->node ? 10 : 50;
    return OK;
}
struct rates { u32 gpu, memory; };
u32 nvmlDeviceGetUtilizationRates(struct card *card, struct rates *rates) {
    ENTER(nvmlDeviceGetUtilizationRates, card);
    *rates = (struct rates){card->shares.sm, card->shares.memory};
    return OK;
}
/* As with the real library, a process has a sample only if it was busy since. */
struct sample { u32 pid; u64 stamp; struct shares shares; };
u32 nvmlDeviceGetProcessUtilization(struct card *card, struct sample *samples, u32 *count, u64 since) {
    ENTER(nvmlDeviceGetProcessUtilization, card);
    u32 found = 0, room = samples ? *count : 0;
    for (u32 i = 0; i < card->processes; i++) {
        const struct process *one = &card->process[i];
        if (one->sampled <= since) continue;
        if (found < room) samples[found] = (struct sample){one->pid, one->sampled, one->shares};
        found++;
    }
    *count = found;
    return !found ? NOT_FOUND : found > room ? TOO_SMALL : OK;
}
u32 nvmlDeviceGetSupportedEventTypes(struct card *card, u64 *types) {
    ENTER(nvmlDeviceGetSupportedEventTypes, card);
    *types = card->events;
    return OK;
}
u32 nvmlEventSetCreate(void **set) {
    ENTER(nvmlEventSetCreate, NULL);
    *set = registered;
    return OK;
}
u32 nvmlDeviceRegisterEvents(struct card *card, u64 types, void *set) {
    ENTER(nvmlDeviceRegisterEvents, card);
    if (types & ~card->events || set != registered) return INVALID;
    registered[card - state->card] = types;
    registered[CARDS] = ~0ULL;
    return OK;
}
u32 nvmlEventSetFree(void *set) {
    (void)set;
    ENTER(nvmlEventSetFree, NULL);
    memset(registered, 0, sizeof registered);
    return OK;
}
struct event_data { void *device; u64 type, data; u32 gpu_instance, compute_instance; };
u32 nvmlEventSetWait_v2(void *set, struct event_data *data, u32 milliseconds) {
    (void)set;
    ENTER(nvmlEventSetWait_v2, NULL);
    /* By the clock: on a loaded machine a nap takes many times as long. */
    for (const u64 end = now() + milliseconds; now() < end; nap()) {
        if (*(volatile u32 *)&state->next_event == seen_events) continue;
        struct event *one = &state->event[seen_events++ % EVENTS];
        if (!(registered[one->card] & one->type)) continue;
        *data = (struct event_data){&state->card[one->card], one->type, one->data, one->gpu_instance,
                                    one->compute_instance};
        return OK;
    }
    return TIMEOUT;
}

/* Limits by cgroup, since R615: the driver opens the folder, keeps the limit by it, and forgets it with it. */
static struct limit *limit_of(const struct card *card, const char *cgroup) {
    for (u32 i = 0; i < state->limits; i++)
        if (state->limit[i].card == (u32)(card - state->card) && !strcmp(state->limit[i].cgroup, cgroup))
            return &state->limit[i];
    return NULL;
}
static u32 limitable(void *handle, const char *cgroup) {
    if (part_of(handle) || card_of(handle)->mig) return NOT_SUPPORTED;
    if (atoi(state->version) < 615) return NOT_SUPPORTED;
    char procs[1024];
    snprintf(procs, sizeof procs, "%s/cgroup.procs", cgroup);
    return access(procs, F_OK) ? INVALID : OK;
}
struct set_limits { const char *cgroup; u64 soft, hard; };
u32 nvmlDeviceSetMemoryLimits_v1(void *handle, struct set_limits *limits) {
    ENTER(nvmlDeviceSetMemoryLimits_v1, card_of(handle));
    if (geteuid() || state->no_root) return NO_PERMISSION;
    u32 fails = limitable(handle, limits->cgroup);
    if (fails) return fails;
    struct limit *one = limit_of(handle, limits->cgroup);
    if (!one && limits->hard == ~0ULL) return OK;
    if (!one && state->limits == LIMITS) return 23;
    if (!one) one = &state->limit[state->limits++];
    u64 unit = (u64)(state->rounding ? state->rounding : 1) << 20;
    snprintf(one->cgroup, sizeof one->cgroup, "%s", limits->cgroup);
    one->card = (u32)((struct card *)handle - state->card);
    one->soft = limits->soft;
    one->hard = limits->hard == ~0ULL ? limits->hard : (limits->hard + unit - 1) / unit * unit;
    return OK;
}
struct get_limits { const char *cgroup; u64 soft, hard, used; };
u32 nvmlDeviceGetMemoryLimits_v1(void *handle, struct get_limits *limits) {
    ENTER(nvmlDeviceGetMemoryLimits_v1, card_of(handle));
    u32 fails = limitable(handle, limits->cgroup);
    if (fails) return fails;
    struct limit *one = limit_of(handle, limits->cgroup);
    limits->soft = one ? one->soft : 0;
    limits->hard = one ? one->hard : ~0ULL;
    limits->used = 0;
    return OK;
}

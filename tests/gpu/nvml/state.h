/* The layout of `nvml.state`, which the libraries for tests and the Python that changes it share. */
typedef unsigned int u32;
typedef unsigned long long u64;

enum { CARDS = 64, PARTS = 8, PROCESSES = 16, LINKS = 18, EVENTS = 64, CRASH = 0xdead, HANG = 0xbeef };
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10,
       NOT_SUPPORTED = 3, NO_PERMISSION = 4, LIMITS = 32 };

#define SYMBOLS(X) \
    X(nvmlInitWithFlags) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetCudaDriverVersion_v2) \
    X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2) \
    X(nvmlDeviceGetUUID) X(nvmlDeviceGetName) X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetPciInfo_v3) \
    X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetMemoryInfo) \
    X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) \
    X(nvmlDeviceGetMigDeviceHandleByIndex) X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) \
    X(nvmlDeviceGetAttributes_v2) X(nvmlDeviceGetComputeRunningProcesses_v3) \
    X(nvmlDeviceGetComputeRunningProcesses_v2) X(nvmlDeviceGetGraphicsRunningProcesses_v3) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v2) X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v2) X(nvmlDeviceGetNvLinkState) \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2) X(nvmlDeviceGetTopologyCommonAncestor) X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetProcessUtilization) \
    X(nvmlDeviceGetSupportedEventTypes) X(nvmlDeviceRegisterEvents) \
    X(nvmlEventSetCreate) X(nvmlEventSetFree) X(nvmlEventSetWait_v2) X(nvmlDeviceSetMemoryLimits_v1) \
    X(nvmlDeviceGetMemoryLimits_v1)
#define NUMBER(name) CALL_##name,
enum { SYMBOLS(NUMBER) CALLS };

struct link { u32 there, active; char end[32]; };
struct shares { u32 sm, memory, encoder, decoder; };
struct process { u32 pid, kinds; u64 used; u32 gpu_instance, compute_instance; struct shares shares; u64 sampled; };
struct part { char uuid[96], name[96]; u32 gpu_instance, compute_instance, slices, compute_slices, ofa, used; u64 megabytes; };
struct value { u32 type, error; u64 bits; };
struct card {
    char uuid[96], name[96], bus[32];
    u32 minor, major, minor_capability, mig, parts, processes;
    u64 total, used, events;
    struct shares shares;
    u32 node, padding;
    struct link link[LINKS];
    u32 errors[CALLS];  /* for this card alone, before those of `struct state` */
    struct value recovery, ecc;
    struct part part[PARTS];
    struct process process[PROCESSES];
};
struct limit { char cgroup[512]; u32 card, padding; u64 soft, hard; };
struct event { u32 card, gpu_instance, compute_instance, padding; u64 type, data; };
struct state {
    u32 size, count, sticky, max_parts, process_count, next_event;
    char version[80];
    u32 errors[CALLS], hangs[CALLS], calls[CALLS];
    struct event event[EVENTS];
    u32 limits, no_root, rounding, padding;  /* `rounding`: MiB to which a limit is rounded up */
    struct limit limit[LIMITS];
    struct card card[CARDS + 1];  /* one more than counted: events of an unknown card */
};

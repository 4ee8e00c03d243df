/* What nodeplug-entrypoint.c needs of a C library, on Linux for x86-64 and arm64: system calls, a few functions on
 * bytes, and the first instruction. A C library's own start costs more than the rest of the program does: GNU's asks
 * the processor some sixty questions, each of which a virtual machine hands to its hypervisor (0.7 of 0.8 ms on one).
 * Included after the system's headers, whose declarations these functions fulfil. */
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#undef errno
#define errno error_number
static int error_number;
static unsigned long *auxiliary;
char **environ;

#if defined __x86_64__
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n hlt\n");

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result = number;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined __aarch64__
__asm__(".globl _start\n_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n and sp, x0, #-16\n b begin\n");

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
    return x0;
}
#else
#error "another architecture: a C library is needed"
#endif

static long call(long number, long a, long b, long c, long d, long e, long f) {
    long result = kernel(number, a, b, c, d, e, f);
    if (result >= 0 || result < -4095) return result;
    errno = (int)-result;
    return -1;
}

#define CALL1(name, a) call(SYS_##name, (long)(a), 0, 0, 0, 0, 0)
#define CALL2(name, a, b) call(SYS_##name, (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL3(name, a, b, c) call(SYS_##name, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define CALL5(name, a, b, c, d, e) call(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define CALL6(name, a, b, c, d, e, f) call(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

ssize_t read(int fd, void *to, size_t size) { return CALL3(read, fd, to, size); }
ssize_t write(int fd, const void *from, size_t size) { return CALL3(write, fd, from, size); }
int close(int fd) { return (int)CALL1(close, fd); }
int fsync(int fd) { return (int)CALL1(fsync, fd); }
int dup2(int from, int to) { return (int)CALL3(dup3, from, to, 0); }
int mkdir(const char *path, mode_t mode) { return (int)CALL3(mkdirat, AT_FDCWD, path, mode); }
int unlink(const char *path) { return (int)CALL3(unlinkat, AT_FDCWD, path, 0); }
int rename(const char *from, const char *to) { return (int)CALL5(renameat2, AT_FDCWD, from, AT_FDCWD, to, 0); }
pid_t getpid(void) { return (pid_t)call(SYS_getpid, 0, 0, 0, 0, 0, 0); }
int clock_gettime(clockid_t clock, struct timespec *at) { return (int)CALL2(clock_gettime, clock, at); }
int nanosleep(const struct timespec *time, struct timespec *left) { return (int)CALL2(nanosleep, time, left); }
int socket(int domain, int type, int protocol) { return (int)CALL3(socket, domain, type, protocol); }
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) { return CALL3(sendmsg, fd, message, flags); }
ssize_t recv(int fd, void *to, size_t size, int flags) { return CALL6(recvfrom, fd, to, size, flags, 0, 0); }

/* GNU's declaration takes a union of pointers, which standard C has not. */
#define connect(fd, address, size) (int)CALL3(connect, fd, address, size)

int setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
    return (int)CALL5(setsockopt, fd, level, name, value, size);
}

static long third(va_list words) {
    long value = va_arg(words, long);
    va_end(words);
    return value;
}

int open(const char *path, int flags, ...) {
    va_list words;
    va_start(words, flags);
    return (int)CALL5(openat, AT_FDCWD, path, flags, flags & O_CREAT ? third(words) : 0, 0);
}

int fcntl(int fd, int command, ...) {
    va_list words;
    va_start(words, command);
    return (int)CALL3(fcntl, fd, command, command == F_SETFL ? third(words) : 0);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    return (void *)CALL6(mmap, at, size, protection, flags, fd, offset);
}

void *mremap(void *at, size_t size, size_t wanted, int flags, ...) {
    return (void *)CALL5(mremap, at, size, wanted, flags, 0);
}

sighandler_t signal(int number, sighandler_t handler) {
    unsigned long action[4] = {(unsigned long)handler}; /* no flags, no mask */
    return CALL5(rt_sigaction, number, action, 0, 8, 0) ? SIG_ERR : SIG_DFL;
}

_Noreturn void _exit(int status) {
    for (;;) CALL1(exit_group, status);
}

/* The compiler may call these four by itself, and may not make one of its own loop into a call of itself. */
#ifdef __clang__
#define PLAIN __attribute__((used, noinline))
#else
#define PLAIN __attribute__((used, noinline, optimize("no-tree-loop-distribute-patterns")))
#endif

PLAIN void *memcpy(void *restrict to, const void *restrict from, size_t size) {
    for (size_t i = 0; i < size; i++) ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

PLAIN void *memset(void *to, int byte, size_t size) {
    for (size_t i = 0; i < size; i++) ((volatile char *)to)[i] = (char)byte; /* secrets are erased with it */
    return to;
}

PLAIN size_t strlen(const char *text) {
    size_t size = 0;
    while (text[size]) size++;
    return size;
}

int strncmp(const char *one, const char *other, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (one[i] != other[i] || !one[i]) return (unsigned char)one[i] - (unsigned char)other[i];
    return 0;
}

int strcmp(const char *one, const char *other) { return strncmp(one, other, (size_t)-1); }

char *strrchr(const char *text, int wanted) {
    const char *found = NULL;
    for (; *text; text++)
        if (*text == (char)wanted) found = text;
    return (char *)found;
}

char *getenv(const char *name) {
    size_t size = strlen(name);
    for (char **pair = environ; *pair; pair++)
        if (!strncmp(*pair, name, size) && (*pair)[size] == '=') return *pair + size + 1;
    return NULL;
}

unsigned long getauxval(unsigned long wanted) {
    for (unsigned long *pair = auxiliary; *pair; pair += 2)
        if (*pair == wanted) return pair[1];
    return 0;
}

/* The words of the C library for what can happen here. */
char *strerror(int error) {
    static const struct {
        int number;
        const char *text;
    } texts[] = {
        {EPERM, "Operation not permitted"},
        {ENOENT, "No such file or directory"},
        {EINTR, "Interrupted system call"},
        {EIO, "Input/output error"},
        {EBADF, "Bad file descriptor"},
        {EAGAIN, "Resource temporarily unavailable"},
        {ENOMEM, "Cannot allocate memory"},
        {EACCES, "Permission denied"},
        {EEXIST, "File exists"},
        {ENOTDIR, "Not a directory"},
        {EISDIR, "Is a directory"},
        {EINVAL, "Invalid argument"},
        {ENFILE, "Too many open files in system"},
        {EMFILE, "Too many open files"},
        {EFBIG, "File too large"},
        {ENOSPC, "No space left on device"},
        {EROFS, "Read-only file system"},
        {EPIPE, "Broken pipe"},
        {ENAMETOOLONG, "File name too long"},
        {ELOOP, "Too many levels of symbolic links"},
        {EPROTO, "Protocol error"},
        {ENOTSOCK, "Socket operation on non-socket"},
        {EPROTOTYPE, "Protocol wrong type for socket"},
        {ECONNABORTED, "Software caused connection abort"},
        {ECONNRESET, "Connection reset by peer"},
        {ENOBUFS, "No buffer space available"},
        {ENOTCONN, "Transport endpoint is not connected"},
        {ETOOMANYREFS, "Too many references: cannot splice"},
        {ETIMEDOUT, "Connection timed out"},
        {ECONNREFUSED, "Connection refused"},
        {EDQUOT, "Disk quota exceeded"},
    };
    static char unknown[] = "Unknown error 0000";
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].number == error) return (char *)texts[i].text;
    char *last = unknown + sizeof unknown - 2;
    for (int i = 0, left = error; i < 4; i++, left /= 10) *last-- = (char)('0' + left % 10);
    return unknown;
}

int main(int argc, char **argv);

/* What the kernel laid on the stack: argc, argv and NULL, the environment and NULL, pairs of which the last has 0. */
__attribute__((used)) _Noreturn static void begin(unsigned long *stack) {
    char **argv = (char **)(stack + 1);
    environ = argv + stack[0] + 1;
    char **end = environ;
    while (*end) end++;
    auxiliary = (unsigned long *)(end + 1);
    _exit(main((int)stack[0], argv));
}

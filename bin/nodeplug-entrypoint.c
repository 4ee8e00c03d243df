/* The entrypoints nodeplug-cni and nodeplug-flex as one C program: the same wire and the same answers without the start
 * of an interpreter. `nodeplug install` compiles it on the node, once for CNI and once with -DFLEX=1, with its own
 * SOCKET and SPOOL, and names it in the first line of the script, so that the kernel starts it in the place of Python.
 * What differs from the scripts, that start included, is a defect of this file. The wire is told in
 * supervisor/nodeplug/exec/frame.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef FREESTANDING
#include "nodeplug-freestanding.h"
#endif

#ifndef SOCKET
#define SOCKET "/run/nodeplug/exec.sock"
#endif
#ifndef SPOOL
#define SPOOL "/var/lib/nodeplug/spool"
#endif
#ifndef FLEX
#define FLEX 0
#endif
#define PATIENCE 10                 /* seconds for the daemon to come up, or to show that it is not stopped */
#define HASTE 2                     /* the same for STATUS */
#define TIMEOUT (FLEX ? 660 : 150)  /* seconds for it to answer */
#define LIMIT 4194304               /* bytes of a request */
#define CHUNK ((size_t)1 << 16)
#define HEADER 16
#define ANSWER 9
#define ALIVE "NPX1\x08\0\0\0\0\0\0\0\0\0\0\0alive\0-" /* what a daemon that runs answers at once */
#define VERSIONS(and) "0.1.0" and "0.2.0" and "0.3.0" and "0.3.1" and "0.4.0" and "1.0.0" and "1.1.0"

#define WORDS_OF(number) #number
#define WORDS(number) WORDS_OF(number)

_Static_assert(sizeof SOCKET <= sizeof((struct sockaddr_un *)0)->sun_path, "the socket's path has more than 107 bytes");

__attribute__((used)) static const char marker[] = "# Installed by nodeplug; `nodeplug uninstall` removes it.";

struct bytes {
    char *data;
    size_t size, room;
};

static int put(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t done = write(fd, data, size);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        data += done;
        size -= (size_t)done;
    }
    return 0;
}

_Noreturn static void finish(int status, const char *out, size_t out_size, const char *err, size_t err_size) {
    if (put(1, out, out_size) && !status) status = 1; /* the caller no longer listens */
    put(2, err, err_size);
    _exit(FLEX ? 0 : status);
}

/* Writes texts one after the other, up to a NULL; what finds no room is left out. Returns their size. */
static size_t join(char *to, size_t room, const char *const *texts) {
    size_t size = 0;
    for (; *texts; texts++)
        for (const char *from = *texts; *from && size + 1 < room; from++) to[size++] = *from;
    to[size] = 0;
    return size;
}
#define JOIN(to, ...) join(to, sizeof to, (const char *const[]){__VA_ARGS__, NULL})

/* Writes a number with at least `width` digits. */
static const char *decimal(char to[24], unsigned long long number, int width) {
    char *first = to + 23;
    for (*first = 0; number || width > 0; number /= 10, width--) *--first = (char)('0' + number % 10);
    return first;
}

/* Says an error in the form of the style; the text goes into JSON as it is, so it keeps harmless characters alone. */
_Noreturn static void fail(int code, const char *text) {
    char answer[8192], digits[24];
    size_t size = FLEX ? JOIN(answer, "{\"status\":\"Failure\",\"message\":\"")
                       : JOIN(answer, "{\"code\":", decimal(digits, (unsigned)code, 1), ",\"msg\":\"");
    for (; *text && size < sizeof answer - 4; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c & 0xc0) == 0x80) continue; /* one mark per character, not per byte of its UTF-8 */
        answer[size++] = c == '"' ? '\'' : c >= ' ' && c <= '~' && c != '\\' ? (char)c : '?';
    }
    memcpy(answer + size, "\"}\n", 3);
    finish(1, answer, size + 3, "", 0);
}

static void make_room(struct bytes *to, size_t more) {
    if (to->room - to->size >= more) return;
    size_t room = 2 * to->room + more;
    char *data = to->data ? mremap(to->data, to->room, room, MREMAP_MAYMOVE)
                          : mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) fail(999, "the nodeplug entrypoint failed: out of memory");
    to->data = data;
    to->room = room;
}

static void append(struct bytes *to, const char *data, size_t size) {
    make_room(to, size);
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

static void put_number(char *to, size_t number) {
    for (int i = 0; i < 4; i++) to[i] = (char)(number >> 8 * i & 0xff);
}

static size_t get_number(const char *from) {
    size_t number = 0;
    for (int i = 0; i < 4; i++) number |= (size_t)(unsigned char)from[i] << 8 * i;
    return number;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* Returns a connected socket whose every step takes `step` seconds at most, or -1 with errno. EAGAIN: the daemon is
 * there, with a full backlog. */
static int connected(int patient, double wait, double step) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    struct timeval limit = {(time_t)step, (suseconds_t)(step * 1000000) % 1000000};
    for (double end = now() + wait;;) {
        int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (peer < 0) return -1;
        if (!connect(peer, (struct sockaddr *)&address, sizeof address)) {
            if (fcntl(peer, F_SETFL, 0) || setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
                setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit))
                return -1;
            return peer;
        }
        int error = errno;
        close(peer);
        errno = error;
        if (error != EAGAIN && !(patient && (error == ENOENT || error == ECONNREFUSED))) return -1;
        if (now() > end) return -1;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

/* Opens our own network namespace, then CNI_NETNS: its path may mean nothing where the daemon runs. */
static size_t namespaces(int fds[2]) {
    const char *paths[2] = {"/proc/self/ns/net", getenv("CNI_NETNS")};
    size_t count = 0;
    while (count < 2 && paths[count]) {
        int fd = open(paths[count], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) break;
        fds[count++] = fd;
    }
    return count;
}

static int send_frame(int peer, const struct bytes *frame) {
    int fds[2];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof fds)];
    } control = {0};
    size_t count = FLEX ? 0 : namespaces(fds);
    struct iovec rest = {frame->data, frame->size};
    struct msghdr message = {.msg_iov = &rest, .msg_iovlen = 1};
    if (count) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof *fds);
        control.header = (struct cmsghdr){CMSG_LEN(count * sizeof *fds), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), fds, count * sizeof *fds);
    }
    while (rest.iov_len) {
        ssize_t sent = sendmsg(peer, &message, 0);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return -1;
        rest.iov_base = (char *)rest.iov_base + sent;
        rest.iov_len -= (size_t)sent;
        message.msg_control = NULL; /* descriptors travel with the first bytes alone */
        message.msg_controllen = 0;
    }
    return 0;
}

/* Whether the daemon answers anything at all: the kernel takes connections for a stopped one, too. */
static int is_alive(double step) {
    char byte;
    int peer = connected(0, 0, step);
    int alive = peer >= 0 && !put(peer, ALIVE, sizeof ALIVE) && recv(peer, &byte, 1, 0) > 0;
    if (peer >= 0) close(peer);
    return alive;
}

/* Receives until the answer is whole; -1 with errno if the daemon was silent too long or the connection broke. */
static int receive(int peer, struct bytes *answer, double step, size_t *out, size_t *err) {
    uint64_t due = ANSWER;
    double end = now() + TIMEOUT;
    while (answer->size < due) {
        make_room(answer, CHUNK);
        ssize_t got = recv(peer, answer->data + answer->size, CHUNK, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN && now() <= end) {
            if (is_alive(step)) continue;
            errno = ETIMEDOUT;
        }
        if (got < 0) return -1;
        if (!got) break;
        answer->size += (size_t)got;
        if (answer->size >= ANSWER) {
            *out = get_number(answer->data + 1);
            *err = get_number(answer->data + 5);
            due = (uint64_t)ANSWER + *out + *err;
        }
    }
    return 0;
}

/* Returns why there is no answer; does not return when there is one. */
static const char *ask(const struct bytes *frame, int patient, double bound) {
    struct bytes answer = {0};
    size_t out = 0, err = 0;
    int peer = connected(patient, bound, bound / 2);
    if (peer < 0) return FLEX ? "nodeplug daemon is not running" : strerror(errno);
    if (send_frame(peer, frame) || receive(peer, &answer, bound / 2, &out, &err)) {
        if (FLEX) return "nodeplug daemon ended or hung before it answered";
        return errno == EAGAIN ? "timed out" : errno == ETIMEDOUT ? "it is stopped, or hangs" : strerror(errno);
    }
    if (answer.size < ANSWER || answer.size - ANSWER < (uint64_t)out + (FLEX ? 0 : err) || (FLEX && !out))
        return FLEX ? "nodeplug daemon ended or hung before it answered" : "the daemon ended before it answered";
    finish(answer.data[0] & 0xff, answer.data + ANSWER, out, answer.data + ANSWER + out, FLEX ? 0 : err);
}

/* Keeps a DEL for the daemon that comes back; -1 with errno. */
static int spool(const struct bytes *frame) {
    char name[sizeof SPOOL + 64], last[sizeof SPOOL + 64];
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    mkdir(SPOOL, 0700); /* it exists, or the next line says what is wrong */
    char second[24], rest[24], process[24], base[sizeof SPOOL + 64];
    JOIN(base, SPOOL "/", decimal(second, (unsigned long long)at.tv_sec, 11),
         decimal(rest, (unsigned long)at.tv_nsec, 9), "-", decimal(process, (unsigned)getpid(), 1));
    JOIN(name, base, ".tmp");
    JOIN(last, base, ".frame");
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -1;
    if (put(fd, frame->data, frame->size) || fsync(fd) || rename(name, last)) {
        int error = errno;
        unlink(name);
        errno = error;
        return -1;
    }
    int folder = open(SPOOL, O_RDONLY | O_CLOEXEC);
    return folder < 0 ? -1 : fsync(folder);
}

/* Whether a variable goes to the daemon; the first of two with one name counts, as for getenv. */
static int is_sent(const char *pair) {
    size_t name = 1;
    while (pair[name - 1] && pair[name - 1] != '=') name++;
    int wanted = !strncmp(pair, "CNI_", 4) || !strncmp(pair, "TRACEPARENT=", 12) || !strncmp(pair, "TRACESTATE=", 11) ||
                 !strncmp(pair, "BAGGAGE=", 8);
    if (!wanted || !pair[name - 1]) return 0;
    for (char **other = environ; *other != pair; other++)
        if (!strncmp(*other, pair, name)) return 0;
    return 1;
}

/* Writes all but stdin and returns the size of the arguments. */
static size_t begin_frame(struct bytes *frame, const char *path) {
    append(frame, "NPX1\0\0\0\0\0\0\0\0\0\0\0\0cni", HEADER + 4);
    append(frame, path, strlen(path) + 1);
    size_t args = frame->size - HEADER;
    for (char **pair = environ; *pair; pair++) {
        if (!is_sent(*pair)) continue;
        append(frame, *pair, strlen(*pair) + 1);
    }
    return args;
}

static void read_stdin(struct bytes *frame) {
    char text[256];
    for (size_t head = frame->size; frame->size - head <= LIMIT;) {
        make_room(frame, CHUNK);
        ssize_t got = read(0, frame->data + frame->size, CHUNK);
        if (!got) break;
        if (got > 0)
            frame->size += (size_t)got;
        else if (errno != EINTR) {
            JOIN(text, "error reading from stdin: ", strerror(errno));
            fail(5, text);
        }
    }
    if (frame->size - HEADER > LIMIT)
        fail(7, "the network configuration is too large: a request has at most " WORDS(LIMIT) " bytes");
}

_Noreturn static void end_alone(const struct bytes *frame, const char *verb, const char *why) {
    char text[sizeof SOCKET + 2 * sizeof SPOOL + 512];
    const char *away = "the nodeplug daemon does not answer at " SOCKET;
    if (strcmp(verb, "DEL")) {
        JOIN(text, away, ": ", why, "; start it, or see its log");
        fail(strcmp(verb, "STATUS") ? 11 : 50, text);
    }
    if (spool(frame)) {
        JOIN(text, away, ": ", why, "; and DEL cannot be kept in " SPOOL ": ", strerror(errno));
        fail(11, text);
    }
    size_t size = JOIN(text, away, ": ", why, "; DEL is kept in " SPOOL " and done when it is back\n");
    finish(0, "", 0, text, size);
}

_Noreturn static void cni(const char *path) {
    const char *version = "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"" VERSIONS("\",\"") "\"]}\n";
    const char *about = "CNI plugin served by the nodeplug daemon\n"
                        "CNI protocol versions supported: " VERSIONS(", ") "\n";
    const char *verb = getenv("CNI_COMMAND");
    if (!verb || !*verb) finish(0, "", 0, about, strlen(about));
    /* On hot paths of runtimes: without stdin, without the daemon. */
    if (!strcmp(verb, "VERSION")) finish(0, version, strlen(version), "", 0);
    struct bytes frame = {0};
    size_t args = begin_frame(&frame, path), head = frame.size;
    read_stdin(&frame);
    put_number(frame.data + 4, args);
    put_number(frame.data + 8, head - HEADER - args);
    put_number(frame.data + 12, frame.size - head);
    int status = !strcmp(verb, "STATUS");
    end_alone(&frame, verb, ask(&frame, !status && strcmp(verb, "DEL"), status ? HASTE : PATIENCE));
}

/* kubelet probes `init` once: a daemon that is away now would hide the driver, so a file answers. */
_Noreturn static void init(const char *path) {
    const char *slash = strrchr(path, '/');
    struct bytes file = {0};
    append(&file, path, slash ? (size_t)(slash - path) : 0);
    append(&file, "/capabilities.json", 19);
    int fd = open(file.data, O_RDONLY | O_CLOEXEC);
    make_room(&file, CHUNK);
    ssize_t size = fd < 0 ? -1 : read(fd, file.data, CHUNK);
    if (size <= 0) fail(1, "capabilities.json is missing beside the driver: install it again");
    finish(0, file.data, (size_t)size, "", 0);
}

_Noreturn static void flex(const char *path, int argc, char **argv) {
    /* kubelet reads stdout and stderr as one text, so stderr is silent, and the exit status always 0. */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 2) < 0) close(2);
    if (argc > 1 && !strcmp(argv[1], "init")) init(path);
    struct bytes frame = {0};
    append(&frame, "NPX1\0\0\0\0\0\0\0\0\0\0\0\0flex", HEADER + 5);
    append(&frame, path, strlen(path) + 1);
    for (int i = 1; i < argc; i++) append(&frame, argv[i], strlen(argv[i]) + 1);
    if (frame.size - HEADER > LIMIT) fail(1, "the arguments are too large for nodeplug");
    put_number(frame.data + 4, frame.size - HEADER);
    for (int i = 1; i < argc; i++) memset(argv[i], 0, strlen(argv[i])); /* secrets: /proc shows them while we wait */
    fail(1, ask(&frame, 0, PATIENCE));
}

int main(int argc, char **argv) {
    /* A closed standard stream stays unusable, and no socket takes its number. */
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd ? O_RDONLY : O_WRONLY);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    const char *path = (const char *)getauxval(AT_EXECFN); /* what was executed, whatever argv[0] says */
    if (!path) path = argc ? argv[0] : "";
    if (argc > 1 && !strcmp(argv[1], path)) argc--, argv++; /* started for a script, whose path comes first */
    if (FLEX) flex(path, argc, argv);
    cni(path);
}

/* File system calls that fail by a plan: preloaded into a process by tests/support/sick_disk.py.

   The plan is a file that all processes of a test map: a count of rules, then the rules, each with
   counters of its own. So the n-th call is the n-th of all processes together, rules can be switched
   while the processes run, and the test sees how often each was applied. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum call { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, RENAME = 16, STAT = 32, LIST = 64, MAP = 128,
            MAKE = 256, REMOVE = 512 };
enum act { FAIL = 1, SHORT = 2, SLOW = 3, FLIP = 4 };

struct rule {
    char pattern[512];          /* of fnmatch, over the whole path */
    uint32_t calls;             /* which calls, bits of enum call */
    uint32_t act;
    int64_t value;              /* errno; bytes left of a read, -1 for half, -2 for one less; milliseconds; a seed */
    int64_t skip;               /* that many pass first */
    int64_t every;              /* of those after, each `every`-th; 0 for those drawn */
    int64_t permille;           /* of those drawn, by the seed */
    int64_t times;              /* most that are hit, -1 for all */
    uint64_t seed;
    _Atomic int32_t armed;
    int32_t pid;                /* this process only; 0 for all */
    _Atomic int64_t seen, hit;
};

struct plan { int64_t count; struct rule rules[32]; };

static struct plan *plan;
static __thread int inside;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("SICK_DISK_PLAN");
    if (!path) return;
    inside = 1;
    int fd = (int)openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        void *at = mmap(0, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (at != MAP_FAILED) plan = at;
    }
    inside = 0;
}

static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* The rule that this call on this path is under, NULL for none. */
static struct rule *due(enum call call, const char *path) {
    if (!plan || !path) return NULL;
    for (int64_t i = 0; i < plan->count; i++) {
        struct rule *r = &plan->rules[i];
        if (!atomic_load(&r->armed) || !(r->calls & call)) continue;
        if (r->pid && r->pid != getpid()) continue;
        if (fnmatch(r->pattern, path, 0)) continue;
        int64_t n = atomic_fetch_add(&r->seen, 1) - r->skip;
        if (n < 0) continue;
        if (r->every ? n % r->every : (int64_t)(mixed(r->seed + n) % 1000) >= r->permille) continue;
        int64_t before = atomic_fetch_add(&r->hit, 1);
        if (r->times >= 0 && before >= r->times) { atomic_fetch_sub(&r->hit, 1); continue; }
        if (r->act == SLOW) {
            struct timespec pause = {r->value / 1000, (r->value % 1000) * 1000000};
            nanosleep(&pause, NULL);
            continue;
        }
        return r;
    }
    return NULL;
}

/* Rules that match, for a path that may be relative to the working or another folder. */
static struct rule *of_path(enum call call, int folder, const char *path) {
    char whole[PATH_MAX * 2], link[64];
    if (!plan || inside || !path) return NULL;
    if (path[0] == '/') return due(call, path);
    int saved = errno;
    ssize_t n;
    if (folder == AT_FDCWD) n = getcwd(whole, PATH_MAX) ? (ssize_t)strlen(whole) : -1;
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        n = readlink(link, whole, PATH_MAX);
    }
    errno = saved;
    if (n < 0) return NULL;
    if (path[0]) snprintf(whole + n, PATH_MAX, "/%s", path);
    else whole[n] = 0;
    return due(call, whole);
}

static struct rule *of_number(enum call call, int fd) {
    char link[64], path[PATH_MAX];
    if (!plan || inside) return NULL;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (n < 0) return NULL;
    path[n] = 0;
    return due(call, path);
}

static int failed(struct rule *r) {
    if (!r || r->act != FAIL) return 0;
    errno = (int)r->value;
    return 1;
}

static size_t cut(struct rule *r, size_t size) {
    if (!r || r->act != SHORT || !size) return size;
    if (r->value == -1) return (size + 1) / 2;
    if (r->value == -2) return size > 1 ? size - 1 : size;
    return (size_t)r->value < size ? (size_t)r->value : size;
}

static ssize_t flipped(struct rule *r, void *data, ssize_t got) {
    if (r && r->act == FLIP && got > 0) ((char *)data)[mixed(r->seed) % (uint64_t)got] ^= 0x20;
    return got;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }

/* Opening a folder is how it is listed. */
#define OPENING(flags) (((flags) & O_DIRECTORY) ? LIST : OPEN)

int open(const char *path, int flags, ...) {
    MODE(flags) REAL(open);
    return failed(of_path(OPENING(flags), AT_FDCWD, path)) ? -1 : real(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags) REAL(open64);
    return failed(of_path(OPENING(flags), AT_FDCWD, path)) ? -1 : real(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags) REAL(openat);
    return failed(of_path(OPENING(flags), folder, path)) ? -1 : real(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags) REAL(openat64);
    return failed(of_path(OPENING(flags), folder, path)) ? -1 : real(folder, path, flags, mode);
}
FILE *fopen(const char *path, const char *mode) {
    REAL(fopen);
    return failed(of_path(OPEN, AT_FDCWD, path)) ? NULL : real(path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    REAL(fopen64);
    return failed(of_path(OPEN, AT_FDCWD, path)) ? NULL : real(path, mode);
}

#define READER(name, PARAMS, FD, ...) \
    ssize_t name PARAMS { \
        REAL(name); \
        struct rule *r = of_number(READ, FD); \
        if (failed(r)) return -1; \
        size = cut(r, size); \
        return flipped(r, data, real(__VA_ARGS__)); \
    }
READER(read, (int fd, void *data, size_t size), fd, fd, data, size)
READER(pread, (int fd, void *data, size_t size, off_t at), fd, fd, data, size, at)
READER(pread64, (int fd, void *data, size_t size, off64_t at), fd, fd, data, size, at)

#define WRITER(name, PARAMS, FD, ...) \
    ssize_t name PARAMS { \
        REAL(name); \
        struct rule *r = of_number(WRITE, FD); \
        if (failed(r)) return -1; \
        size = cut(r, size); \
        return real(__VA_ARGS__); \
    }
WRITER(write, (int fd, const void *data, size_t size), fd, fd, data, size)
WRITER(pwrite, (int fd, const void *data, size_t size, off_t at), fd, fd, data, size, at)
WRITER(pwrite64, (int fd, const void *data, size_t size, off64_t at), fd, fd, data, size, at)

#define OF_NUMBER(kind, name, result, bad, PARAMS, FD, ...) \
    result name PARAMS { REAL(name); return failed(of_number(kind, FD)) ? bad : real(__VA_ARGS__); }
#define OF_PATH(kind, name, result, bad, PARAMS, FOLDER, PATH, ...) \
    result name PARAMS { REAL(name); return failed(of_path(kind, FOLDER, PATH)) ? bad : real(__VA_ARGS__); }

OF_NUMBER(WRITE, ftruncate, int, -1, (int fd, off_t size), fd, fd, size)
OF_NUMBER(WRITE, ftruncate64, int, -1, (int fd, off64_t size), fd, fd, size)
OF_NUMBER(SYNC, fsync, int, -1, (int fd), fd, fd)
OF_NUMBER(SYNC, fdatasync, int, -1, (int fd), fd, fd)
OF_NUMBER(STAT, fstat, int, -1, (int fd, struct stat *s), fd, fd, s)
OF_NUMBER(STAT, fstat64, int, -1, (int fd, struct stat64 *s), fd, fd, s)
OF_NUMBER(LIST, fdopendir, DIR *, NULL, (int fd), fd, fd)
OF_NUMBER(LIST, readdir, struct dirent *, NULL, (DIR *d), dirfd(d), d)
OF_NUMBER(LIST, readdir64, struct dirent64 *, NULL, (DIR *d), dirfd(d), d)
OF_PATH(STAT, stat, int, -1, (const char *path, struct stat *s), AT_FDCWD, path, path, s)
OF_PATH(STAT, stat64, int, -1, (const char *path, struct stat64 *s), AT_FDCWD, path, path, s)
OF_PATH(STAT, lstat, int, -1, (const char *path, struct stat *s), AT_FDCWD, path, path, s)
OF_PATH(STAT, lstat64, int, -1, (const char *path, struct stat64 *s), AT_FDCWD, path, path, s)
OF_PATH(STAT, fstatat, int, -1, (int d, const char *path, struct stat *s, int f), d, path, d, path, s, f)
OF_PATH(STAT, fstatat64, int, -1, (int d, const char *path, struct stat64 *s, int f), d, path, d, path, s, f)
OF_PATH(STAT, statx, int, -1, (int d, const char *path, int f, unsigned m, struct statx *s), d, path, d, path, f, m, s)
OF_PATH(LIST, opendir, DIR *, NULL, (const char *path), AT_FDCWD, path, path)
OF_PATH(MAKE, mkdir, int, -1, (const char *path, mode_t mode), AT_FDCWD, path, path, mode)
OF_PATH(MAKE, mkdirat, int, -1, (int d, const char *path, mode_t mode), d, path, d, path, mode)
OF_PATH(REMOVE, unlink, int, -1, (const char *path), AT_FDCWD, path, path)
OF_PATH(REMOVE, unlinkat, int, -1, (int d, const char *path, int f), d, path, d, path, f)
OF_PATH(RENAME, rename, int, -1, (const char *old, const char *path), AT_FDCWD, path, old, path)
OF_PATH(RENAME, renameat, int, -1, (int a, const char *old, int d, const char *path), d, path, a, old, d, path)
OF_PATH(RENAME, link, int, -1, (const char *old, const char *path), AT_FDCWD, path, old, path)
OF_PATH(RENAME, linkat, int, -1, (int a, const char *old, int d, const char *path, int f), d, path, a, old, d, path, f)

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    REAL(mmap);
    if (fd >= 0 && failed(of_number(MAP, fd))) return MAP_FAILED;
    return real(at, size, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset) {
    REAL(mmap64);
    if (fd >= 0 && failed(of_number(MAP, fd))) return MAP_FAILED;
    return real(at, size, protection, flags, fd, offset);
}

/* Stands between a process and the system calls that change files, by LD_PRELOAD.

   Once `interposer_arm` names a folder, each call that changes something beneath it is written to a log, with the
   bytes that it writes, and one of them can fail, be torn, or be the last thing that the process does. Before that
   everything goes through. Nothing is really synced: what a disk would hold is computed from the log.

   Calls are made one after the other, under a lock: so the order of the log is that in which they happened. Files
   are told apart by their inodes, because an open file may lose its name or get another. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The same numbers and layout are in interposer.py. */
enum kind { CREATE, WRITE, SYNC, RESIZE, RENAME, LINK, SYMLINK, UNLINK, MKDIR, RMDIR, MARK };
enum action { PASS, FAIL, KILL, TEAR };

#define STRUCK INT32_MIN /* the result of a call during which the process was killed */

struct entry {
    uint32_t kind;
    int32_t result; /* negative: the error */
    uint64_t inode;
    int64_t offset;
    uint32_t path_size;
    uint32_t other_size;
    uint64_t data_size;
};

struct call {
    enum kind kind;
    char path[PATH_MAX];
    char other[PATH_MAX];
    uint64_t inode;
    int64_t offset;
    const void *data;
    size_t size;
};

static struct {
    bool armed;
    char root[PATH_MAX];
    size_t root_size;
    int log;
    bool with_data;
    enum action action;
    unsigned kinds; /* one bit for each that counts */
    long first, times;
    int error;
    long counted;
} plan = {.log = -1};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

/* -- the log ---------------------------------------------------------------------------------- */

static void append(const void *data, size_t size) {
    const char *rest = data;
    while (size > 0) {
        ssize_t written = syscall(SYS_write, plan.log, rest, size);
        if (written <= 0) return;
        rest += written;
        size -= (size_t)written;
    }
}

static void record(const struct call *call, long result) {
    struct entry entry = {
        .kind = call->kind,
        .result = (int32_t)result,
        .inode = call->inode,
        .offset = call->offset,
        .path_size = (uint32_t)strlen(call->path),
        .other_size = (uint32_t)strlen(call->other),
        .data_size = plan.with_data && call->data ? call->size : 0,
    };
    if (plan.log < 0) return;
    append(&entry, sizeof entry);
    append(call->path, entry.path_size);
    append(call->other, entry.other_size);
    append(call->data, entry.data_size);
}

/* -- which calls, and what happens to them ---------------------------------------------------- */

static bool is_watched(const char *path) {
    size_t size = strlen(path);
    if (!plan.armed || strncmp(path, plan.root, plan.root_size) != 0) return false;
    if (path[plan.root_size] != '\0' && path[plan.root_size] != '/') return false;
    /* SQLite's shared memory, which nobody needs after a crash. */
    return size < 4 || strcmp(path + size - 4, "-shm") != 0;
}

static bool find_file(int handle, struct call *call) {
    char link[64];
    struct stat found;
    if (!plan.armed || handle == plan.log) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t size = readlink(link, call->path, sizeof call->path - 1);
    if (size < 0) return false;
    call->path[size] = '\0';
    if (!is_watched(call->path) || fstat(handle, &found) != 0) return false;
    call->inode = found.st_ino;
    return true;
}

static bool find_name(int folder, const char *name, char *path) {
    char above[PATH_MAX], link[64];
    if (!plan.armed) return false;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return is_watched(path);
    }
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, above, sizeof above - 1);
    if (size < 0) return false;
    above[size] = '\0';
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", above, name) >= PATH_MAX) return false;
    return is_watched(path);
}

static void die(const struct call *call) {
    record(call, STRUCK);
    for (;;) kill(getpid(), SIGKILL);
}

/* What is to happen to a call, counted here; the gate is held. Only a write can be torn. */
static enum action decide(const struct call *call) {
    if (!(plan.kinds >> call->kind & 1)) return PASS;
    long number = ++plan.counted;
    if (plan.action == PASS || number < plan.first || number - plan.first >= plan.times) return PASS;
    if (plan.action == KILL || (plan.action == TEAR && call->kind != WRITE)) die(call);
    return plan.action;
}

static long finish(const struct call *call, long result) {
    int error = errno;
    record(call, result < 0 ? -error : result);
    pthread_mutex_unlock(&gate);
    errno = error;
    return result;
}

#define FAILED (errno = plan.error, -1)

/* -- bytes ------------------------------------------------------------------------------------ */

static ssize_t write_at(int handle, const void *data, size_t size, const off_t *place) {
    struct call call = {.kind = WRITE, .data = data};
    if (!find_file(handle, &call))
        return place ? syscall(SYS_pwrite64, handle, data, size, *place) : syscall(SYS_write, handle, data, size);
    pthread_mutex_lock(&gate);
    enum action action = decide(&call);
    if (action != PASS) size /= 2; /* one that fails or is torn has written something */
    bool at_end = !place && fcntl(handle, F_GETFL) & O_APPEND;
    call.offset = place ? *place : lseek(handle, 0, at_end ? SEEK_END : SEEK_CUR);
    ssize_t written =
        place ? syscall(SYS_pwrite64, handle, data, size, *place) : syscall(SYS_write, handle, data, size);
    call.size = written > 0 ? (size_t)written : 0;
    if (action == TEAR) die(&call);
    return finish(&call, action == FAIL ? FAILED : written);
}

ssize_t write(int handle, const void *data, size_t size) { return write_at(handle, data, size, NULL); }
ssize_t pwrite(int handle, const void *data, size_t size, off_t place) {
    return write_at(handle, data, size, &place);
}
ssize_t pwrite64(int handle, const void *data, size_t size, off64_t place) {
    return write_at(handle, data, size, &place);
}

static int resize(int handle, off_t size) {
    struct call call = {.kind = RESIZE, .offset = size};
    if (!find_file(handle, &call)) return (int)syscall(SYS_ftruncate, handle, size);
    pthread_mutex_lock(&gate);
    return (int)finish(&call, decide(&call) == FAIL ? FAILED : syscall(SYS_ftruncate, handle, size));
}

int ftruncate(int handle, off_t size) { return resize(handle, size); }
int ftruncate64(int handle, off64_t size) { return resize(handle, size); }

static int sync_file(int handle, long number) {
    struct call call = {.kind = SYNC};
    if (!find_file(handle, &call)) return (int)syscall(number, handle);
    pthread_mutex_lock(&gate);
    return (int)finish(&call, decide(&call) == FAIL ? FAILED : 0);
}

int fsync(int handle) { return sync_file(handle, SYS_fsync); }
int fdatasync(int handle) { return sync_file(handle, SYS_fdatasync); }

/* -- names ------------------------------------------------------------------------------------ */

static int open_file(int folder, const char *name, int flags, mode_t mode) {
    struct call call = {.kind = CREATE};
    struct stat found;
    flags |= O_LARGEFILE;
    if (!(flags & (O_CREAT | O_TRUNC)) || !find_name(folder, name, call.path))
        return (int)syscall(SYS_openat, folder, name, flags, mode);
    pthread_mutex_lock(&gate);
    bool is_there = stat(call.path, &found) == 0;
    bool cuts = is_there && flags & O_TRUNC && found.st_size > 0;
    if (is_there && !cuts) {
        pthread_mutex_unlock(&gate);
        return (int)syscall(SYS_openat, folder, name, flags, mode);
    }
    if (cuts) call.kind = RESIZE;
    int handle = (int)(decide(&call) == FAIL ? FAILED : syscall(SYS_openat, folder, name, flags, mode));
    if (handle >= 0 && fstat(handle, &found) == 0) call.inode = found.st_ino;
    return (int)finish(&call, handle);
}

#define MODE_OF(flags)                                                                                       \
    mode_t mode = 0;                                                                                         \
    if (flags & O_CREAT) {                                                                                   \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        mode = va_arg(rest, mode_t);                                                                         \
        va_end(rest);                                                                                        \
    }

int open(const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_file(AT_FDCWD, name, flags, mode);
}
int open64(const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_file(AT_FDCWD, name, flags, mode);
}
int openat(int folder, const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_file(folder, name, flags, mode);
}
int openat64(int folder, const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_file(folder, name, flags, mode);
}

/* A call that gives a file another name. */
static int move(enum kind kind, int from, const char *name, int to, const char *other, int flags) {
    struct call call = {.kind = kind};
    long number = kind == RENAME ? SYS_renameat2 : SYS_linkat;
    bool watched = find_name(from, name, call.path);
    watched = find_name(to, other, call.other) || watched;
    if (!watched) return (int)syscall(number, from, name, to, other, flags);
    pthread_mutex_lock(&gate);
    return (int)finish(&call, decide(&call) == FAIL ? FAILED : syscall(number, from, name, to, other, flags));
}

int rename(const char *name, const char *other) { return move(RENAME, AT_FDCWD, name, AT_FDCWD, other, 0); }
int renameat(int from, const char *name, int to, const char *other) {
    return move(RENAME, from, name, to, other, 0);
}
int renameat2(int from, const char *name, int to, const char *other, unsigned flags) {
    return move(RENAME, from, name, to, other, (int)flags);
}
int link(const char *name, const char *other) { return move(LINK, AT_FDCWD, name, AT_FDCWD, other, 0); }
int linkat(int from, const char *name, int to, const char *other, int flags) {
    return move(LINK, from, name, to, other, flags);
}

static int remove_name(int folder, const char *name, int flags) {
    struct call call = {.kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK};
    if (!find_name(folder, name, call.path)) return (int)syscall(SYS_unlinkat, folder, name, flags);
    pthread_mutex_lock(&gate);
    return (int)finish(&call, decide(&call) == FAIL ? FAILED : syscall(SYS_unlinkat, folder, name, flags));
}

int unlink(const char *name) { return remove_name(AT_FDCWD, name, 0); }
int unlinkat(int folder, const char *name, int flags) { return remove_name(folder, name, flags); }
int rmdir(const char *name) { return remove_name(AT_FDCWD, name, AT_REMOVEDIR); }

/* A call that makes something which is not a file. */
static int make(struct call *call, long number, const char *target, int folder, const char *name, mode_t mode) {
    struct stat found;
    if (!find_name(folder, name, call->path))
        return (int)(target ? syscall(number, target, folder, name) : syscall(number, folder, name, mode));
    pthread_mutex_lock(&gate);
    long result;
    if (decide(call) == FAIL)
        result = FAILED;
    else
        result = target ? syscall(number, target, folder, name) : syscall(number, folder, name, mode);
    int error = errno;
    if (result == 0 && lstat(call->path, &found) == 0) call->inode = found.st_ino;
    errno = error;
    return (int)finish(call, result);
}

int mkdirat(int folder, const char *name, mode_t mode) {
    struct call call = {.kind = MKDIR};
    return make(&call, SYS_mkdirat, NULL, folder, name, mode);
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
int symlinkat(const char *target, int folder, const char *name) {
    struct call call = {.kind = SYMLINK};
    snprintf(call.other, sizeof call.other, "%s", target);
    return make(&call, SYS_symlinkat, target, folder, name, 0);
}
int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }

/* -- what the tests call ----------------------------------------------------------------------- */

/* Watch a folder from now on, with a plan for the calls of some kinds; an empty name ends it. */
int interposer_arm(const char *root, const char *log, int with_data, int action, unsigned kinds, long first,
                   long times, int error) {
    pthread_mutex_lock(&gate);
    plan.armed = false;
    if (plan.log >= 0) close(plan.log);
    plan.log = -1;
    snprintf(plan.root, sizeof plan.root, "%s", root);
    plan.root_size = strlen(plan.root);
    plan.with_data = with_data;
    plan.action = (enum action)action;
    plan.kinds = kinds;
    plan.first = first;
    plan.times = times;
    plan.error = error;
    plan.counted = 0;
    if (plan.root_size > 0) {
        plan.log = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        plan.armed = plan.log >= 0;
    }
    int result = plan.root_size > 0 && !plan.armed ? errno : 0;
    pthread_mutex_unlock(&gate);
    return result;
}

/* Write a line of the program itself to the log. */
void interposer_mark(const char *text) {
    struct call call = {.kind = MARK};
    snprintf(call.path, sizeof call.path, "%s", text);
    pthread_mutex_lock(&gate);
    record(&call, 0);
    pthread_mutex_unlock(&gate);
}

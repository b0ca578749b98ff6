/* A wall clock with the offset that a file holds: see clock.py.
 *
 * Preloaded into a server, it answers for the C library. CLOCK_OFFSET_FILE names a file of eight
 * bytes, the nanoseconds to add, which may change at any time. The monotonic clock is left alone.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void open_offset(void)
{
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        offset = page;
    close(fd);
}

/* The system call and not the next library's function: looking that up may ask for the time. */
int clock_gettime(clockid_t id, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *offset;
        now->tv_sec = ns / INT64_C(1000000000);
        now->tv_nsec = ns % INT64_C(1000000000);
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

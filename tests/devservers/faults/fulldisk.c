/* A file system without free space while a file exists: see databases.py.
 *
 * Preloaded into a server, it refuses with ENOSPC what would make a file in FULL_DISK_FOLDER larger.
 * Files keep the space that they have, as on a real disk, so overwriting one still works.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_flagged(void)
{
    const char *flag = getenv("FULL_DISK_FLAG");
    return flag && !access(flag, F_OK);
}

static int is_full(int fd, off_t end)
{
    const char *folder = getenv("FULL_DISK_FOLDER");
    char link[64], path[PATH_MAX];
    struct stat file;
    if (!folder)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || fstat(fd, &file) || end <= file.st_size)
        return 0;
    path[length] = 0;
    return !strncmp(path, folder, strlen(folder));
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSE_IF_FULL(fd, end) do { if (is_flagged() && is_full(fd, end)) { errno = ENOSPC; return -1; } } while (0)

static off_t total(const struct iovec *parts, int count)
{
    off_t size = 0;
    for (int number = 0; number < count; number++)
        size += parts[number].iov_len;
    return size;
}

ssize_t write(int fd, const void *data, size_t size)
{
    REFUSE_IF_FULL(fd, (off_t)size + lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR));
    return NEXT(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    REFUSE_IF_FULL(fd, offset + (off_t)size);
    return NEXT(pwrite)(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite(fd, data, size, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    REFUSE_IF_FULL(fd, offset + total(parts, count));
    return NEXT(pwritev)(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset)
{
    return pwritev(fd, parts, count, offset);
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    return is_flagged() && is_full(fd, offset + size) ? ENOSPC : NEXT(posix_fallocate)(fd, offset, size);
}

int posix_fallocate64(int fd, off_t offset, off_t size)
{
    return posix_fallocate(fd, offset, size);
}

/* Of other modes, none makes a file larger. */
int fallocate64(int fd, int mode, off_t offset, off_t size)
{
    if (mode == 0)
        REFUSE_IF_FULL(fd, offset + size);
    return NEXT(fallocate64)(fd, mode, offset, size);
}

/* A real disk would refuse the later write to the hole. */
int ftruncate64(int fd, off_t size)
{
    REFUSE_IF_FULL(fd, size);
    return NEXT(ftruncate64)(fd, size);
}

#include "server/auth/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "server/cache_dir.h"

#define FILE_NAME "installation-secret"
#define LINE_BYTES (2 * SECRET_BYTES + 1)

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

static bool parse(const char line[LINE_BYTES], uint8_t out[SECRET_BYTES])
{
    for (int i = 0; i < SECRET_BYTES; i++) {
        int high = hex_digit(line[2 * i]), low = hex_digit(line[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out[i] = (uint8_t)(16 * high + low);
    }
    return line[LINE_BYTES - 1] == '\n';
}

/* Read the file. Returns NULL, or an error message; "" if there is no such file. */
static const char *read_secret(const char *path, uint8_t out[SECRET_BYTES])
{
    char line[LINE_BYTES + 1];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return errno == ENOENT ? "" : strerror(errno);
    ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, line, sizeof line) : -1;
    close(fd);
    bool good = n == LINE_BYTES && parse(line, out);
    explicit_bzero(line, sizeof line);
    if (!good)
        return "it does not hold 64 hex digits and a newline";
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        log_event(LOG_WARN, "the installation secret may be read by others", "path=\"%s\"", path);
    return NULL;
}

/* Write a temporary file, then link() it to its name. link() fails if the name exists, so that of
 * two servers that start at the same time the second one reads the first one's secret. */
static const char *make_secret(const char *path)
{
    uint8_t bytes[SECRET_BYTES];
    char line[LINE_BYTES + 1], temporary[PATH_MAX];
    const char *wrong = NULL;

    if (snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid()) >= PATH_MAX)
        return "the path is too long";
    hash_random(bytes, sizeof bytes);
    hash_hex(line, bytes, sizeof bytes);
    line[LINE_BYTES - 1] = '\n';
    unlink(temporary); /* left by a process with the same id that ended between open and unlink */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return strerror(errno);
    if (write(fd, line, LINE_BYTES) != LINE_BYTES || fsync(fd) != 0)
        wrong = strerror(errno);
    close(fd);
    if (!wrong && link(temporary, path) != 0 && errno != EEXIST)
        wrong = strerror(errno);
    unlink(temporary);
    explicit_bzero(line, sizeof line);
    explicit_bzero(bytes, sizeof bytes);
    return wrong;
}

void secret_load(uint8_t out[SECRET_BYTES], const char *dir)
{
    char found[PATH_MAX], path[PATH_MAX];
    const char *wrong = "neither XDG_CACHE_HOME nor HOME is set";

    if (dir && cache_dir_find(found, dir)) {
        dir = found;
        wrong = "the path is too long";
        if (snprintf(path, sizeof path, "%s/" FILE_NAME, dir) < PATH_MAX) {
            wrong = read_secret(path, out);
            if (wrong && !wrong[0]) {
                wrong = cache_dir_make(dir);
                wrong = wrong ? wrong : make_secret(path);
            }
            if (!wrong)
                wrong = read_secret(path, out);
        }
    } else if (dir && dir[0]) {
        wrong = "the path is too long";
    }
    if (dir && !wrong)
        return;
    if (dir)
        log_event(LOG_WARN, "no installation secret, this process uses a random one",
                  "dir=\"%s\" why=\"%s\"", dir, wrong);
    hash_random(out, SECRET_BYTES);
}

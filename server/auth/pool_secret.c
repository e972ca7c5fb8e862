#include "server/auth/pool_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

/* A secret can be guessed from a recorded handshake, so a short one protects nothing. */
#define BYTES_MIN 16
#define BYTES_MAX 4096

#define MEMBER_WORDS "tarn pool member"
#define SCOPE_WORDS "tarn pool scope"

static void derive(uint8_t out[SECRET_BYTES], const char *words, const char *text, size_t n)
{
    struct hash_state h;

    hash_begin(&h, SECRET_BYTES, NULL, 0);
    hash_add(&h, words, strlen(words) + 1);
    hash_add(&h, text, n);
    hash_end(&h, out, SECRET_BYTES);
    explicit_bzero(&h, sizeof h);
}

/* Check the open file, and read it to text [BYTES_MAX + 1]. */
static enum status read_file(int fd, const char *path, char *text, size_t *n, struct buf *why)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return buf_why(why, ERR_IO, "--pool-secret: %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return buf_why(why, ERR_INVALID, "--pool-secret: %s is not a regular file", path);
    /* A group may read the file: volumes of Kubernetes have no other way. */
    if (st.st_mode & (S_IROTH | S_IWOTH | S_IWGRP))
        return buf_why(why, ERR_FORBIDDEN,
                       "--pool-secret: %s may be read or written by other users (mode %04o): "
                       "chmod 600 %s",
                       path, (unsigned)(st.st_mode & 07777), path);
    *n = 0;
    while (*n <= BYTES_MAX) {
        ssize_t got = read(fd, text + *n, BYTES_MAX + 1 - *n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return buf_why(why, ERR_IO, "--pool-secret: %s: %s", path, strerror(errno));
        if (got == 0)
            break;
        *n += (size_t)got;
    }
    return OK;
}

enum status pool_secret_read(const char *path, uint8_t member[SECRET_BYTES],
                             uint8_t scope[SECRET_BYTES], struct buf *why)
{
    char text[BYTES_MAX + 1];
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return buf_why(why, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "--pool-secret: %s: %s", path,
                       strerror(errno));
    enum status s = read_file(fd, path, text, &n, why);
    close(fd);
    if (s == OK && n > BYTES_MAX)
        s = buf_why(why, ERR_INVALID, "--pool-secret: %s has more than %d bytes", path, BYTES_MAX);
    while (s == OK && n > 0 && strchr(" \t\r\n", text[n - 1]) && text[n - 1])
        n--;
    if (s == OK && n == 0)
        s = buf_why(why, ERR_INVALID, "--pool-secret: %s is empty: openssl rand -hex 32 >%s", path,
                    path);
    if (s == OK && n < BYTES_MIN)
        s = buf_why(why, ERR_INVALID,
                    "--pool-secret: %s has %zu bytes, at least %d are needed: openssl rand -hex 32",
                    path, n, BYTES_MIN);
    if (s == OK) {
        derive(member, MEMBER_WORDS, text, n);
        derive(scope, SCOPE_WORDS, text, n);
    }
    explicit_bzero(text, sizeof text);
    return s;
}

/* fake_redis.h - a server that reads commands of the protocol of Redis and answers what a test
 * says.
 *
 * The fake Redis shares one thread with its client: the test calls fake_redis_step() after each
 * step of the client. The fake listens on a Unix socket in a directory of the test.
 *
 * Owns    its sockets.
 * Thread  one.
 * Errors  any failure aborts.
 * Units   bytes. */
#ifndef TARN_TESTS_FAKE_REDIS_H
#define TARN_TESTS_FAKE_REDIS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"

struct fake_redis;
/* Append the answer to a command (its first word) to f->out. False: close the connection. */
typedef bool fake_redis_answer(struct fake_redis *f, const char *command);

struct fake_redis {
    char url[160];
    int listener, connection; /* -1: none */
    fake_redis_answer *answer;
    void *arg;
    const char *greeting; /* sent to each new connection; may be NULL */
    struct buf in, out;
    unsigned n_accepted, n_commands;
};

static inline void fake_redis_open(struct fake_redis *f, const char *path,
                                   fake_redis_answer *answer, void *arg)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    memset(f, 0, sizeof *f);
    snprintf(f->url, sizeof f->url, "unix://%s", path);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    f->connection = -1;
    f->answer = answer;
    f->arg = arg;
    buf_init(&f->in, 8u << 20);
    buf_init(&f->out, 8u << 20);
    unlink(path);
    ASSERT(bind(f->listener, (struct sockaddr *)&a, sizeof a) == 0);
    ASSERT(listen(f->listener, 16) == 0);
}

static inline void fake_redis_hang_up(struct fake_redis *f)
{
    if (f->connection >= 0)
        close(f->connection);
    f->connection = -1;
    buf_reset(&f->in);
    buf_reset(&f->out);
}

static inline void fake_redis_close(struct fake_redis *f)
{
    fake_redis_hang_up(f);
    close(f->listener);
    buf_fini(&f->in);
    buf_fini(&f->out);
}

static inline void fake_redis_say(struct fake_redis *f, const char *text)
{
    ASSERT(buf_puts(&f->out, text) == OK);
}

/* Answer the command as a Redis without any data does. */
static inline bool fake_redis_polite(struct fake_redis *f, const char *command)
{
    if (strcmp(command, "SET") == 0)
        fake_redis_say(f, "$-1\r\n");
    else if (strcmp(command, "HRANDFIELD") == 0 || strcmp(command, "SRANDMEMBER") == 0)
        fake_redis_say(f, "*0\r\n");
    else if (strcmp(command, "AUTH") == 0 || strcmp(command, "SELECT") == 0)
        fake_redis_say(f, "+OK\r\n");
    else
        fake_redis_say(f, ":1\r\n");
    return true;
}

/* The length of the first command in text [n], 0: not complete. Its first word is copied. */
static inline size_t fake_redis_parse(const char *text, size_t n, char word[32])
{
    const char *at = text, *end = text + n, *line;
    long n_words;

    line = memchr(at, '\n', n);
    if (!line)
        return 0;
    ASSERT(*at == '*');
    n_words = atol(at + 1);
    at = line + 1;
    for (long i = 0; i < n_words; i++) {
        line = memchr(at, '\n', (size_t)(end - at));
        if (!line)
            return 0;
        ASSERT(*at == '$');
        size_t length = (size_t)atol(at + 1);
        at = line + 1;
        if ((size_t)(end - at) < length + 2)
            return 0;
        if (i == 0)
            snprintf(word, 32, "%.*s", (int)length, at);
        at += length + 2;
    }
    return (size_t)(at - text);
}

/* Accept, read, answer. Returns whether something happened. */
static inline bool fake_redis_step(struct fake_redis *f)
{
    char bytes[4096], word[32];
    bool is_active = false;
    ssize_t n;
    int fd = accept4(f->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0) {
        fake_redis_hang_up(f);
        f->connection = fd;
        f->n_accepted++;
        is_active = true;
        if (f->greeting)
            fake_redis_say(f, f->greeting);
    }
    while (f->connection >= 0 && (n = recv(f->connection, bytes, sizeof bytes, 0)) > 0) {
        ASSERT(buf_append(&f->in, bytes, (size_t)n) == OK);
        is_active = true;
    }
    while (f->in.len > 0) {
        size_t used = fake_redis_parse(f->in.data, f->in.len, word);
        if (used == 0)
            break;
        buf_consume(&f->in, used);
        f->n_commands++;
        if (!f->answer(f, word)) {
            fake_redis_hang_up(f);
            return true;
        }
    }
    if (f->connection >= 0 && f->out.len > 0 &&
        (n = send(f->connection, f->out.data, f->out.len, MSG_NOSIGNAL)) > 0) {
        buf_consume(&f->out, (size_t)n);
        is_active = true;
    }
    return is_active;
}

#endif

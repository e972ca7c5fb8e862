/* redis_server.h - a redis-server that a test starts, stops, kills and talks to.
 *
 * Owns    the process and its directory, until redis_stop().
 * Thread  one.
 * Errors  any failure fails the test; redis_is_installed() says whether there is a redis-server.
 * Units   none. */
#ifndef TARN_TESTS_REDIS_SERVER_H
#define TARN_TESTS_REDIS_SERVER_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/temp_dir.h"
#include "tests/unit/test.h"

struct redis_server {
    struct temp_dir dir;
    char path[108], url[128];
    char port[8]; /* "0": the socket only */
    const char *extra[4];
    pid_t pid;
};

static inline bool redis_is_installed(void)
{
    return system("command -v redis-server >/dev/null 2>&1") == 0;
}

static inline int redis_connect(const struct redis_server *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    strcpy(a.sun_path, s->path);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

static inline void redis_run(struct redis_server *s)
{
    const char *argv[24] = {"redis-server", "--port",    s->port,        "--unixsocket", s->path,
                            "--save",       "",          "--appendonly", "no",           "--dir",
                            s->dir.path,    "--logfile", "log",          "--databases",  "4",
                            "--bind",       "127.0.0.1"};
    int n = 17, fd;

    for (int i = 0; i < 4 && s->extra[i]; i++)
        argv[n++] = s->extra[i];
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    assert_true(s->pid > 0);
    for (int i = 0; (fd = redis_connect(s)) < 0; i++) {
        assert_true(i < 3000);
        clock_sleep_ns(10000000);
    }
    close(fd);
}

/* extra: two more words of the command line, or NULL. */
static inline void redis_start(struct redis_server *s, const char *option, const char *value)
{
    memset(s, 0, sizeof *s);
    temp_dir_make(&s->dir);
    snprintf(s->path, sizeof s->path, "%.64s/redis.sock", s->dir.path);
    snprintf(s->url, sizeof s->url, "unix://%s", s->path);
    strcpy(s->port, "0");
    s->extra[0] = option;
    s->extra[1] = value;
    redis_run(s);
}

static inline void redis_kill(struct redis_server *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

static inline void redis_stop(struct redis_server *s)
{
    if (s->pid)
        redis_kill(s);
    temp_dir_remove(&s->dir);
}

/* Send a command as a line; the first line of the answer (without CR LF) is put into out. */
static inline void redis_ask(const struct redis_server *s, char out[256], const char *line)
{
    int fd = redis_connect(s);
    size_t n = 0;
    ssize_t got;

    assert_true(fd >= 0);
    assert_true(write(fd, line, strlen(line)) == (ssize_t)strlen(line));
    assert_int_equal(write(fd, "\r\n", 2), 2);
    while (n < 255 && (n == 0 || out[n - 1] != '\n') && (got = read(fd, out + n, 1)) == 1)
        n++;
    close(fd);
    while (n > 0 && (out[n - 1] == '\n' || out[n - 1] == '\r'))
        n--;
    out[n] = '\0';
}

static inline void redis_do(const struct redis_server *s, const char *line, const char *answer)
{
    char out[256];

    redis_ask(s, out, line);
    assert_string_equal(out, answer);
}

#endif

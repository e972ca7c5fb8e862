#include "server/http/http_listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

#define LISTEN_BACKLOG 4096 /* the kernel lowers it to net.core.somaxconn */
#define N_FILES_SPARE 256   /* descriptors beside connections: epoll, eventfd, model files, ... */
#define PEM_BYTES_MAX (1u << 20)

/* --- descriptors --- */

uint32_t listen_fit_files(uint32_t n_connections)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)n_connections + N_FILES_SPARE;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return n_connections;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= wanted)
        return n_connections;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return n_connections;
    /* If the limit is very low, half of it stays for other descriptors. */
    rlim_t n =
        limit.rlim_cur > 2 * N_FILES_SPARE ? limit.rlim_cur - N_FILES_SPARE : limit.rlim_cur / 2;
    n = n < 1 ? 1 : n < n_connections ? n : n_connections;
    log_event(LOG_WARN, "too few file descriptors",
              "wanted=%llu limit=%llu max_connections=%u max_connections_now=%llu "
              "hint=\"raise the hard limit: ulimit -Hn, LimitNOFILE=\"",
              (unsigned long long)wanted, (unsigned long long)limit.rlim_cur, n_connections,
              (unsigned long long)n);
    return (uint32_t)n;
}

/* --- TCP --- */

static int bind_and_listen(int family, int type, const struct sockaddr *a, socklen_t n)
{
    int on = 1;
    int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a, n) == 0 && listen(fd, LISTEN_BACKLOG) == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

enum status listen_tcp(int *fd, const char *host, uint16_t port, uint16_t *bound_port,
                       struct buf *why)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    struct sockaddr_storage bound;
    socklen_t n_bound = sizeof bound;
    char text[8];

    *fd = -1;
    snprintf(text, sizeof text, "%u", port);
    int rc = getaddrinfo(host, text, &hints, &list);
    if (rc != 0)
        return buf_why(why, ERR_INVALID, "host: cannot resolve \"%s\": %s", host, gai_strerror(rc));
    for (struct addrinfo *a = list; a && *fd < 0; a = a->ai_next)
        *fd = bind_and_listen(a->ai_family, a->ai_socktype, a->ai_addr, a->ai_addrlen);
    int error = errno;
    freeaddrinfo(list);
    if (*fd < 0)
        return buf_why(why, ERR_IO, "cannot listen on %s port %s: %s", host, text, strerror(error));
    if (getsockname(*fd, (struct sockaddr *)&bound, &n_bound) != 0)
        return buf_why(why, ERR_IO, "getsockname: %s", strerror(errno));
    *bound_port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                    : ((struct sockaddr_in *)&bound)->sin_port);
    return OK;
}

/* --- Unix --- */

static bool somebody_listens(const struct sockaddr_un *a)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* EAGAIN means a listener with a full queue. Only ECONNREFUSED means that there is none. */
    bool yes =
        fd < 0 || connect(fd, (const struct sockaddr *)a, sizeof *a) == 0 || errno != ECONNREFUSED;

    if (fd >= 0)
        close(fd);
    return yes;
}

static enum status remove_stale(const struct sockaddr_un *a, struct buf *why)
{
    struct stat st;

    if (lstat(a->sun_path, &st) != 0)
        return OK; /* bind() reports what is wrong with the folder */
    if (!S_ISSOCK(st.st_mode))
        return buf_why(why, ERR_INVALID, "uds: %s exists and is not a socket; it is left unchanged",
                       a->sun_path);
    if (somebody_listens(a))
        return buf_why(why, ERR_INVALID, "uds: another process listens on %s", a->sun_path);
    if (unlink(a->sun_path) != 0)
        return buf_why(why, ERR_IO, "uds: cannot remove the old %s: %s", a->sun_path,
                       strerror(errno));
    return OK;
}

enum status listen_unix(int *fd, const char *path, uint32_t mode, struct buf *why)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    *fd = -1;
    if (strlen(path) >= sizeof a.sun_path)
        return buf_why(why, ERR_INVALID, "uds: the path has more than %zu bytes: %s",
                       sizeof a.sun_path - 1, path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    enum status s = remove_stale(&a, why);
    if (s != OK)
        return s;
    /* umask() and not chmod() after bind(): other users could connect between the two calls. */
    mode_t before = umask((mode_t)(0777 & ~mode));
    *fd = bind_and_listen(AF_UNIX, SOCK_STREAM, (const struct sockaddr *)&a, sizeof a);
    int error = errno;
    umask(before);
    return *fd >= 0 ? OK
                    : buf_why(why, ERR_IO, "uds: cannot listen on %s: %s", path, strerror(error));
}

void listen_unix_remove(int fd, const char *path)
{
    struct sockaddr_un bound = {0};
    socklen_t n = sizeof bound;
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (fd < 0 || getsockname(fd, (struct sockaddr *)&bound, &n) != 0 ||
        strcmp(bound.sun_path, path) != 0)
        return;
    /* Another server may have created its socket at this path after ours was removed. If the path
     * still accepts connections after our socket is shut down, the file is that server's. */
    shutdown(fd, SHUT_RDWR);
    memcpy(a.sun_path, path, strlen(path) + 1);
    if (!somebody_listens(&a))
        unlink(path);
}

/* --- TLS --- */

enum status listen_read_pem(struct buf *out, const char *flag, const char *path, const char *marker,
                            struct buf *why)
{
    char bytes[4096];
    size_t n;
    FILE *f = fopen(path, "re");

    if (!f)
        return buf_why(why, ERR_NOT_FOUND, "%s: cannot open %s: %s", flag, path, strerror(errno));
    buf_init(out, PEM_BYTES_MAX);
    enum status s = OK;
    while (s == OK && (n = fread(bytes, 1, sizeof bytes, f)) > 0)
        s = buf_append(out, bytes, n);
    bool failed = ferror(f) != 0;
    int error = errno;
    fclose(f);
    if (failed)
        return buf_why(why, ERR_IO, "%s: cannot read %s: %s", flag, path, strerror(error));
    if (s != OK)
        return buf_why(why, s, "%s: %s is larger than %u bytes", flag, path, PEM_BYTES_MAX);
    if (!strstr(buf_str(out), marker))
        return buf_why(why, ERR_INVALID, "%s: %s is not a PEM file with a \"%s\"", flag, path,
                       marker);
    return OK;
}

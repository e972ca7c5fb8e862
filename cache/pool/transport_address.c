#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/pool/transport_inner.h"

#define HOST_MAX 256u

/* Cut text into host [HOST_MAX] and port. */
static enum status split(char *host, const char **port, const char *text, struct buf *why)
{
    const char *from = text, *end = strrchr(text, ':');

    if (!end)
        return buf_why(why, ERR_INVALID, "\"%s\" has no port: expected HOST:PORT or [IPV6]:PORT",
                       text);
    *port = end + 1;
    if (text[0] == '[') {
        if (end == text || end[-1] != ']')
            return buf_why(why, ERR_INVALID, "\"%s\": \"]:PORT\" is missing", text);
        from++;
        end--;
    } else if (memchr(text, ':', (size_t)(end - text))) {
        return buf_why(why, ERR_INVALID, "\"%s\": an IPv6 address is written [ADDRESS]:PORT", text);
    }
    size_t n = (size_t)(end - from);
    if (n == 0)
        return buf_why(why, ERR_INVALID,
                       "\"%s\" has no host: 0.0.0.0 or [::] means all addresses of this machine",
                       text);
    if (n >= HOST_MAX)
        return buf_why(why, ERR_INVALID, "the host has more than %u bytes", HOST_MAX - 1);
    memcpy(host, from, n);
    host[n] = '\0';
    return OK;
}

static enum status check_port(const char *port, const char *text, struct buf *why)
{
    size_t n = strlen(port);

    if (n == 0 || n > 5 || strspn(port, "0123456789") != n || atoi(port) > 65535)
        return buf_why(why, ERR_INVALID, "\"%s\": the port is not a number from 0 to 65535", text);
    return OK;
}

static enum status resolve(struct sockaddr_storage *out, socklen_t *n, const char *host,
                           const char *port, int family, bool may_resolve, struct buf *why)
{
    struct addrinfo hints = {.ai_family = family,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (may_resolve ? 0 : AI_NUMERICHOST)};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, port, &hints, &list);

    if (rc != 0)
        return buf_why(why, ERR_INVALID, "cannot resolve \"%s\": %s", host, gai_strerror(rc));
    memset(out, 0, sizeof *out);
    memcpy(out, list->ai_addr, list->ai_addrlen);
    *n = list->ai_addrlen;
    freeaddrinfo(list);
    return OK;
}

enum status transport_parse(struct sockaddr_storage *out, socklen_t *n, const char *text,
                            int family, bool may_resolve, struct buf *why)
{
    char host[HOST_MAX];
    const char *port = NULL;
    enum status s = split(host, &port, text, why);

    if (s == OK)
        s = check_port(port, text, why);
    return s == OK ? resolve(out, n, host, port, family, may_resolve, why) : s;
}

static bool is_wildcard(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static uint16_t port_of(const struct sockaddr_storage *a)
{
    return ntohs(a->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)a)->sin6_port
                                          : ((const struct sockaddr_in *)a)->sin_port);
}

/* 0: not to be announced. Higher is better; a listener for IPv6 takes IPv4 connections too. */
static int rank(const struct ifaddrs *i, int family)
{
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
        return 0;
    if (i->ifa_addr->sa_family == AF_INET)
        return is_loopback(i->ifa_addr) ? 1 : 3;
    if (i->ifa_addr->sa_family != AF_INET6 || family != AF_INET6 ||
        IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(void *)i->ifa_addr)->sin6_addr) ||
        is_loopback(i->ifa_addr))
        return 0;
    return 2;
}

/* An address by which other machines reach this one; loopback if there is no other. */
static void own_address(struct sockaddr_storage *out, int family)
{
    struct ifaddrs *list = NULL;
    const struct ifaddrs *best = NULL;
    struct sockaddr_in loopback = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    if (getifaddrs(&list) == 0)
        for (const struct ifaddrs *i = list; i; i = i->ifa_next)
            if (rank(i, family) > (best ? rank(best, family) : 0))
                best = i;
    memset(out, 0, sizeof *out);
    if (best)
        memcpy(out, best->ifa_addr,
               best->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                    : sizeof(struct sockaddr_in6));
    else
        memcpy(out, &loopback, sizeof loopback);
    if (list)
        freeifaddrs(list);
}

enum status transport_announce(char *out, size_t n_out, const char *kind,
                               const struct sockaddr_storage *bound, const char *announce_host,
                               struct buf *why)
{
    struct sockaddr_storage a = *bound;
    socklen_t n = sizeof a;
    char host[INET6_ADDRSTRLEN];
    enum status s = OK;

    if (announce_host)
        s = resolve(&a, &n, announce_host, "0", AF_UNSPEC, true, why);
    else if (is_wildcard(bound))
        own_address(&a, bound->ss_family);
    if (s != OK)
        return s;
    /* Debian's /etc/hosts maps the machine's own name to 127.0.1.1. */
    if (announce_host && is_loopback((const struct sockaddr *)&a) &&
        !is_loopback((const struct sockaddr *)bound) && strpbrk(announce_host, ".:") == NULL)
        return buf_why(why, ERR_INVALID,
                       "\"%s\" is a loopback address on this machine: give an address that the "
                       "other instances can reach",
                       announce_host);
    if (a.ss_family == AF_INET6)
        inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&a)->sin6_addr, host, sizeof host);
    else
        inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, host, sizeof host);
    snprintf(out, n_out, a.ss_family == AF_INET6 ? "%s://[%s]:%u" : "%s://%s:%u", kind, host,
             port_of(bound));
    return OK;
}

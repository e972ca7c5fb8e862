#include "cache/pool/directory_inner.h"

#include <stdlib.h>
#include <string.h>

/* Copy text [n] with %XX decoded. False: too long, a broken %XX, or a NUL. */
static bool decode(char *out, size_t n_out, const char *text, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '%') {
            char digits[3] = {0}, *end;
            if (i + 2 >= n)
                return false;
            memcpy(digits, text + i + 1, 2);
            c = (char)strtoul(digits, &end, 16);
            if (end != digits + 2 || strchr("+- ", digits[0]))
                return false;
            i += 2;
        }
        if (c == '\0' || at + 1 >= n_out)
            return false;
        out[at++] = c;
    }
    out[at] = '\0';
    return true;
}

/* Read a whole number of digits only. */
static bool number(uint32_t *out, const char *text, size_t n, uint32_t max)
{
    uint32_t v = 0;

    if (n == 0 || n > 6)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        v = 10 * v + (uint32_t)(text[i] - '0');
    }
    *out = v;
    return v <= max;
}

/* [user][:password] */
static enum status parse_user(struct directory_url *u, const char *text, size_t n, struct buf *why)
{
    const char *colon = memchr(text, ':', n);
    size_t n_user = colon ? (size_t)(colon - text) : n;

    if (!decode(u->user, sizeof u->user, text, n_user) ||
        (colon && !decode(u->password, sizeof u->password, colon + 1, n - n_user - 1)))
        return buf_why(why, ERR_INVALID, "the user or password of the URL is too long or broken");
    if (!u->password[0])
        return buf_why(why, ERR_INVALID,
                       "the URL names a user without a password: write "
                       "redis://user:password@host or redis://:password@host");
    return OK;
}

static enum status parse_host(struct directory_url *u, const char *text, size_t n, struct buf *why)
{
    const char *end = text + n, *host = text, *port = NULL;
    size_t n_host = n;
    uint32_t v = 6379;

    if (n > 0 && text[0] == '[') {
        const char *close = memchr(text, ']', n);
        if (!close || (close + 1 < end && close[1] != ':'))
            return buf_why(why, ERR_INVALID, "the address in brackets is broken");
        host = text + 1;
        n_host = (size_t)(close - host);
        port = close + 1 < end ? close + 2 : NULL;
    } else if (memchr(text, ':', n)) {
        port = (const char *)memchr(text, ':', n) + 1;
        n_host = (size_t)(port - 1 - text);
    }
    if (n_host == 0 || !decode(u->host, sizeof u->host, host, n_host))
        return buf_why(why, ERR_INVALID, "no host: write redis://host:6379/0");
    if (port && (!number(&v, port, (size_t)(end - port), 65535) || v == 0))
        return buf_why(why, ERR_INVALID, "\"%.*s\" is no port (an IPv6 address stands in brackets)",
                       (int)(end - port), port);
    u->port = (uint16_t)v;
    return OK;
}

static enum status parse_database(struct directory_url *u, const char *text, size_t n,
                                  struct buf *why)
{
    if (n > 0 && !number(&u->database, text, n, 65535))
        return buf_why(why, ERR_INVALID, "\"%.*s\" is no number of a database", (int)n, text);
    return OK;
}

/* Behind unix://: path[?db=n] */
static enum status parse_unix(struct directory_url *u, const char *text, struct buf *why)
{
    const char *query = strchr(text, '?');
    size_t n = query ? (size_t)(query - text) : strlen(text);

    u->is_unix = true;
    if (n == 0 || text[0] != '/' || n >= 108 || !decode(u->host, sizeof u->host, text, n))
        return buf_why(why, ERR_INVALID,
                       "no path of a socket (at most 107 bytes): write "
                       "unix:///run/redis/redis.sock");
    if (query && strncmp(query, "?db=", 4) != 0)
        return buf_why(why, ERR_INVALID, "unknown \"%s\": only ?db=n may follow the path", query);
    return query ? parse_database(u, query + 4, strlen(query + 4), why) : OK;
}

enum status directory_url_parse(struct directory_url *out, const char *url, struct buf *why)
{
    struct directory_url u = {0};
    bool is_tcp = strncmp(url, "redis://", 8) == 0;
    enum status s = OK;

    if (strncmp(url, "rediss://", 9) == 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "rediss:// is not supported: the connection to Redis has no TLS; use "
                       "redis:// in a private network or through a tunnel");
    if (!is_tcp && strncmp(url, "unix://", 7) != 0)
        return buf_why(why, ERR_INVALID,
                       "a URL redis://host:port/database or unix:///path is "
                       "expected");
    const char *rest = url + (is_tcp ? 8 : 7);
    size_t n_host = is_tcp ? strcspn(rest, "/?#") : 0;
    /* A password may contain '/' only as %2F, but '@' ends the user wherever it stands last. */
    const char *at = is_tcp ? memrchr(rest, '@', n_host) : strchr(rest, '@');
    if (!is_tcp && rest[0] == '/')
        at = NULL;
    if (at) {
        s = parse_user(&u, rest, (size_t)(at - rest), why);
        n_host -= is_tcp ? (size_t)(at + 1 - rest) : 0;
        rest = at + 1;
    }
    if (s == OK && !is_tcp)
        s = parse_unix(&u, rest, why);
    if (s == OK && is_tcp)
        s = parse_host(&u, rest, n_host, why);
    if (s == OK && is_tcp && rest[n_host] == '/')
        s = parse_database(&u, rest + n_host + 1, strlen(rest + n_host + 1), why);
    else if (s == OK && is_tcp && rest[n_host] != '\0')
        s = buf_why(why, ERR_INVALID, "unknown \"%s\" behind the host", rest + n_host);
    if (s == OK)
        *out = u;
    return s;
}

/* canned_server.h - a server on a thread that answers the n-th connection with the n-th canned text
 * and then closes, resets, waits or serves the next request: for tests of base/http and clients/c.
 *
 * Owns    a listening socket, a thread, the requests it read.
 * Thread  one user; the server's own thread is inside.
 * Errors  a failed system call aborts the test.
 * Units   ms. */
#ifndef TARN_TESTS_UNIT_CLIENTS_CANNED_SERVER_H
#define TARN_TESTS_UNIT_CLIENTS_CANNED_SERVER_H

#include <stdbool.h>
#include <stddef.h>

enum canned_then {
    CANNED_CLOSE, /* FIN */
    CANNED_RESET, /* RST */
    CANNED_HOLD,  /* nothing, until the client leaves */
    CANNED_NEXT,  /* the next request on this connection gets the next canned answer */
};

struct canned {
    const char *text;
    size_t len;        /* 0: strlen */
    size_t split;      /* write so many bytes at a time; 0: all */
    unsigned split_ms; /* pause between pieces */
    size_t gate_at;    /* from this byte on each piece waits for canned_release(); 0: none */
    unsigned delay_ms; /* before the first byte */
    unsigned then_ms;  /* between the last byte and `then` */
    enum canned_then then;
    size_t repeat; /* write the text so many times; 0: once */
};

struct canned_server;

/* answers [n] must live as long as the server; the last one is used again and again. */
struct canned_server *canned_start(const struct canned *answers, size_t n);
/* The same on a Unix socket at `path`. */
struct canned_server *canned_start_unix(const char *path, const struct canned *answers, size_t n);
const char *canned_url(const struct canned_server *s); /* "http://127.0.0.1:PORT" */
void canned_stop(struct canned_server *s);
/* The requests as they came, head and body, one after the other. Valid until the next one comes. */
const char *canned_requests(struct canned_server *s);
bool canned_has_request(struct canned_server *s); /* at least one came whole */
/* Let an answer with `gate_at` write its next piece. */
void canned_release(struct canned_server *s);
size_t canned_n_written(struct canned_server *s); /* bytes the kernel took so far */
size_t canned_n_connections(struct canned_server *s);

#endif

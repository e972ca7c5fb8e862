/* status.h - the result enum of the whole project, its names and its HTTP mapping.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  a code says what the caller can do; the message for people goes into a `struct buf *why`.
 * Units   status_http() returns an HTTP status code. */
#ifndef TARN_BASE_STATUS_H
#define TARN_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define NODISCARD __attribute__((warn_unused_result))

enum status {
    OK = 0,
    ERR_INVALID,      /* the input is wrong: name the field, do not retry */
    ERR_UNAUTHORIZED, /* no valid key */
    ERR_FORBIDDEN,    /* a valid key that may not do this */
    ERR_NOT_FOUND,    /* no such file, model, route or id */
    ERR_TOO_LARGE,    /* over a stated limit */
    ERR_UNSUPPORTED,  /* well-formed, but not something Tarn does */
    ERR_BUSY,         /* a bounded queue is full: retry later */
    ERR_UNAVAILABLE,  /* draining, or not ready yet: retry elsewhere */
    ERR_CANCELLED,    /* the client disconnected */
    ERR_TIMEOUT,      /* a deadline passed */
    ERR_NO_BLOCKS,    /* the KV pool has no free block: evict, preempt and retry */
    ERR_NOMEM,        /* out of memory */
    ERR_FULL,         /* a disk is full, or a file has reached its maximum: make room */
    ERR_IO,           /* a system call failed */
    ERR_CORRUPT,      /* stored bytes do not pass their checks */
    ERR_INTERNAL,     /* a bug that did not warrant an abort */
    STATUS_COUNT
};

/* "ok", "invalid", ...: the word for logs. Never NULL. */
const char *status_name(enum status s);

/* "out of memory", "an input or output error", ...: the message when no better one is known. Never
 * NULL. */
const char *status_words(enum status s);

/* HTTP status code of a request that failed with s, e.g. ERR_BUSY -> 429. OK -> 200. */
int status_http(enum status s);

/* The `type` of the OpenAI-style error object, e.g. "invalid_request_error". Never NULL. */
const char *status_error_type(enum status s);

#ifdef __cplusplus
}
#endif
#endif

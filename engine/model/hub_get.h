/* hub_get.h - GET from a hub of models: with its token, redirects, and attempts after failures.
 *
 * The token goes to the hub's own host only, and only by https or to this machine itself: a
 * redirect to another host, as to the stores in which a hub keeps large files, is followed without
 * it. A redirect from https to http is refused. No message has the token or the signed address of a
 * store.
 *
 * Owns    the loop of calls until hub_close().
 * Thread  one; `stop` may be set by any thread or signal handler.
 * Errors  ERR_UNAUTHORIZED 401 and 403; ERR_NOT_FOUND 404; ERR_CANCELLED after `stop`;
 *         ERR_TOO_LARGE more bytes than wanted; ERR_UNAVAILABLE a hub that fails again and again;
 *         ERR_INVALID an answer against the rules; errors of the sink.
 * Units   bytes, milliseconds. */
#ifndef TARN_ENGINE_MODEL_HUB_GET_H
#define TARN_ENGINE_MODEL_HUB_GET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define HUB_URL_BYTES_MAX 8192
#define HUB_TOKEN_BYTES_MAX 1024

struct http_loop;

struct hub {
    char endpoint[HUB_URL_BYTES_MAX / 8]; /* without a slash at its end */
    char token[HUB_TOKEN_BYTES_MAX];      /* "": none */
    const atomic_bool *stop;              /* NULL: never */
    struct http_loop *loop;
};

/* The taker of the bytes of an answer. */
struct hub_sink {
    uint64_t n_wanted; /* whole size; UINT64_MAX: not known */
    uint64_t n_max;
    /* The number of bytes that are here already: the next attempt asks for those behind. */
    uint64_t (*n_here)(void *arg);
    /* An answer begins at byte `from`, at most n_here(): drop what is here from there on. */
    enum status (*begin)(void *arg, uint64_t from, struct buf *why);
    enum status (*add)(void *arg, const void *bytes, size_t n, struct buf *why);
    void *arg;
};

/* Read HF_ENDPOINT, by default https://huggingface.co, and the token: HF_TOKEN, else the file
 * HF_TOKEN_PATH, else HF_HOME/token, else ~/.cache/huggingface/token. ERR_UNSUPPORTED with
 * HF_HUB_OFFLINE. */
NODISCARD enum status hub_open(struct hub *h, const atomic_bool *stop, struct buf *why);
void hub_close(struct hub *h);

/* Get endpoint/path into the sink. `what` names the file in messages. After a failure that may pass
 * (a broken connection, 429, 5xx) up to five attempts follow each other without a byte more, with
 * growing pauses or those of Retry-After. */
NODISCARD enum status hub_get(struct hub *h, const char *path, const char *what,
                              const struct hub_sink *sink, struct buf *why);
/* Append a path or a part of one to a URL, with %XX for all but letters, digits, "-._~" and,
 * with keep_slash, "/". */
NODISCARD enum status hub_write_url(struct buf *url, const char *text, bool keep_slash);

#endif

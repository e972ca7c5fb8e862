/* answer.h - parses the JSON of an answer: pieces of a stream, whole answers, errors, usage.
 *
 * Owns    `words`, `sources` and a buffer for token ids: answer_fini().
 * Thread  one at a time.
 * Errors  TARN_ERR_PARSE, TARN_ERR_STREAM, TARN_ERR_NOMEM, with words; fields that this library
 *         does not use may have any shape.
 * Units   times in ns, as passed by the caller. */
#ifndef TARN_CLIENTS_C_ANSWER_H
#define TARN_CLIENTS_C_ANSWER_H

#include "base/buf.h"
#include "clients/c/tarn_client.h"

struct answer {
    enum tarn_kind kind;
    struct tarn_usage usage;
    char finish_reason[32]; /* of choice 0 */
    char code[64];
    struct buf words;
    struct buf ids;              /* uint32_t */
    struct tarn_source *sources; /* [n_sources] */
    size_t n_sources;
    uint64_t n_chunks, n_deltas, first_ns, last_ns;
    bool stopped; /* set by the owner: emit() must not be called again */
    void (*emit)(void *arg, const struct tarn_chunk *chunk);
    void *arg;
};

void answer_init(struct answer *a, enum tarn_kind kind,
                 void (*emit)(void *arg, const struct tarn_chunk *chunk), void *arg);
void answer_fini(struct answer *a);

/* Parse one event of a stream, except [DONE]. is_error: the event's name is "error". */
enum tarn_error answer_take_event(struct answer *a, const char *json, size_t len, bool is_error,
                                  uint64_t time_ns);
/* Parse an answer that is not a stream. */
enum tarn_error answer_take_whole(struct answer *a, const char *json, size_t len, uint64_t time_ns);
/* Take message and code from the body of an error answer, JSON or not. */
void answer_take_refusal(struct answer *a, int http_status, const char *body, size_t len);

#endif

/* answer.h - what the JSON of an answer says: pieces of a stream, whole answers, errors, usage.
 *
 * Owns    `words` and a scratch for token ids: answer_fini().
 * Thread  one at a time.
 * Errors  TARN_ERR_PARSE, TARN_ERR_STREAM, TARN_ERR_NOMEM, with words; fields that we do not read
 *         may have any shape.
 * Units   times in ns as they are handed in. */
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
    struct buf ids; /* uint32_t */
    uint64_t n_chunks, n_deltas, first_ns, last_ns;
    bool stopped; /* set by the owner: emit nothing more */
    void (*emit)(void *arg, const struct tarn_chunk *chunk);
    void *arg;
};

void answer_init(struct answer *a, enum tarn_kind kind,
                 void (*emit)(void *arg, const struct tarn_chunk *chunk), void *arg);
void answer_fini(struct answer *a);

/* One event of a stream that is not [DONE]. is_error: its name said so. */
enum tarn_error answer_take_event(struct answer *a, const char *json, size_t len, bool is_error,
                                  uint64_t time_ns);
/* An answer that is no stream. */
enum tarn_error answer_take_whole(struct answer *a, const char *json, size_t len, uint64_t time_ns);
/* Words and code out of the body of a refusal, whatever it is. */
void answer_take_refusal(struct answer *a, int http_status, const char *body, size_t len);

#endif

/* outcome.h - the result of one request, live or simulated: times, counts, errors.
 *
 * Owns    token times, text, words and body: outcome_fini(). A list owns its outcomes.
 * Thread  one at a time.
 * Errors  ERR_NOMEM.
 * Units   _ns of one monotonic clock; 0: never happened. Token counts of -1: the server did not
 *         say. */
#ifndef TARN_LOADGEN_LOAD_OUTCOME_H
#define TARN_LOADGEN_LOAD_OUTCOME_H

#include "clients/c/tarn_client.h"
#include "loadgen/load/request.h"

enum outcome_end {
    OUTCOME_OK,
    OUTCOME_FAILED,
    OUTCOME_DISCONNECTED, /* we hung up, as the workload wanted */
    OUTCOME_UNFINISHED,   /* the run ended first */
};

struct outcome {
    uint64_t index;
    uint64_t session;
    uint32_t turn;
    uint32_t tenant;
    int32_t priority;
    struct slo slo;
    bool measured;    /* not of the warm-up */
    bool slow_reader; /* the client caused the latencies: they are not counted */
    bool verify;

    enum outcome_end end;
    enum tarn_error error;
    int http_status;
    char *message; /* of an error; NULL: none */

    uint64_t began_ns;  /* intended time of the first turn of its conversation */
    uint64_t paused_ns; /* sum of the conversation's pauses up to this turn */
    bool is_last;       /* the last turn of a conversation of several */

    uint64_t intended_ns; /* intended time of sending: latencies count from here */
    uint64_t free_ns;     /* when a place was free: later than intended under --concurrency */
    uint64_t sent_ns;
    uint64_t first_ns, last_ns; /* first and last token */
    uint64_t end_ns;
    uint64_t *token_ns; /* [n_tokens] when each piece of text came */
    uint32_t n_tokens, cap_tokens;

    uint32_t n_prompt_asked, n_output_asked;
    struct tarn_usage usage;
    char finish_reason[32];

    char *text; /* [text_len] when asked for */
    size_t text_len;
    struct tarn_body body; /* verify: to be sent again */
};

struct outcome_list {
    struct outcome *v; /* [n] in the order of their ends */
    size_t n, cap;
};

void outcome_init(struct outcome *o, const struct load_request *r);
void outcome_fini(struct outcome *o);
NODISCARD enum status outcome_token(struct outcome *o, uint64_t time_ns);
/* Tokens generated: the number of the server, else that of the pieces. */
uint64_t outcome_output_tokens(const struct outcome *o);
uint64_t outcome_prompt_tokens(
    const struct outcome *o); /* the number of the server, else that of the request */
const char *outcome_end_name(enum outcome_end e);

/* Take the outcome over on OK. */
NODISCARD enum status outcome_list_push(struct outcome_list *l, const struct outcome *o);
void outcome_list_fini(struct outcome_list *l); /* also fine on a zeroed struct */
void outcome_list_sort(struct outcome_list *l); /* by index */

#endif
